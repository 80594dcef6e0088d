"""The gateway against HAProxy and vllm-router: CPU per request and event, added latency, throughput, memory.

Every contender runs on the same core, in front of the same replicas (a stub of negligible cost, which with the client
has the other core), and is measured in turn, round after round, so that what else the machine does hits all alike.
Figures are medians over the rounds. Writes a JSON and prints a table; README.md says how to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import uvloop

from benchmarks.contenders import (
    Contender,
    find_programs,
    start_exaserve,
    start_haproxy,
    start_vllm_router,
    wait_ready,
)
from benchmarks.load import Accounts, Sample, plain_at_rate, plain_flat_out, streams_at_once
from benchmarks.machine import Child, cores, cpu_s, description, raise_file_limit, resident_mb, start_stub

RAMP_S = 1.0
BUSY_MAX = 0.9
"""Stub and client together above this share of their core are the limit, and the figure is theirs."""

TARGETS = (
    ("CPU per plain request against HAProxy", "plain", "HAProxy leastconn", 1.5),
    ("CPU per plain request against vllm-router round robin", "plain", "vllm-router round_robin", 0.6),
    ("CPU per streamed event against HAProxy", "stream", "HAProxy leastconn", 1.3),
    ("CPU per plain request, closed loop, against HAProxy", "flat_out", "HAProxy leastconn", 1.5),
    ("CPU per plain request, closed loop, against vllm-router round robin", "flat_out", "vllm-router round_robin", 0.6),
)
"""What is compared, of which measurement, with whom, and the ratio that is the target."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rate", type=float, default=4_000.0, help="plain requests per second (default %(default)g)")
    parser.add_argument("--plain-s", type=float, default=3.0, help="seconds of plain requests per round")
    parser.add_argument("--connections", type=int, default=64, help="connections of the closed loop")
    parser.add_argument(
        "--flat-out-s", type=float, default=2.0, help="seconds of closed loop per round, 0 leaves it out"
    )
    parser.add_argument("--streams", type=int, default=300, help="concurrent streams (default %(default)d)")
    parser.add_argument("--gap-ms", type=int, default=20, help="between the events of one stream")
    parser.add_argument(
        "--stream-s", type=float, default=4.0, help="measured seconds of streaming per round, 0 leaves it out"
    )
    parser.add_argument(
        "--policies", default="entropy", help="of our gateway, separated by commas; empty leaves it out"
    )
    parser.add_argument("--only", default="", help="contenders whose names contain one of these words, comma-separated")
    parser.add_argument("--haproxy", help="program; else $HAPROXY, else PATH")
    parser.add_argument("--vllm-router", help="program; else $VLLM_ROUTER, else PATH, else installed into .venv-peers")
    parser.add_argument("--no-install", action="store_true", help="leave vllm-router out rather than install it")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "gateway.json")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    return parser.parse_args()


def begin(options: argparse.Namespace, replicas: list[str], core: int, directory: Path) -> list[Contender]:
    """Start every contender that is there and wait until it answers; those that do not are named and left out."""
    programs = find_programs(options.haproxy, options.vllm_router, install=not options.no_install)
    starters: list[tuple[str, Callable[[], Contender]]] = [("direct", lambda: Contender("direct", tuple(replicas)))]
    if programs.haproxy:
        haproxy = programs.haproxy
        starters += [
            (f"HAProxy {balance}", lambda b=balance: start_haproxy(haproxy, b, replicas, core, directory))  # type: ignore[misc]
            for balance in ("leastconn",)
        ]
    else:
        print("HAProxy is not installed and is left out (Debian: apt-get install haproxy).")
    if programs.vllm_router:
        router = programs.vllm_router
        starters += [
            (f"vllm-router {policy}", lambda p=policy: start_vllm_router(router, p, replicas, core, directory))  # type: ignore[misc]
            for policy in ("round_robin", "power_of_two")
        ]
    else:
        print("vllm-router was not found and is left out.")
    starters += [
        (f"exaserve {policy}", lambda p=policy: start_exaserve(p, replicas, core, directory))  # type: ignore[misc]
        for policy in options.policies.split(",")
        if policy
    ]
    words = [word for word in options.only.split(",") if word]
    contenders = []
    for name, starter in starters:
        if words and name != "direct" and not any(word in name for word in words):
            continue
        contender = starter()
        try:
            wait_ready(contender)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            if contender.child:
                contender.child.stop()
            continue
        contenders.append(contender)
    return contenders


def accounts_of(contender: Contender, stub: Child) -> Accounts:
    child = contender.child
    return lambda: (cpu_s(child.pid) if child else 0.0, cpu_s(stub.pid))


async def idle(contenders: list[Contender], seconds: float) -> dict[str, float]:
    """CPU seconds per second that each uses with no request in flight (telemetry, probes, timers)."""
    watched = [(contender.name, contender.child.pid) for contender in contenders if contender.child]
    before = {name: cpu_s(pid) for name, pid in watched}
    began = time.monotonic()
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - began
    return {name: (cpu_s(pid) - before[name]) / elapsed for name, pid in watched}


Measure = Callable[[Contender, Accounts, int], Awaitable[Sample]]


def measurements(options: argparse.Namespace, directory: Path) -> dict[str, Measure]:
    async def plain(contender: Contender, accounts: Accounts, seed: int) -> Sample:
        return await plain_at_rate(
            contender.urls, accounts, rate_per_s=options.rate, duration_s=options.plain_s, seed=seed
        )

    async def flat_out(contender: Contender, accounts: Accounts, seed: int) -> Sample:
        return await plain_flat_out(
            contender.urls,
            accounts,
            connections=options.connections,
            duration_s=options.flat_out_s,
            seed=seed,
            directory=directory,
        )

    async def stream(contender: Contender, accounts: Accounts, seed: int) -> Sample:
        return await streams_at_once(
            contender.urls, accounts, streams=options.streams, ramp_s=RAMP_S, window_s=options.stream_s, seed=seed
        )

    chosen: dict[str, Measure] = {"plain": plain}
    if options.flat_out_s > 0:
        chosen["flat_out"] = flat_out
    if options.stream_s > 0:
        chosen["stream"] = stream
    return chosen


def progress(line: str) -> None:
    """Where the run stands, on a terminal only; an empty line ends it."""
    if sys.stderr.isatty():
        print(f"\r{line:<70}" if line else f"\r{'':<70}\r", end="", file=sys.stderr, flush=True)


async def measure(
    options: argparse.Namespace, contenders: list[Contender], stub: Child, directory: Path
) -> tuple[dict[str, dict[str, list[Sample]]], dict[str, float]]:
    """All rounds; samples by contender and measurement, and idle CPU by contender."""
    kinds = measurements(options, directory)
    samples: dict[str, dict[str, list[Sample]]] = {c.name: {kind: [] for kind in kinds} for c in contenders}
    for contender in contenders:  # warm-up: connections, caches, learned ratios
        await plain_at_rate(
            contender.urls, accounts_of(contender, stub), rate_per_s=min(1000.0, options.rate), duration_s=1.0, seed=0
        )
    quiet = await idle(contenders, 2.0)
    total = options.rounds * len(contenders)
    for number in range(options.rounds):
        turn = number % len(contenders)
        for place, contender in enumerate(contenders[turn:] + contenders[:turn]):
            done = number * len(contenders) + place
            progress(f"[{done + 1}/{total}] round {number + 1}: {contender.name}")
            for kind, run in kinds.items():
                samples[contender.name][kind].append(await run(contender, accounts_of(contender, stub), number))
    progress("")
    return samples, quiet


def median(samples: list[Sample], value: Callable[[Sample], float]) -> float:
    return statistics.median(value(sample) for sample in samples) if samples else 0.0


def summary(
    contenders: list[Contender], samples: dict[str, dict[str, list[Sample]]], quiet: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by contender; latencies are what the contender adds to the direct path's."""
    direct = samples["direct"]
    rows: dict[str, dict[str, float]] = {}
    for contender in contenders:
        mine = samples[contender.name]
        plain, flat, stream = mine["plain"], mine.get("flat_out", []), mine.get("stream", [])
        rows[contender.name] = {
            "plain_us": median(plain, lambda s: s.proxy_us),
            "flat_out_us": median(flat, lambda s: s.proxy_us),
            "stream_us": median(stream, lambda s: s.proxy_us),
            "flat_out_per_s": median(flat, lambda s: s.rate),
            "flat_out_proxy_busy": median(flat, lambda s: s.proxy_busy),
            "added_p50_ms": (median(plain, lambda s: s.p50_s) - median(direct["plain"], lambda s: s.p50_s)) * 1e3,
            "added_p99_ms": (median(plain, lambda s: s.p99_s) - median(direct["plain"], lambda s: s.p99_s)) * 1e3,
            "events_per_s": median(stream, lambda s: s.rate),
            "plain_load_busy": median(plain, lambda s: s.load_busy),
            "stream_load_busy": median(stream, lambda s: s.load_busy),
            "resident_mb": resident_mb(contender.child.pid) if contender.child else 0.0,
            "idle_cpu": quiet.get(contender.name, 0.0),
            "errors": float(sum(sample.errors for kind in mine.values() for sample in kind)),
        }
    return rows


def ratios(samples: dict[str, dict[str, list[Sample]]]) -> list[dict[str, object]]:
    """The targets. A ratio is the median over rounds of the round's own ratio, since both saw the same machine then."""
    rows: list[dict[str, object]] = []
    for name, taken in samples.items():
        if not name.startswith("exaserve"):
            continue
        for what, kind, peer, target in TARGETS:
            theirs, mine = samples.get(peer, {}).get(kind, []), taken.get(kind, [])
            if theirs and mine:
                each = [a.proxy_us / b.proxy_us for a, b in zip(mine, theirs, strict=True) if b.proxy_us > 0]
                if not each:
                    continue
                ratio = statistics.median(each)
                rows.append(
                    {
                        "who": name,
                        "what": what,
                        "ratio": ratio,
                        "ratio_of_least": min(a.proxy_us for a in mine) / min(b.proxy_us for b in theirs),
                        "target": target,
                        "met": ratio <= target,
                        "rounds": each,
                    }
                )
    return rows


def limits(rows: dict[str, dict[str, float]]) -> list[str]:
    """Where stub or client, and not the contender, set the figure."""
    found = []
    for name, row in rows.items():
        found += [
            f"{name}: stub and client used {row[f'{kind}_load_busy']:.0%} of their core ({kind})"
            for kind in ("plain", "stream")
            if row[f"{kind}_load_busy"] > BUSY_MAX
        ]
        if name != "direct" and row["flat_out_per_s"] and row["flat_out_proxy_busy"] < BUSY_MAX:
            found.append(
                f"{name}: throughput is a lower bound: its core was {row['flat_out_proxy_busy']:.0%} its own "
                "(stub, client or other work on the machine was the limit)"
            )
        if row["errors"]:
            found.append(f"{name}: {row['errors']:.0f} requests failed")
    return found


def show(rows: dict[str, dict[str, float]], verdicts: list[dict[str, object]], notes: list[str]) -> None:
    head = (
        "",
        "µs CPU/request",
        "(closed loop)",
        "µs CPU/event",
        "requests/s",
        "added P50 ms",
        "added P99 ms",
        "MB",
        "idle %",
    )
    print(f"{head[0]:<26}" + "".join(f"{title:>16}" for title in head[1:]))
    for name, row in rows.items():
        direct = name == "direct"
        cells = [
            "-" if direct else f"{row['plain_us']:.1f}",
            "-" if direct else f"{row['flat_out_us']:.1f}",
            "-" if direct else f"{row['stream_us']:.1f}",
            f"{row['flat_out_per_s']:,.0f}",
            "-" if direct else f"{row['added_p50_ms']:.2f}",
            "-" if direct else f"{row['added_p99_ms']:.2f}",
            "-" if direct else f"{row['resident_mb']:.0f}",
            "-" if direct else f"{row['idle_cpu'] * 100:.1f}",
        ]
        print(f"{name:<26}" + "".join(f"{cell:>16}" for cell in cells))
    for verdict in verdicts:
        mark = "met" if verdict["met"] else "MISSED"
        print(
            f"{verdict['who']}: {verdict['what']}: {verdict['ratio']:.2f} "
            f"(least disturbed rounds: {verdict['ratio_of_least']:.2f}; target ≤ {verdict['target']}) {mark}"
        )
    for note in notes:
        print(f"note: {note}")


def main() -> int:
    options = arguments()
    raise_file_limit()
    core, other = cores()
    if core == other:
        print("note: only one core: stub and client share it with what is measured, so latencies mean little.")
    os.sched_setaffinity(0, {other})
    events = int((RAMP_S * 2 + options.stream_s + 1.5) * 1000 / options.gap_ms)
    with tempfile.TemporaryDirectory(prefix="exaserve-bench-") as name:
        directory = Path(name)
        stub, replicas = start_stub(other, directory, ports=options.replicas, gap_ms=options.gap_ms, events=events)
        contenders: list[Contender] = []
        try:
            contenders = begin(options, replicas, core, directory)
            samples, quiet = uvloop.run(measure(options, contenders, stub, directory))
            rows = summary(contenders, samples, quiet)
        finally:
            for child in [c.child for c in contenders if c.child] + [stub]:
                child.stop()
    verdicts, notes = ratios(samples), limits(rows)
    show(rows, verdicts, notes)
    result = {
        "machine": description(),
        "options": {
            key: str(value) for key, value in vars(options).items() if key not in {"output", "haproxy", "vllm_router"}
        },
        "versions": {contender.name: contender.version for contender in contenders},
        "median": rows,
        "ratios": verdicts,
        "notes": notes,
        "samples": {who: {k: [asdict(s) for s in v] for k, v in kinds.items()} for who, kinds in samples.items()},
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {os.path.relpath(options.output)}")
    return 1 if options.check and not all(verdict["met"] for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
