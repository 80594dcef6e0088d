"""Several gateways over the same emulated replicas: what telling each other their placements is worth.

    python -m benchmarks.bench_peers [--gateways 8] [--replicas 16] [--share 0.8] [--seconds 40] [--rounds 2]

The same open-loop plan (reference mix, streamed) through one gateway, through several that do not know of each other,
and through several peers; requests go to the gateways in turn. Printed: P50 and P99 of the time to first token by
scenario.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from exaserve.bench import BodyRenderer, LoadClient, LoadConfig, Summary, make_plan, summarise
from exaserve.cli.capacity import replica_capacity_per_s
from exaserve.cli.demo_load import KINDS, MIX
from exaserve.config import EmulatorSettings, Pool
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess
from exaserve.workload import Arrivals

MODEL = "Llama-3.1-8B"
WARMUP_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--hardware", default="L4")
    parser.add_argument("--share", type=float, default=0.8, help="of the replicas' capacity")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    pool = Pool(model=MODEL, hardware=args.hardware, emulator=EmulatorSettings())
    rate = replica_capacity_per_s(pool, MIX) * args.replicas * args.share
    names = {
        "one gateway": (1, False),
        f"{args.gateways} that do not know of each other": (args.gateways, False),
        f"{args.gateways} peers": (args.gateways, True),
    }
    found: dict[str, list[Summary]] = {name: [] for name in names}
    for round_ in range(args.rounds):
        for name, (count, peers) in names.items():
            summary = measure(args, count, rate, args.seed + round_, peers=peers)
            found[name].append(summary)
            print(f"round {round_ + 1}, {name}: {_line(summary)}", flush=True)
    table = {name: _figures(each) for name, each in found.items()}
    print(
        f"\n{args.replicas} x {args.hardware}, {rate:.1f} requests/s ({args.share:.0%} of capacity), medians of rounds"
    )
    print(f"{'time to first token, s':36}" + "".join(f"{kind + ' P50':>14}{'P99':>8}" for kind in KINDS))
    for name, row in table.items():
        print(f"{name:36}" + "".join(f"{row[kind]['p50_s']:14.3f}{row[kind]['p99_s']:8.3f}" for kind in KINDS))
    if args.output is not None:
        written = {
            "command": "python -m benchmarks.bench_peers " + " ".join(sys.argv[1:]),
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "rate_per_s": rate,
            "table": table,
            "rounds": {name: [summary.as_dict() for summary in each] for name, each in found.items()},
        }
        args.output.write_text(json.dumps(written, indent=1) + "\n")


def measure(args: argparse.Namespace, gateways: int, rate: float, seed: int, *, peers: bool) -> Summary:
    config = EmulatorConfig(
        model=MODEL, served_model_names=("m",), hardware=args.hardware, replicas=args.replicas, port=0, seed=seed
    )
    plan = make_plan(MIX, Arrivals(rate_per_s=rate, duration_s=args.seconds), seed)
    with EmulatorProcess(config) as emulator, started(emulator.urls, gateways, peers=peers) as urls:
        load = LoadConfig(urls=urls, renderer=BodyRenderer("m"))
        result = uvloop.run(run(load, plan))
    return summarise(
        result.records,
        duration_s=args.seconds,
        window_s=5.0,
        warmup_s=WARMUP_S,
        scenarios=tuple(scenario.name for scenario, _ in MIX.parts),
    )


async def run(load: LoadConfig, plan: Any) -> Any:
    return await LoadClient(load, plan).run()


@contextlib.contextmanager
def started(replicas: list[str], count: int, *, peers: bool) -> Iterator[tuple[str, ...]]:
    """Gateways on free ports, ready and (as peers) connected."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3 * count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    named = [arg for url in replicas for arg in ("--replica", url)]
    told = [f"127.0.0.1:{port}" for port in ports[2 * count :]]
    processes = []
    folder = tempfile.TemporaryDirectory()
    try:
        for k in range(count):
            command = [sys.executable, "-m", "exaserve", "gateway", *named, "--port", str(ports[k])]
            command += ["--admin-port", str(ports[count + k]), "--log-level", "warning"]
            if peers:
                command += ["--name", f"g{k}", "--peer-listen", told[k]]
                command += [arg for each in told for arg in ("--peer", each)]
            with Path(folder.name, f"{k}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"}))
        end = time.monotonic() + 60
        while not all(ready(ports[count + k], len(replicas), count - 1 if peers else 0) for k in range(count)):
            if time.monotonic() > end:
                raise SystemExit("gateways did not get ready:\n" + Path(folder.name, "0.log").read_text())
            time.sleep(0.2)
        yield tuple(f"http://127.0.0.1:{port}" for port in ports[:count])
        if peers:
            rows = [peer for k in range(count) for peer in looked(ports[count + k])["peers"]["peers"]]
            lags, slow = [row["lag_s"] for row in rows], sum(row["slow"] for row in rows)
            print(
                f"  lag between peers: {1000 * median(lags):.1f} ms, at most {1000 * max(lags):.1f} ms; "
                f"{slow} of {len(rows)} links too slow to decide by",
                flush=True,
            )
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(15)
        folder.cleanup()


def looked(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/replicas", timeout=5) as answer:
        return json.load(answer)


def ready(port: int, replicas: int, peers: int) -> bool:
    try:
        data = looked(port)
    except OSError:
        return False
    connected = data["peers"]["connected"] if data["peers"] else 0
    return sum(row["eligible"] for row in data["replicas"]) == replicas and connected == peers


def _figures(summaries: list[Summary]) -> dict[str, dict[str, float]]:
    return {
        kind: {
            "p50_s": median(each.scenarios[k].ttft.p50 for each in summaries),
            "p99_s": median(each.scenarios[k].ttft.p99 for each in summaries),
        }
        for k, kind in enumerate(KINDS)
    }


def _line(summary: Summary) -> str:
    parts = [f"{kind} {s.ttft.p50:.3f}/{s.ttft.p99:.3f} s" for kind, s in zip(KINDS, summary.scenarios, strict=True)]
    return f"{', '.join(parts)}; {summary.all.failed + summary.all.cut} failed of {summary.all.requests}"


if __name__ == "__main__":
    main()
