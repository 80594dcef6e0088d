"""Thousands of concurrent streams through one gateway process: errors, memory per idle stream, and CPU to hold them.

Streams begin over some seconds, all stay open together with one event a second each, and end. An idle stream is one
that waits for its next event. Each needs two open files in the gateway, one in the client and one in the stub.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.contenders import Contender, find_programs, start_exaserve, start_haproxy, wait_ready
from benchmarks.load import stream_plan
from benchmarks.machine import Child, cores, cpu_s, description, raise_file_limit, resident_mb, start_stub
from benchmarks.stub import MODEL
from exaserve.bench import BodyRenderer, Ending, LoadClient, LoadConfig

SETTLE_S = 2.0


async def hold(contender: Contender, stub: Child, *, streams: int, ramp_s: float, hold_s: float) -> dict[str, object]:
    """Open all streams, hold them, let them end; what it took."""
    assert contender.child is not None
    pid = contender.child.pid
    plan = stream_plan(streams, ramp_s, seed=1)
    client = LoadClient(
        LoadConfig(
            contender.urls,
            BodyRenderer(MODEL),
            inflight_max=streams,
            request_timeout_s=600.0,
            drain_s=ramp_s + hold_s + 120.0,
        ),
        plan,
    )
    memory_before = resident_mb(pid)
    run = asyncio.ensure_future(client.run())
    await asyncio.sleep(ramp_s + SETTLE_S)
    open_at_once, memory_during = client.progress().inflight, resident_mb(pid)
    cpu, events, began = cpu_s(pid), client.events, time.monotonic()
    await asyncio.sleep(hold_s)
    seconds = time.monotonic() - began
    used, received = cpu_s(pid) - cpu, client.events - events
    result = await run
    await asyncio.sleep(0.5)
    gaps = sorted(r.token_gap_s for r in result.records if r.token_gap_s is not None)
    return {
        "streams": streams,
        "open_at_once": open_at_once,
        "errors": sum(record.verdict is not Ending.OK for record in result.records),
        "error_words": sorted({record.error for record in result.records if record.error}),
        "first_token_p99_s": sorted(r.ttft_s for r in result.records if r.ttft_s is not None)[-max(1, streams // 100)],
        "mean_gap_s": sum(gaps) / len(gaps) if gaps else None,
        "memory_before_mb": memory_before,
        "memory_during_mb": memory_during,
        "memory_after_mb": resident_mb(pid),
        "kb_per_stream": (memory_during - memory_before) * 1e3 / max(1, open_at_once),
        "events_per_s": received / seconds,
        "cpu_share": used / seconds,
        "cpu_us_per_event": used / max(1, received) * 1e6,
        "stub_cpu_s": cpu_s(stub.pid),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--ramp-s", type=float, default=10.0, help="seconds over which the streams begin")
    parser.add_argument("--hold-s", type=float, default=10.0, help="seconds that all of them are open")
    parser.add_argument("--policy", default="entropy")
    parser.add_argument("--haproxy", action="store_true", help="measure HAProxy too")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "streams.json")
    options = parser.parse_args()
    files = raise_file_limit()
    if files < 2 * options.streams + 200:
        print(f"{options.streams} streams need {2 * options.streams + 200} open files; the limit is {files}")
        return 2
    core, other = cores()
    os.sched_setaffinity(0, {other})
    events = int(options.ramp_s + options.hold_s + SETTLE_S + 3.0)
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="exaserve-bench-") as name:
        directory = Path(name)
        stub, replicas = start_stub(other, directory, ports=options.replicas, gap_ms=1_000, events=events)
        children = [stub]
        try:
            contenders = [start_exaserve(options.policy, replicas, core, directory)]
            haproxy = find_programs(None, None, install=False).haproxy if options.haproxy else None
            if haproxy:
                contenders.append(start_haproxy(haproxy, "leastconn", replicas, core, directory))
            children += [contender.child for contender in contenders if contender.child]
            for contender in contenders:
                wait_ready(contender)
                rows[contender.name] = row = uvloop.run(
                    hold(contender, stub, streams=options.streams, ramp_s=options.ramp_s, hold_s=options.hold_s)
                )
                print(
                    f"{contender.name}: {row['open_at_once']:,} streams open at once, {row['errors']} errors, "
                    f"{row['kb_per_stream']:.1f} kB per stream "
                    f"({row['memory_before_mb']:.0f} → {row['memory_during_mb']:.0f} MB), "
                    f"{row['cpu_us_per_event']:.1f} µs CPU per event at {row['events_per_s']:,.0f} events/s"
                )
        finally:
            for child in reversed(children):
                child.stop()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": description(), "rows": rows}, indent=1) + "\n")
    return 1 if any(row["errors"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
