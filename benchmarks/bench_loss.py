"""How long a loss is noticed, and a return: agents, nodes, engines, peers, clients, Consul, each ended in earnest.

    python -m benchmarks.bench_loss [--rounds 10] [--only agents peers] [--check]

The gateway runs in this process, with the defaults of its settings, so that the instant at which a replica leaves or
enters rotation is seen to a millisecond. Agents, engines and peer gateways are processes and get signals: SIGKILL for
what dies, SIGSTOP for what falls silent (its connections stay open and say nothing). As root a node is also cut off at
a network link, in a namespace of its own. Requests that wait at an engine that dies must all be answered by others.
Consul's API is played by the tests' stand-in, whose TTL checks run out as the real one's.

All limits are those of the documentation; a time is the one from the deed to its effect, not an interval between polls.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import uvloop
from tests.agent.namespace import Unavailable, ip, linked
from tests.discovery.fake_consul import FakeConsul
from tests.ports import free_port, free_ports

from benchmarks.machine import ROOT, description, environment
from exaserve.config import Cluster, GatewaySettings, Pool, load_cluster
from exaserve.config.sources import ConsulSettings, DiscoverySettings
from exaserve.discovery.consul import ConsulRegistration
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.null import NullEngine
from exaserve.emulator.process import EmulatorProcess
from exaserve.gateway.app import Gateway
from exaserve.observe import null_log

LOOK_S = 0.001
PATIENCE_S = 60.0
SETTLED_S = 1.0
"""Between two deeds, so that each meets a system at rest, at another point of everybody's timers."""
WAITING = 16
"""Requests under way when an engine dies, a quarter of them there at least."""
TTL_S = 10.0
"""The default of a registration; at most 15 s may be asked for."""


@dataclass
class Case:
    """One kind of loss. ``limit_s`` None: no limit is promised."""

    what: str
    limit_s: float | None
    times_s: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        worst = max(self.times_s, default=0.0)
        return {
            "what": self.what,
            "rounds": len(self.times_s),
            "median_s": statistics.median(self.times_s) if self.times_s else None,
            "worst_s": worst,
            "limit_s": self.limit_s,
            "met": self.limit_s is None or worst <= self.limit_s,
        }


class Cases:
    def __init__(self) -> None:
        self.all: dict[str, Case] = {}
        self.notes: list[str] = []

    def add(self, what: str, limit_s: float | None, took_s: float) -> None:
        self.all.setdefault(what, Case(what, limit_s)).times_s.append(took_s)


async def until(condition: Callable[[], object], what: str) -> float:
    """The instant at which it has become true."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
        await asyncio.sleep(LOOK_S)
    return time.monotonic()


async def rest(rng: Random) -> None:
    await asyncio.sleep(SETTLED_S + rng.random())


class Process:
    """``exaserve …`` with its log, and the instants at which lines came."""

    def __init__(self, *words: str, before: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "exaserve", *words], stderr=subprocess.PIPE, text=True, env=environment()
        )
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line))

    def said(self, *words: str) -> list[float]:
        """When lines with all of these words came."""
        return [at for at, line in list(self.lines) if all(word in line for word in words)]

    def send(self, number: signal.Signals) -> float:
        at = time.monotonic()
        self.process.send_signal(number)
        return at

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.asynccontextmanager
async def gateway_of(cluster: Cluster, token: str | None = None) -> AsyncIterator[Gateway]:
    gateway = Gateway(cluster, log=null_log(), rng=Random(0), agent_token=token)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(0.0)


def eligible(gateway: Gateway, node: str = "") -> int:
    return sum(
        state.eligible and str(replica).startswith(node) for replica, state in gateway.scheduler.states().items()
    )


# ---- agents --------------------------------------------------------------------------------------------------------
async def agents(cases: Cases, rounds: int, rng: Random, folder: Path) -> None:
    """Two replicas on each of three nodes; all engines of a node are in its agent's process."""
    config = folder / "agents.yaml"
    nodes = ", ".join(f"{{name: {name}, address: 127.0.7{k}.1}}" for k, name in enumerate(("near", "far", "new")))
    config.write_text(
        f"{{model: m, engine: 'null', num_replicas_per_node: 2, base_port: {free_ports(2, neighbours=True)[0]}, "
        f"nodes: [{nodes}], agents: {{enabled: true, port: {free_port()}, state_dir: {folder}}}, "
        "gateway: {drain: 0s}}\n"
    )
    words = ("agent", "-c", str(config), "--node")
    started: list[Process] = []

    def start(node: str) -> Process:
        started.append(Process(*words, node))
        return started[-1]

    async def joined(gateway: Gateway, node: str) -> tuple[Process, float]:
        """Seconds from the last engine's being ready, as its agent's log says, to all being in rotation."""
        process = start(node)
        at = await until(lambda: eligible(gateway, node) == 2, f"{node} joins")
        await until(
            lambda: len(process.said("event=replica_state", "state=ready")) == 2, f"{node} says that it is ready"
        )
        return process, max(0.0, at - process.said("event=replica_state", "state=ready")[-1])

    async with gateway_of(unknown(load_cluster(config))) as gateway:
        try:
            await joined(gateway, "near")
            far, _ = await joined(gateway, "far")
            for _ in range(rounds):
                await rest(rng)
                at = far.send(signal.SIGSTOP)
                gone = await until(lambda: not eligible(gateway, "far"), "a silent agent is lost")
                cases.add("agent falls silent (SIGSTOP): out of rotation", 2.0, gone - at)
                await rest(rng)
                at = far.send(signal.SIGCONT)
                back = await until(lambda: eligible(gateway, "far") == 2, "it returns")
                cases.add("agent speaks again (SIGCONT): in rotation", 2.0, back - at)
                await rest(rng)
                at = far.send(signal.SIGKILL)
                gone = await until(lambda: not eligible(gateway, "far"), "a killed agent is lost")
                cases.add("agent killed (SIGKILL): out of rotation", 2.0, gone - at)
                far.stop()
                far, took_s = await joined(gateway, "far")
                cases.add("node returns after SIGKILL: engines ready to in rotation", 2.0, took_s)
                new, took_s = await joined(gateway, "new")
                cases.add("node joins: engines ready to in rotation", 0.5, took_s)
                new.stop()
                await until(lambda: not eligible(gateway, "new"), "it leaves")
        finally:
            for process in started:
                process.stop()


def unknown(cluster: Cluster) -> Cluster:
    """The gateway's own: ports that are free, and no replica but those that agents speak of."""
    gateway = msgspec.structs.replace(cluster.gateway, port=0, admin_port=0)
    return msgspec.structs.replace(cluster, gateway=gateway, pools=(), nodes=())


# ---- a network link ------------------------------------------------------------------------------------------------
async def link(cases: Cases, rounds: int, rng: Random, folder: Path) -> None:
    """A node in a network namespace, whose link is taken down: nobody is told anything."""
    name, net = f"loss{os.getpid() % 10_000}", f"10.214.{os.getpid() % 250}"
    try:
        with linked(name, net) as near:
            await cut(cases, rounds, rng, folder, name, net, near)
    except Unavailable as error:
        cases.notes.append(f"{error}: no link was cut")


async def cut(cases: Cases, rounds: int, rng: Random, folder: Path, name: str, net: str, near: str) -> None:
    token, config = folder / "token", folder / "link.yaml"
    token.write_text("the secret of the inside")
    config.write_text(
        f"{{model: m, engine: 'null', base_port: {free_port()}, nodes: [{{name: cut, address: {net}.2}}], "
        f"agents: {{enabled: true, host: {net}.1, port: {free_port()}, token_file: {token}, state_dir: {folder}}}, "
        "gateway: {drain: 0s}}\n"
    )
    async with gateway_of(unknown(load_cluster(config)), token.read_text()) as gateway:
        agent = Process("agent", "-c", str(config), "--node", "cut", before=("ip", "netns", "exec", name))
        try:
            for _ in range(rounds):
                await until(lambda: eligible(gateway), "the node is in rotation")
                await rest(rng)
                at = time.monotonic()
                ip("link", "set", near, "down")
                gone = await until(lambda: not eligible(gateway), "a node that is cut off is lost")
                cases.add("node cut off from the network: out of rotation", 2.0, gone - at)
                await rest(rng)
                ip("link", "set", near, "up")
                at = time.monotonic()
                back = await until(lambda: eligible(gateway), "it returns")
                cases.add("network there again: in rotation", 2.0, back - at)
        finally:
            agent.stop()


# ---- engines -------------------------------------------------------------------------------------------------------
async def engines(cases: Cases, rounds: int, rng: Random, folder: Path) -> None:
    """An engine's process dies while requests wait for their first byte there; its agent starts it again."""
    config = folder / "engines.yaml"
    config.write_text(
        f"{{model: Llama-3.1-8B, hardware: A100-80, num_replicas_per_node: 2, "
        f"base_port: {free_ports(2, neighbours=True)[0]}, nodes: [{{name: node, address: 127.0.0.1}}], "
        f"agents: {{enabled: true, port: {free_port()}, state_dir: {folder}, restarts_max: {10 * rounds}, "
        "backoff_max: 1s}, gateway: {drain: 0s}, health: {slow_start: 0s}}\n"
    )
    cluster = unknown(load_cluster(config))
    statuses: list[int] = []
    async with gateway_of(cluster) as gateway, httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
        body: dict[str, Any] = {"model": "Llama-3.1-8B", "max_tokens": 200, "ignore_eos": True}

        async def ask() -> int:
            # Begun like no other, so that none goes to the engine that has its prefix.
            body["prompt"] = f"{rng.random()} " + "word " * 50
            return (await client.post(f"{gateway.url}/v1/completions", json=body)).status_code

        def there() -> int:
            return gateway.scheduler.states()[ReplicaId("node/r0")].inflight

        agent = Process("agent", "-c", str(config), "--node", "node")
        try:
            for _ in range(rounds):
                await until(lambda: eligible(gateway) == 2, "both engines are in rotation")
                await rest(rng)
                pids = [re.search(r"replica=node/r0 .*pid (\d+)", line) for _, line in list(agent.lines)]
                pid = int([found[1] for found in pids if found][-1])
                asked = [asyncio.create_task(ask()) for _ in range(WAITING)]
                await until(lambda: there() >= WAITING // 4, "a quarter of the requests is at the engine")
                await asyncio.sleep(0.2)
                at = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                gone = await until(lambda: not eligible(gateway, "node/r0"), "a dead engine is out")
                cases.add("engine killed, requests waiting: out of rotation", None, gone - at)
                statuses += await asyncio.gather(*asked)
        finally:
            agent.stop()
    lost = len(statuses) - statuses.count(200)
    cases.notes.append(f"engine killed: {len(statuses)} requests were under way, {lost} failed")
    if lost:
        cases.add("requests that failed when an engine was killed", 0.0, float(lost))


# ---- peers ---------------------------------------------------------------------------------------------------------
async def peers(cases: Cases, rounds: int, rng: Random, folder: Path) -> None:
    """Another gateway, with placements of its own, dies or falls silent."""
    del folder
    with EmulatorProcess(EmulatorConfig(replicas=2, port=0, speed=0.1, served_model_names=("m",))) as emulator:
        mine, its, port = free_ports(3)
        settings = GatewaySettings(port=0, admin_port=0, drain_s=0.0, name="a", peer_listen=f"127.0.0.1:{mine}")
        async with gateway_of(Cluster(pools=(Pool(replicas=tuple(emulator.urls)),), gateway=settings)) as gateway:
            words = ["gateway", "--port", str(port), "--admin-port", "0", "--name", "b"]
            words += ["--peer-listen", f"127.0.0.1:{its}", "--peer", f"127.0.0.1:{mine}"]
            words += [word for url in emulator.urls for word in ("--replica", url)]
            for number in range(2 * rounds):
                peer = Process(*words)
                try:
                    writers = await held(gateway, peer, port)
                    await rest(rng)
                    if len(gateway.scheduler.peers) != 4:
                        raise RuntimeError("the peer's requests are over: nothing would be measured")
                    at = peer.send(signal.SIGSTOP if number % 2 else signal.SIGKILL)
                    gone = await until(lambda: len(gateway.scheduler.peers) == 0, "its placements are forgotten")
                    how = "falls silent (SIGSTOP)" if number % 2 else "killed (SIGKILL)"
                    cases.add(f"peer gateway {how}: its placements forgotten", 2.0, gone - at)
                    for writer in writers:
                        writer.transport.abort()
                finally:
                    peer.stop(signal.SIGKILL)


async def held(gateway: Gateway, peer: Process, port: int) -> list[asyncio.StreamWriter]:
    """Four requests are under way at the peer and told to this gateway. Returns their clients' connections."""
    await until(lambda: peer.said("event=ready") and gateway.peering is not None and gateway.peering.peers(), "a peer")
    body = json.dumps({"model": "m", "prompt": "word", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    writers = []
    for _ in range(4):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    await until(lambda: len(gateway.scheduler.peers) == 4, "the peer tells its placements")
    return writers


# ---- clients -------------------------------------------------------------------------------------------------------
async def clients(cases: Cases, rounds: int, rng: Random, folder: Path) -> None:
    """The client's connection ends, before the first byte or in mid-stream; the engine's must end too."""
    del folder
    closed: list[float] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"x-loss: " not in head:  # a probe
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            writer.close()
            return
        if b"x-loss: stream" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            writer.write(b"9\r\ndata: x\n\n\r\n")
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        closed.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cluster = Cluster(
        pools=(Pool(model="m", replicas=(url,)),), gateway=GatewaySettings(port=0, admin_port=0, drain_s=0.0)
    )
    async with gateway_of(cluster) as gateway:
        await until(lambda: eligible(gateway), "the engine is in rotation")
        host, _, port = gateway.url.removeprefix("http://").rpartition(":")
        for number in range(2 * rounds):
            phase = "stream" if number % 2 else "wait"
            body = json.dumps({"model": "m", "prompt": "x", "stream": True}).encode()
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-loss: {phase}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await until(lambda: gateway.data_plane.inflight() == 1, "the request is under way")
            await asyncio.sleep(0.1 + 0.2 * rng.random())
            closed.clear()
            at = time.monotonic()
            writer.transport.abort()
            await until(lambda: closed, "the engine is let go")
            what = "in mid-stream" if number % 2 else "before the first byte"
            cases.add(f"client gone {what}: engine's connection closed", 1.0, closed[0] - at)
    server.close()


# ---- Consul --------------------------------------------------------------------------------------------------------
async def consul(cases: Cases, rounds: int, rng: Random, folder: Path) -> None:
    """Without agents: an entry that turns critical, and one whose heart stops beating (all rounds at once)."""
    del folder
    port = free_port()
    specs = [
        ReplicaSpec(ReplicaId(f"n{k}/r0"), f"http://127.0.8{k // 100}.{k % 100 + 1}:{port}", ("m",))
        for k in range(rounds)
    ]
    null = [NullEngine("m", spec.url.removeprefix("http://").partition(":")[0], port) for spec in specs]
    async with FakeConsul() as server:
        discovery = DiscoverySettings(consul=ConsulSettings(service="llm", servers=(server.url,)))
        settings = GatewaySettings(port=0, admin_port=0, drain_s=0.0)
        own = [ConsulRegistration("llm", spec, server.url, ttl_s=TTL_S) for spec in specs]
        async with gateway_of(Cluster(gateway=settings, discovery=discovery)) as gateway:
            for engine in null:
                await engine.open()
            for each in own:
                await each.beat()
            await until(lambda: eligible(gateway) == rounds, "all entries are in rotation")
            for spec, each in zip(specs, own, strict=True):
                await asyncio.sleep(0.2 + 0.2 * rng.random())
                at = time.monotonic()
                server.set_status("llm", str(spec.id).replace("/", "-"), "critical")
                gone = await until(lambda spec=spec: spec.id not in gateway.scheduler.states(), "critical is out")  # type: ignore[misc]
                cases.add("Consul alone, check critical: out of rotation", 0.5, gone - at)
                await each.beat()
            await until(lambda: eligible(gateway) == rounds, "all entries are in rotation again")

            async def silent(spec: ReplicaSpec, each: ConsulRegistration) -> None:
                await asyncio.sleep(5.0 * rng.random())
                at = time.monotonic()
                await each.beat()
                gone = await until(lambda: spec.id not in gateway.scheduler.states(), "a TTL runs out")
                what = f"Consul alone, beat stops: out of rotation (TTL {TTL_S:g} s, and the answer)"
                cases.add(what, 15.0, gone - at)

            await asyncio.gather(*(silent(*each) for each in zip(specs, own, strict=True)))
        for registered in own:
            await registered.close()
        for engine in null:
            engine.close()


KINDS = {"agents": agents, "link": link, "engines": engines, "peers": peers, "clients": clients, "consul": consul}


def table(cases: Cases) -> str:
    lines = ["| event | rounds | median | worst | limit |", "|---|---|---|---|---|"]
    for case in cases.all.values():
        row = case.row()
        limit = "" if row["limit_s"] is None else f"{row['limit_s']:g} s, {'met' if row['met'] else 'MISSED'}"
        lines.append(f"| {case.what} | {row['rounds']} | {row['median_s']:.3f} s | {row['worst_s']:.3f} s | {limit} |")
    return "\n".join(lines)


async def measure(options: argparse.Namespace) -> Cases:
    cases, rng = Cases(), Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.only:
            print(f"{kind} …", file=sys.stderr, flush=True)
            await KINDS[kind](cases, options.rounds, rng, Path(folder))
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1, help="of the pauses between deeds")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is missed")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "loss.json")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    machine = description()
    cases = uvloop.run(measure(options))
    print(table(cases))
    for note in cases.notes:
        print(note)
    rows = [case.row() | {"times_s": case.times_s} for case in cases.all.values()]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": machine, "rows": rows, "notes": cases.notes}, indent=1) + "\n")
    met = all(row["met"] for row in rows)
    print("limits met" if met else "a limit is missed")
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
