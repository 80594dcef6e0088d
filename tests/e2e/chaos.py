"""Replicas killed, frozen, reset and restarted under load, with every request's end accounted for.

``python -m tests.e2e.chaos --seconds 60`` runs it for as long as one likes and prints what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.harness import MODEL, GatewayProcess, until

from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess

__all__ = ["Chaos", "Ended", "main"]

REPLICAS = 6
GAUGES = (
    "exaserve_requests_in_flight",
    "exaserve_streams_open",
    "exaserve_queue_depth",
    "exaserve_replica_inflight",
    "exaserve_replica_pending_seconds",
    "exaserve_replica_ledger_kv_tokens",
)
_CLUSTER = """
health:
  probe_interval: 1s
  probe_timeout: 1500ms
  probe_limit: 1s
  slow_start: 2s
gateway:
  retry: {{attempts_max: 4, budget_ratio: 0.5}}
replicas:
{replicas}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How one request ended, as its client saw it.

    Attributes:
        kind: ``complete``; ``cut`` (it had begun, and ended with an error event or a closed connection); ``left`` (the
            client went on purpose); ``refused`` (it got an error although nothing had begun: what must not happen).
        detail: what the client saw, for ``refused``.
        seconds: from asking to the end.
    """

    kind: str
    detail: str
    seconds: float


class Chaos:
    """An emulator with most replicas, one in a process of its own that is killed by SIGKILL, a gateway over both."""

    def __init__(self, seconds: float, rate: float, seed: int) -> None:
        self.seconds = seconds
        self.rate = rate
        self.rng = random.Random(seed)
        self.ends: list[Ended] = []
        self.deeds: Counter[str] = Counter()
        self._gateway: GatewayProcess | None = None
        self._many: EmulatorProcess | None = None
        self._one: EmulatorProcess | None = None

    def run(self) -> None:
        """Runs load and faults, heals everything, waits for the last answers; raises where a figure is not zero."""
        config = EmulatorConfig(port=0, speed=10.0, load_s=5.0, served_model_names=(MODEL,))
        with (
            tempfile.TemporaryDirectory() as folder,
            EmulatorProcess(dataclasses.replace(config, replicas=REPLICAS - 1)) as self._many,
        ):
            self._one = EmulatorProcess(config)
            try:
                urls = [*self._many.urls, *self._one.urls]
                path = Path(folder) / "cluster.yaml"
                path.write_text(_CLUSTER.format(replicas="\n".join(f"  - {url}" for url in urls)))
                with GatewayProcess([], "--log-level", "debug", config=path) as self._gateway:
                    self._gateway.ready()
                    until(lambda: self._eligible() == REPLICAS)
                    asyncio.run(self._all())
                    self._check()
                    assert self._gateway.stop() == 0
                    self.log = list(self._gateway.lines)
            finally:
                self._one.stop()

    def kinds(self) -> Counter[str]:
        return Counter(end.kind for end in self.ends)

    def _eligible(self) -> int:
        assert self._gateway is not None
        return sum(row["eligible"] for row in self._gateway.admin("/replicas")["replicas"])

    def _check(self) -> None:
        gateway = self._gateway
        assert gateway is not None
        until(lambda: self._eligible() == REPLICAS, 30, "all replicas back in rotation")
        for name in GAUGES:
            assert gateway.gauge(name) == 0, name
        for row in gateway.admin("/replicas")["replicas"]:
            assert (row["inflight"], row["ledger"]["pending"], row["ledger"]["decoding"]) == (0, 0, 0), row
        counted = gateway.gauge("exaserve_requests_total")
        assert counted == len(self.ends), (counted, len(self.ends))
        assert not [line for line in gateway.lines if "Traceback" in line or "Exception" in line], gateway.lines[-30:]

    async def _all(self) -> None:
        load = asyncio.create_task(self._load())
        end = time.monotonic() + self.seconds
        while time.monotonic() < end - 2.0:
            await self._one_deed()
            await asyncio.sleep(self.rng.uniform(0.3, 1.0))
        await load

    # ---- faults -------------------------------------------------------------------------------------------------
    async def _one_deed(self) -> None:
        """Breaks one replica for a while, then heals it. At most one at a time is down, as with a rolling fault."""
        many = self._many
        assert many is not None
        deed = self.rng.choice(["kill", "freeze", "reset_before", "reset_after", "errors", "cut", "refuse", "sigkill"])
        replica = self.rng.randrange(REPLICAS - 1)
        self.deeds[deed] += 1
        pause_s = self.rng.uniform(0.5, 1.5)
        if deed == "sigkill":
            await self._sigkill(pause_s)
            return
        changes: dict[str, object] = {
            "kill": {"kill": True},
            "freeze": {"freeze": True},
            "reset_before": {"reset": "before"},
            "reset_after": {"reset": "after"},
            "errors": {"error_rate": 1.0, "error_status": 500},
            "cut": {"cut_after": 3},
            "refuse": {"refuse": True},
        }[deed]  # type: ignore[assignment]
        await asyncio.to_thread(many.fault, replica, **changes)
        await asyncio.sleep(3.5 if deed == "freeze" else pause_s)
        heal = {"clear": True, "restart": 0.2} if deed == "kill" else {"clear": True}
        await asyncio.to_thread(many.fault, replica, **heal)

    async def _sigkill(self, pause_s: float) -> None:
        """The process with one replica dies without a word, and a new one takes its port."""
        one = self._one
        assert one is not None
        port = urlsplit(one.urls[0]).port
        assert port is not None
        one._process.kill()
        await asyncio.to_thread(one.stop)
        await asyncio.sleep(pause_s)
        self._one = await asyncio.to_thread(EmulatorProcess, dataclasses.replace(one.config, port=port))

    # ---- load ---------------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        """Open loop: a slow answer holds up no other request."""
        began = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        at = began
        while at < began + self.seconds:
            at += self.rng.expovariate(self.rate)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            task = asyncio.create_task(self._ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=60)
        assert not tasks, f"{len(tasks)} requests never ended"

    async def _ask(self) -> None:
        began = time.monotonic()
        stream = self.rng.random() < 0.7
        leaves = self.rng.random() < 0.05
        body = {
            "model": MODEL,
            "prompt": "word " * self.rng.choice([20, 200, 2000]),
            "max_tokens": self.rng.randint(1, 120),
            "ignore_eos": True,
            "stream": stream,
        }
        answer = await self._exchange(json.dumps(body).encode(), self.rng.uniform(0.0, 0.5) if leaves else None)
        kind, detail = ("left", "") if answer is None else _judge(answer, stream=stream)
        self.ends.append(Ended(kind, detail, time.monotonic() - began))

    async def _exchange(self, body: bytes, leave_after_s: float | None) -> bytes | None:
        """Everything the gateway sent; None where the client went before the end."""
        assert self._gateway is not None
        parts = urlsplit(self._gateway.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            return await asyncio.wait_for(reader.read(-1), leave_after_s)
        except TimeoutError:
            return None
        except ConnectionError as error:
            return repr(error).encode()
        finally:
            writer.transport.abort()


def _judge(answer: bytes, *, stream: bool) -> tuple[str, str]:
    """``complete``, ``cut`` or ``refused``, and what was seen."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return "refused", answer[:300].decode("utf-8", "replace")
    if stream:
        whole = body.rstrip().endswith(b"0") and b"data: [DONE]" in body
        if whole and b'"error"' not in body:
            return "complete", ""
        assert b"data: [DONE]" not in body, "an answer that broke must not look finished"
        return "cut", body[-200:].decode("utf-8", "replace")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), -1
    )
    return ("complete", "") if len(body) == length else ("cut", f"{len(body)} of {length} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chaos = Chaos(args.seconds, args.rate, args.seed)
    chaos.run()
    refused = [end for end in chaos.ends if end.kind == "refused"]
    slowest = max(end.seconds for end in chaos.ends)
    print(f"requests  {len(chaos.ends)}: {dict(chaos.kinds())}, slowest {slowest:.1f} s")
    print(f"faults    {sum(chaos.deeds.values())}: {dict(chaos.deeds)}")
    for end in refused[:10]:
        print(f"refused   {end.detail!r}")
    print("ledger and gauges are zero")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
