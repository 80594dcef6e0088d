"""Whose clients wait least: ours, vllm-router and HAProxy in front of the same emulated replicas, under the same load.

    python -m benchmarks.bench_policies_live [--load 0.8] [--seconds 90] [--rounds 3] [--only exaserve,HAProxy]

The open-loop mix of short, long and very long prompts (A, B, C: 65/30/5 %), streamed. Each contender is started afresh
for each of its runs, with its defaults; in a round all get the same requests at the same instants, rounds have seeds of
their own, and the order rotates. Figures are medians of the rounds. Below stand the simulator's figures for the same
requests: with an oracle, which knows every engine, nobody's clients could wait less.

Every request has a session of its own (``x-session-id``): without one, vllm-router's policies that go by sessions send
everything to one replica. With ``--sessions N --shared 0.7`` there are N of them, and the first 70 % of a session's
prompts are alike in each scenario, so that a replica that had one has most of the next in its cache. vllm-router is
asked with every policy that works without engines that publish KV events.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks.contenders import (
    Contender,
    Programs,
    find_programs,
    start_exaserve,
    start_haproxy,
    start_vllm_router,
    wait_ready,
)
from benchmarks.live import Conditions, Watch, as_dicts, together, undisturbed
from benchmarks.machine import description, raise_file_limit
from benchmarks.stub import MODEL
from exaserve.bench import LoadConfig, LoadResult, Summary, summarise
from exaserve.bench.workers import run_load
from exaserve.config import Cluster, load_cluster
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess
from exaserve.simulate.demand import demand
from exaserve.simulate.record import RunStats
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import Simulation
from exaserve.simulate.units import replica_capacity_per_s, units_of
from exaserve.workload import REFERENCE_MIX, Arrivals, BodyRenderer, LoadPlan, Sessions, make_plan

CLUSTER = Path(__file__).parent / "clusters" / "sixteen-units.yaml"
MIX = REFERENCE_MIX
NAMES = tuple(scenario.name for scenario in MIX.scenarios)
ALL = (*NAMES, "all")
WARMUP_S = 10.0
WINDOW_S = 5.0
REST_S = 3.0
OURS = "exaserve entropy"
ROUTER_POLICIES = ("round_robin", "random", "power_of_two", "cache_aware", "consistent_hash", "sticky_least_loaded")
SIMULATED = ("oracle", "entropy", "least_connections", "round_robin")

Start = Callable[[list[str], Path], Contender]
Row = dict[str, Any]


def contenders(programs: Programs, only: Sequence[str]) -> dict[str, Start]:
    """How each one is started in front of some replicas. RuntimeError for a peer that is not installed."""
    made: dict[str, Start] = {
        OURS: lambda urls, folder: start_exaserve("entropy", urls, None, folder),
        "exaserve least_connections": lambda urls, folder: start_exaserve("least_connections", urls, None, folder),
    }
    if programs.haproxy is not None:
        for balance in ("leastconn", "roundrobin"):
            made[f"HAProxy {balance}"] = partial(_haproxy, programs.haproxy, balance)
    if programs.vllm_router is not None:
        for policy in ROUTER_POLICIES:
            made[f"vllm-router {policy}"] = partial(_router, programs.vllm_router, policy)
    return {name: start for name, start in made.items() if not only or any(name.startswith(o) for o in only)}


def _haproxy(program: str, balance: str, urls: list[str], folder: Path) -> Contender:
    return start_haproxy(program, balance, urls, None, folder)


def _router(program: str, policy: str, urls: list[str], folder: Path) -> Contender:
    return start_vllm_router(program, policy, urls, None, folder)


def planned(args: argparse.Namespace, rate: float, seed: int) -> LoadPlan:
    """A round's requests, in sessions that share prefixes where asked for, else each in a session of its own."""
    plan = make_plan(MIX, Arrivals(rate, args.seconds), seed, sessions_of(args))
    if args.sessions:
        return plan
    requests = tuple(dataclasses.replace(request, session=request.index) for request in plan.requests)
    return dataclasses.replace(plan, requests=requests)


def sessions_of(args: argparse.Namespace) -> Sessions | None:
    return Sessions(args.sessions, args.shared) if args.sessions else None


# -- one run --------------------------------------------------------------------------------------------------------
def measure(start: Start, config: EmulatorConfig, plan: LoadPlan) -> tuple[Summary, Conditions]:
    """One plan through one contender in front of fresh replicas."""
    with tempfile.TemporaryDirectory() as folder, EmulatorProcess(config) as replicas, contextlib.ExitStack() as stack:
        contender = start(replicas.urls, Path(folder))
        assert contender.child is not None
        stack.callback(contender.child.stop)
        wait_ready(contender)
        time.sleep(REST_S)
        watch = Watch({"replicas": [replicas.pid], "gateway": [contender.child.pid]})
        result = uvloop.run(run_load(LoadConfig(urls=contender.urls, renderer=BodyRenderer(MODEL)), plan, processes=1))
        conditions = watch.conditions(result)
    return _summary(result, plan), conditions


def _summary(result: LoadResult, plan: LoadPlan) -> Summary:
    return summarise(
        result.records, duration_s=plan.duration_s, window_s=WINDOW_S, warmup_s=WARMUP_S, scenarios=plan.scenarios
    )


def row_of(summary: Summary) -> Row:
    """Seconds to first token and what went wrong."""
    row: Row = {s.name: {"p50_s": s.ttft.p50, "p99_s": s.ttft.p99} for s in (*summary.scenarios, summary.all)}
    row["windows_std_s"] = summary.windows.stdev_s
    row["errors"] = summary.all.failed + summary.all.cut
    row["requests"] = summary.all.requests
    return row


def simulated(cluster: Cluster, args: argparse.Namespace, policy: str, rate: float, seed: int) -> Row:
    wanted = demand(MIX, rate, args.seconds, seed, sessions=sessions_of(args))
    settings = SimSettings(seed=seed, hop_s=args.hop_ms / 1000.0, warmup_s=WARMUP_S, window_s=WINDOW_S)
    stats: RunStats = Simulation(cluster, units_of(cluster, args.replicas), wanted, settings, policy).run()
    row: Row = {f.name: {"p50_s": f.ttft_p50, "p99_s": f.ttft_p99} for f in stats.scenarios}
    row["windows_std_s"] = stats.windows_std
    row["errors"] = stats.all.failed
    row["requests"] = stats.all.requests
    return row


# -- the comparison -------------------------------------------------------------------------------------------------
def compare(args: argparse.Namespace, cluster: Cluster, rate: float) -> dict[str, Any]:
    programs = find_programs(args.haproxy, args.vllm_router, install=not args.no_install)
    started = contenders(programs, [name for name in args.only.split(",") if name])
    config = emulator_config(cluster, args.replicas, args.seed)
    rows: dict[str, list[Row]] = {name: [] for name in started}
    found: dict[str, list[Conditions]] = {name: [] for name in started}
    for number in range(args.rounds):
        plan = planned(args, rate, args.seed + number)
        names = list(started)
        turn = number * max(1, len(names) // max(1, args.rounds)) % len(names)
        for name in names[turn:] + names[:turn]:
            summary, conditions = undisturbed(partial(measure, started[name], config, plan), args.tries, args.wait_s)
            rows[name].append(row_of(summary))
            found[name].append(conditions)
            print(f"seed {plan.seed}, {name}: {line(rows[name][-1])}; {conditions}", flush=True)
    floor = {
        policy: [simulated(cluster, args, policy, rate, args.seed + number) for number in range(args.rounds)]
        for policy in SIMULATED
    }
    return {
        "live": {name: medians(each) for name, each in rows.items()},
        "simulated": {name: medians(each) for name, each in floor.items()},
        "rounds": rows,
        "conditions": {name: as_dicts(each) for name, each in found.items()},
        "text": together([each for many in found.values() for each in many]),
    }


def emulator_config(cluster: Cluster, replicas: int, seed: int) -> EmulatorConfig:
    """The cluster's replicas in one process, each on a free port."""
    pool = cluster.pools[0]
    return EmulatorConfig(
        model=pool.model,
        served_model_names=(MODEL,),
        replicas=replicas,
        port=0,
        hardware=pool.hardware,
        precision=pool.precision,
        tp=pool.tensor_parallel_size,
        pp=pool.pipeline_parallel_size,
        seed=seed,
        token_budget=pool.emulator.token_budget,
        block_size=pool.emulator.block_size,
    )


def medians(rows: Sequence[Row]) -> Row:
    """Of the rounds; errors are added up."""
    out: Row = {name: {key: median(row[name][key] for row in rows) for key in ("p50_s", "p99_s")} for name in ALL}
    out["windows_std_s"] = median(row["windows_std_s"] for row in rows)
    out["errors"] = sum(row["errors"] for row in rows)
    out["requests"] = sum(row["requests"] for row in rows)
    return out


def line(row: Row) -> str:
    cells = ", ".join(f"{name} {row[name]['p50_s']:.3f}/{row[name]['p99_s']:.3f}" for name in ALL)
    return f"{cells} s, ± {row['windows_std_s']:.3f} s, {row['errors']} failed"


def markdown(study: dict[str, Any]) -> str:
    out = ["| | A | B | C | all | ± of windows' P99 | failed |", "|---|---|---|---|---|---|---|"]
    for part, title in (("live", "{}"), ("simulated", "*simulated: {}*")):
        for name, row in study[part].items():
            cells = " | ".join(f"{row[kind]['p50_s']:.3f} / {row[kind]['p99_s']:.3f}" for kind in ALL)
            failed = f"{row['errors']} of {row['requests']:,}"
            out.append(f"| {title.format(name)} | {cells} | {row['windows_std_s']:.3f} | {failed} |")
    return "\n".join(out)


def not_best(study: dict[str, Any]) -> list[str]:
    """Cells in which somebody else's clients waited less."""
    out = []
    live = study["live"]
    for kind in ALL:
        for key in ("p50_s", "p99_s"):
            ours = live[OURS][kind][key]
            others = [(row[kind][key], n) for n, row in live.items() if n != OURS and row[kind][key] < ours]
            if others:
                best, name = min(others)
                out.append(f"{kind} {key[:3].upper()}: {name} {best:.3f} s, ours {ours:.3f} s")
    return out


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, default=CLUSTER, help="what each replica is")
    parser.add_argument("--replicas", type=int, default=12)
    parser.add_argument("--load", type=float, default=0.8, help="share of the replicas' capacity")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=0, help="with prefixes in common; 0: one for each request")
    parser.add_argument("--shared", type=float, default=0.7, help="of a prompt, with the session's others (0 to 1)")
    parser.add_argument("--tries", type=int, default=2, help="of a run that other work disturbs")
    parser.add_argument("--wait-s", type=float, default=60.0, help="for a quieter machine, before each run")
    parser.add_argument("--hop-ms", type=float, default=1.0, help="of the simulated runs")
    parser.add_argument("--only", default="", metavar="NAME,NAME…", help="contenders whose names begin so")
    parser.add_argument("--haproxy", help="program")
    parser.add_argument("--vllm-router", help="program")
    parser.add_argument("--no-install", action="store_true", help="do not install vllm-router where it is missing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "policies-live.json")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    raise_file_limit()
    cluster = load_cluster(args.cluster)
    profile = units_of(cluster, 1)[0].profile
    rate = args.load * args.replicas * replica_capacity_per_s(profile, MIX, args.seed)
    print(f"{args.replicas} replicas, {rate:.1f} requests/s ({args.load:.0%} of capacity)", flush=True)
    study = {
        "command": "python -m benchmarks.bench_policies_live " + " ".join(sys.argv[1:]),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": description(),
        "replicas": args.replicas,
        "rate_per_s": rate,
        "load": args.load,
        "sessions": args.sessions,
        "shared": args.shared if args.sessions else 0.0,
        "seed": args.seed,
    }
    study |= compare(args, cluster, rate)
    print(
        f"\nSeconds to first token, P50 / P99, medians of {args.rounds} rounds\n\n{markdown(study)}\n\n{study['text']}"
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(study, indent=1) + "\n")
    for cell in not_best(study) if OURS in study["live"] else ():
        print(f"not best: {cell}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
