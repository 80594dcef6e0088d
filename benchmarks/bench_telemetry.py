"""What telemetry costs one gateway: 3,072 replicas pushed by 256 agents, and 48 real expositions polled, at 200 ms.

    python -m benchmarks.bench_telemetry [--check]

The agents are played by one process that speaks their protocol over 256 connections. *idle*: no figure changes, one bit
for each replica. *mixed*: a quarter of the replicas change. *busy*: every figure of every replica changes in every
interval. CPU is the gateway's own, from the kernel's accounts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import uvloop

from benchmarks.machine import (
    ROOT,
    Child,
    cores,
    cpu_s,
    description,
    free_port,
    raise_file_limit,
    resident_mb,
    start,
    start_stub,
)
from exaserve.domain.replica import ReplicaId, Report
from exaserve.wire import AgentReplicaState, AgentReport, FrameKind, WireLink, encode, encode_batch
from exaserve.wire.batch import pack_record

INTERVAL_S = 0.2
PUSH_LIMIT_CORES, POLL_LIMIT_CORES = 0.3, 0.25
SHARES = {"idle": 0.0, "mixed": 0.25, "busy": 1.0}


class Agent(asyncio.Protocol):
    """One agent's connection, as the gateway sees it."""

    def __init__(self, node: str, replicas: int, share: float) -> None:
        self.node, self.replicas, self.share = node, replicas, share
        self.ids = [ReplicaId(f"{node}/r{index}") for index in range(replicas)]
        self.link = WireLink("agent", node, secrets.token_bytes(16), b"t" * 32)
        self.seq = 0
        self.bodies: list[bytes] = []
        self.bytes = 0
        self.told = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.link.to_send())

    def data_received(self, data: bytes) -> None:
        for _frame in self.link.receive(data):
            pass
        if out := self.link.to_send():
            self.transport.write(out)
        if self.link.established and not self.told:
            self.told = True
            number = int(self.node[4:])
            states = tuple(
                AgentReplicaState(
                    index=index,
                    id=replica,
                    url=f"http://127.{number >> 8}.{number & 255}.1:{18001 + index}",
                    models=("null-model",),
                    engine="vllm",
                    state="ready",
                    ready=True,
                    reason="answers in time",
                )
                for index, replica in enumerate(self.ids)
            )
            self.send(FrameKind.REPORT, encode(AgentReport(full=True, replicas=states)))
            self.batch(whole=True)

    def send(self, kind: FrameKind, payload: bytes) -> None:
        data = self.link.frame(kind, payload)
        self.bytes += len(data)
        self.transport.write(data)

    def batch(self, *, whole: bool = False) -> None:
        if not self.told or self.transport.is_closing():
            return
        self.seq += 1
        body = batch_body(self.replicas, 1.0, 0) if whole else self.bodies[self.seq % len(self.bodies)]
        self.send(FrameKind.BATCH, self.seq.to_bytes(4, "little") + body)


def batch_body(replicas: int, share: float, k: int) -> bytes:
    """A batch without its number: made beforehand, so that the player is never what is late."""
    changed = round(replicas * share)
    records = [
        pack_record(
            index,
            Report(
                ReplicaId(""), 0, 0.0, 20 + (k + index) % 9, (k + index) % 3, 0.3 + (k % 50) / 100, 449_440,
                float(k), 10.0 * k, 20.0 * k, 300.0 * k, 400.0 * k, 12.5, 850.0 + k, 120.0, None,
            ),
            4.0,
        )
        for index in range(changed)
    ]  # fmt: skip
    return encode_batch(0, replicas, records, range(changed, replicas), 4.0)[4:]


async def play(port: int, nodes: int, replicas: int, share: float) -> None:
    """Plays the agents until cancelled; ticks are spread over the interval as real agents' are."""
    loop = asyncio.get_running_loop()
    agents = [Agent(f"node{number}", replicas, share) for number in range(1, nodes + 1)]
    # Counters that fall would read as a restart: after the last body comes the first only once in 200 s.
    bodies = [batch_body(replicas, share, k) for k in range(1, 1001)]
    for each in agents:
        each.bodies = bodies

    async def connect() -> None:
        for each in agents:
            await loop.create_connection(lambda each=each: each, "127.0.0.1", port)  # type: ignore[misc]

    connecting = loop.create_task(connect())
    began = loop.time()
    for tick in range(1_000_000):
        for index, each in enumerate(agents):
            due = began + INTERVAL_S * (tick + index / nodes)
            if index % 8 == 0 and (wait_s := due - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            each.batch()
        if connecting.done():
            connecting.result()


def measure(gateway: Child, window_s: float) -> tuple[float, float]:
    """Cores that the gateway used over the window, and its memory, MB."""
    before, began = cpu_s(gateway.pid), time.monotonic()
    time.sleep(window_s)
    return (cpu_s(gateway.pid) - before) / (time.monotonic() - began), resident_mb(gateway.pid)


def until(condition: object, what: str, timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.1)


def pushed(name: str, nodes: int, replicas: int, window_s: float, directory: Path) -> dict[str, object]:
    """One gateway and all agents at one share of change."""
    mine, other = cores()
    port, admin, agents_port = free_port(), free_port(), free_port()
    token = directory / "token"
    token.write_text("t" * 32)
    config = directory / "cluster.yaml"
    config.write_text(
        f"model: null-model\nengine: 'null'\nnodes: {nodes}\nnum_replicas_per_node: {replicas}\nbase_port: 18001\n"
        f"gateway: {{port: {port}, admin_port: {admin}}}\n"
        # There are no engines behind these agents, so nothing may be probed from the gateway.
        "health: {probe_told: 1h}\n"
        f"agents: {{enabled: true, port: {agents_port}, token_file: {token}}}\n"
    )
    gateway = start(
        f"gateway {name}", [sys.executable, "-m", "exaserve", "gateway", "-c", str(config)], mine, directory
    )
    feeder = None
    try:
        until(lambda: _answers(admin), "the gateway's start")
        command = [sys.executable, "-m", "benchmarks.bench_telemetry", "--play", str(agents_port), str(nodes)]
        feeder = start(f"agents {name}", [*command, str(replicas), str(SHARES[name])], other, directory)
        until(lambda: _nodes(admin)["ready"] == nodes * replicas, "all replicas ready")
        time.sleep(2.0)
        before, began = _nodes(admin), time.monotonic()
        used, memory = measure(gateway, window_s)
        after = _nodes(admin)
        took_s = time.monotonic() - began
    finally:
        if feeder is not None:
            feeder.stop()
        gateway.stop()
    batches = (after["batches"] - before["batches"]) / took_s
    reports = (after["reports"] - before["reports"]) / took_s
    return {
        "cores": used,
        "memory_mb": memory,
        "batches_per_s": batches,
        "changed_reports_per_s": reports,
        "us_per_batch": used / batches * 1e6 if batches else None,
        "mb_per_s": (after["bytes"] - before["bytes"]) / took_s / 1e6,
    }


def polled(replicas: int, window_s: float, directory: Path) -> dict[str, object]:
    """One gateway that polls expositions of vLLM's own size."""
    mine, other = cores()
    port, admin = free_port(), free_port()
    stub, urls = start_stub(other, directory, ports=replicas, gap_ms=10, events=4)
    command = [sys.executable, "-m", "exaserve", "gateway", "--port", str(port), "--admin-port", str(admin)]
    gateway = start("gateway polling", [*command, *(f"--replica={url}" for url in urls)], mine, directory)
    try:
        until(lambda: _answers(admin), "the gateway's start")
        time.sleep(3.0)
        used, memory = measure(gateway, window_s)
    finally:
        gateway.stop()
        stub.stop()
    return {"cores": used, "memory_mb": memory, "polls_per_s": replicas / INTERVAL_S}


def _answers(admin: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{admin}/health", timeout=1.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _nodes(admin: int) -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"http://127.0.0.1:{admin}/nodes", timeout=30.0, trust_env=False).json()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--replicas", type=int, default=12, help="on each node")
    parser.add_argument("--polled", type=int, default=48, help="replicas that are polled")
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "telemetry.json")
    parser.add_argument("--play", nargs=4, metavar=("PORT", "NODES", "REPLICAS", "SHARE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    raise_file_limit()
    if options.play:
        port, nodes, replicas, share = options.play
        uvloop.run(play(int(port), int(nodes), int(replicas), float(share)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    rows: dict[str, dict[str, object]] = {}
    total = options.nodes * options.replicas
    print(f"{'':34} {'cores':>7} {'limit':>6} {'MB':>6}   detail")
    for name in SHARES:
        with tempfile.TemporaryDirectory() as directory:
            row = rows[name] = pushed(name, options.nodes, options.replicas, options.window_s, Path(directory))
        print(
            f"push, {total:,} replicas, {name:<14} {row['cores']:7.3f} {PUSH_LIMIT_CORES:6.2f} "
            f"{row['memory_mb']:6.0f}   "
            f"{row['batches_per_s']:,.0f} batches/s, {row['changed_reports_per_s']:,.0f} changed reports/s, "
            f"{row['us_per_batch']:.0f} µs/batch, {row['mb_per_s']:.2f} MB/s"
        )
    with tempfile.TemporaryDirectory() as directory:
        row = rows["polling"] = polled(options.polled, options.window_s, Path(directory))
    print(
        f"poll, {options.polled} expositions of 50 kB     {row['cores']:7.3f} {POLL_LIMIT_CORES:6.2f} "
        f"{row['memory_mb']:6.0f}   {row['polls_per_s']:,.0f} polls/s"
    )
    machine = description()
    busy = float(str(machine["load_average"]))
    if busy > (machine["cores"] or 1) * 0.75:  # type: ignore[operator]
        print(f"load average {busy:.1f}: this machine does other work, so these figures are upper bounds")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    good = all(float(str(rows[name]["cores"])) <= PUSH_LIMIT_CORES for name in SHARES)
    good = good and float(str(rows["polling"]["cores"])) <= POLL_LIMIT_CORES
    print("targets met" if good else "a target is missed")
    return 0 if good or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
