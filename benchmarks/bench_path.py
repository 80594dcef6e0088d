"""What the data plane's own code costs, without sockets: a plain request, one with a key that is asked for, a streamed
one, one event of a stream.

Bytes go into the protocol objects and transports that only count take what comes out, so nothing of the kernel, the
event loop or a client is in the figures, and they move little on a busy machine. ``--against FOLDER`` runs another
build of the package (``pip install --target FOLDER .`` of another commit) in turn with this one, and prints the ratios:
that is how a change shows what it costs a request.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from exaserve.config import GatewaySettings
from exaserve.control.keybook import Keybook, digest_of
from exaserve.control.records import Allowance, ApiKey
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway import core as core_module
from exaserve.gateway.core import Core
from exaserve.gateway.data_plane import DataPlane
from exaserve.gateway.guard.guard import Guard
from exaserve.health import HealthConfig
from exaserve.observe import GatewayMetrics
from exaserve.scheduling import Admission, AdmissionConfig, Scheduler, SchedulerConfig
from exaserve.serving.fleet import Fleet

REPLICAS = 12
MODEL = "bench"
COUNTS = {"plain": 2_000, "guarded": 2_000, "stream": 1_500, "event": 20_000}
TARGET = 1.02
"""What a change may cost at most, as a ratio of whole-process CPU, of which the data plane's own code is a quarter."""
WHOLE_US = {"plain": 76.0, "event": 30.0}
"""CPU of the whole process per request (closed loop, the least) and event, sockets and event loop included, as
docs/results/gateway.md has them: what a difference is a share of."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def request(stream: bool) -> bytes:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hello there."}], "max_tokens": 16, "stream": stream}
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nUser-Agent: bench\r\nAuthorization: Bearer key\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    return head % len(body) + body


USAGE = b'{"usage":{"prompt_tokens":7,"completion_tokens":2}}'
PLAIN = (
    b"HTTP/1.1 200 OK\r\ndate: now\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(USAGE)
) + USAGE
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = chunk(
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
)
LAST = chunk(b"data: " + USAGE + b"\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class CountingTransport:
    """Takes everything and keeps nothing."""

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self.writes = 0
        protocol.connection_made(self)

    def write(self, data: bytes) -> None:  # noqa: ARG002
        self.writes += 1

    def get_extra_info(self, name: str) -> None:
        """There is no socket behind it."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class WarmPath:
    """A data plane with one client, which has a key, and an idle connection to each replica."""

    def __init__(self, allowance: Allowance = Allowance()) -> None:  # noqa: B008  # frozen
        clock = time.monotonic
        scheduler = Scheduler(SchedulerConfig(), random.Random(1))
        fleet = Fleet(scheduler, HealthConfig(), lambda: None)
        self.core = Core(GatewaySettings(), fleet, Admission(AdmissionConfig()), GatewayMetrics(process=False), clock)
        self.client = CountingTransport(DataPlane(self.core).client_protocol()).protocol
        self.guard = Guard(time.time)
        key = ApiKey(
            id="bench", tenant="bench", digest=digest_of(b"secret", b"key"), secret_id="bench", allowance=allowance
        )
        self.guard.take(Keybook((key,), (), {"bench": b"secret"}))
        self.upstreams = []
        now = clock()
        for index in range(REPLICAS):
            replica, url = ReplicaId(f"r{index}"), f"http://127.0.0.1:{9000 + index}"
            fleet.add(ReplicaSpec(id=replica, url=url, models=(MODEL,)), now)
            fleet.probed(replica, ok=True, detail="bench", now=now, latency_s=0.0)
            upstream = self.core.pool.protocol(self.core.pool.endpoint(replica, url))
            CountingTransport(upstream)
            self.core.pool.adopt(upstream)
            self.upstreams.append(upstream)

    def busy(self) -> Any:
        return next(upstream for upstream in self.upstreams if upstream.relay is not None)

    def plain(self, count: int) -> None:
        data = request(stream=False)
        for _ in range(count):
            self.client.data_received(data)
            self.busy().data_received(PLAIN)

    def guarded(self, count: int) -> None:
        """As ``plain``, where a key is asked for: its look-up, and what keeps tenants apart."""
        self.core.guard = self.guard
        self.plain(count)
        self.core.guard = None

    def stream(self, count: int) -> None:
        data = request(stream=True)
        for _ in range(count):
            self.client.data_received(data)
            upstream = self.busy()
            for part in (HEAD, EVENT, LAST):
                upstream.data_received(part)

    def event(self, count: int) -> None:
        self.client.data_received(request(stream=True))
        upstream = self.busy()
        upstream.data_received(HEAD)
        for _ in range(count):
            upstream.data_received(EVENT)
        upstream.data_received(LAST)


def measure(rounds: int) -> dict[str, float]:
    """Least CPU of each kind over the rounds, µs: what disturbs only ever adds."""
    path = WarmPath()
    kinds: dict[str, Callable[[int], None]] = {
        "plain": path.plain,
        "guarded": path.guarded,
        "stream": path.stream,
        "event": path.event,
    }
    for run in kinds.values():
        run(1_000)
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(rounds):
        for kind, run in kinds.items():
            began = time.process_time()
            run(COUNTS[kind])
            best[kind] = min(best[kind], (time.process_time() - began) / COUNTS[kind] * 1e6)
    return best


def builds(against: str | None) -> Iterator[tuple[str, str]]:
    """Name and import folder of each build."""
    yield "this", str(Path(core_module.__file__).parents[2])
    if against:
        yield "other", against


def run_one(folder: str, rounds: int) -> dict[str, Any]:
    """The measurement in a process of its own, with the package of ``folder``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(Path(__file__).parents[1])))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_path", "--one", "--rounds", str(rounds)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of each kind in one process")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each build, in turn")
    parser.add_argument("--against", help="folder with another build of the package")
    parser.add_argument("--check", action="store_true", help="exit 1 where it is dearer than the target")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        compiled = not str(core_module.__file__).endswith(".py")
        print(json.dumps({"compiled": compiled, **measure(options.rounds)}))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.repeats):
        for name, folder in builds(options.against):
            runs.setdefault(name, []).append(run_one(folder, options.rounds))
    print(description())
    worse = False
    best = {name: {kind: min(run[kind] for run in each) for kind in COUNTS} for name, each in runs.items()}
    for name, figures in best.items():
        form = "compiled" if runs[name][0]["compiled"] else "plain Python"
        spread = {kind: statistics.median(run[kind] for run in runs[name]) for kind in COUNTS}
        shown = "   ".join(f"{kind} {figures[kind]:.2f} µs (median {spread[kind]:.2f})" for kind in COUNTS)
        print(f"{name:6} {form:12} {shown}")
    if "other" in best:
        for kind in COUNTS:
            more = best["this"][kind] - best["other"][kind]
            if kind not in WHOLE_US:
                print(f"{kind:6} {more:+.2f} µs")
                continue
            share = 1.0 + more / WHOLE_US[kind]
            worse = worse or share > TARGET
            word = "met" if share <= TARGET else "missed"
            print(f"{kind:6} {more:+.2f} µs, {share:.3f} of the whole process; target {TARGET}: {word}")
    return 1 if worse and options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
