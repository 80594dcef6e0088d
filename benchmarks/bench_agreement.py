"""Does the simulator predict the live system? The same cluster file and requests, in virtual time and for real.

    python -m benchmarks.bench_agreement [--policies entropy,round_robin] [--load 0.8] [--seconds 120] [--rounds 3]

Live is what ``exaserve up`` starts (emulated replicas and the gateway, over HTTP) under the load of ``exaserve bench``;
simulated is what ``exaserve simulate`` runs. Both get the same instants, prompt and answer lengths; every round has a
seed of its own, and percentiles are over the answers of all rounds. First, single requests to an idle cluster show what
HTTP, gateway, emulator and client add to an engine's time; the simulator is told half of that as its hop, each way.

Beside each ratio stands *chance*: what the same ratio would be between one simulation and another that differs only in
what nobody controls (when reports and probes happen). With ``--check`` exit code 1 says that a ratio is off by more
than 10 % (P50) or 20 % (P99).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.live import Conditions, Times, Watch, as_dicts, first_tokens, together, undisturbed
from benchmarks.machine import description, raise_file_limit
from exaserve.bench import LoadConfig, LoadResult
from exaserve.bench.workers import run_load
from exaserve.cli.up import with_flags
from exaserve.config import Cluster, load_cluster
from exaserve.local.addresses import free_base_port
from exaserve.local.cluster import LocalCluster
from exaserve.perfmodel.engine import EngineRequest
from exaserve.perfmodel.runs import RunEngine
from exaserve.simulate.demand import demand
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import Simulation
from exaserve.simulate.units import replica_capacity_per_s, units_of
from exaserve.workload import REFERENCE_MIX, Arrivals, BodyRenderer, LoadPlan, Mix, make_plan, percentile

CLUSTER = Path(__file__).parent / "clusters" / "sixteen-units.yaml"
MIX = REFERENCE_MIX
NAMES = tuple(scenario.name for scenario in MIX.scenarios)
WARMUP_S = 10.0
REST_S = 3.0
"""After a start: probes and first reports are in."""
PROBE_REQUESTS = 150
P50_MAX, P99_MAX = 0.10, 0.20
CHANCE_RUNS = 8


@dataclass
class Side:
    """What one policy's rounds gave on one side."""

    times: Times = field(default_factory=lambda: {name: [] for name in NAMES})
    failed: int = 0
    requests: int = 0

    def add(self, times: Times, failed: int) -> None:
        for name, values in times.items():
            self.times[name] += values
        self.failed += failed
        self.requests += failed + sum(len(values) for values in times.values())

    def quantile(self, name: str, q: float) -> float:
        values = self.times[name] if name in self.times else [v for each in self.times.values() for v in each]
        return percentile(sorted(values), q) if values else math.nan


# -- simulated ------------------------------------------------------------------------------------------------------
def simulated(cluster: Cluster, args: argparse.Namespace, policy: str, rate: float, seed: int, world: int) -> Any:
    """(times, failed) of one run; ``world`` is the seed of what is not the demand."""
    wanted = demand(MIX, rate, args.seconds, seed)
    settings = SimSettings(seed=world, hop_s=args.hop_s, warmup_s=WARMUP_S)
    simulation = Simulation(cluster, units_of(cluster), wanted, settings, policy)
    simulation.run()
    recorder = simulation.recorder
    times: Times = {name: [] for name in NAMES}
    failed = 0
    for at, kind, first, error in zip(wanted.at, wanted.scenario, recorder.first, recorder.error, strict=True):
        if at < WARMUP_S:
            continue
        if error:
            failed += 1
        else:
            times[NAMES[kind]].append(float(first - at))
    return times, failed


# -- live -----------------------------------------------------------------------------------------------------------
async def live(cluster: Cluster, policy: str, plan: LoadPlan) -> tuple[LoadResult, Conditions]:
    """One plan through a fresh cluster."""
    fresh = free_base_port(with_flags(cluster, policy=policy))
    async with LocalCluster(fresh) as local:
        await asyncio.sleep(REST_S)
        pids: dict[str, list[int]] = {}
        for child in local.children:
            pids.setdefault("gateway" if child.name == "gateway" else "replicas", []).append(child.pid)
        watch = Watch(pids)
        config = LoadConfig(urls=(local.url,), renderer=BodyRenderer(fresh.pools[0].served_name))
        result = await run_load(config, plan, processes=1)
        return result, watch.conditions(result)


def _live(cluster: Cluster, policy: str, plan: LoadPlan) -> tuple[LoadResult, Conditions]:
    return uvloop.run(live(cluster, policy, plan))


async def way_s(cluster: Cluster) -> tuple[float, float]:
    """What everything that is no engine adds to a first token, seconds: from single short requests, each to a replica
    that has nothing else to do. Returns (median, 90th percentile)."""
    short = Mix(((MIX.scenarios[0], 1.0),))
    plan = make_plan(short, Arrivals(2.0, PROBE_REQUESTS / 2.0, "constant"), 1)
    result, _ = await live(cluster, "round_robin", plan)
    engine = RunEngine(units_of(cluster)[0].profile)
    engine.submit(EngineRequest(MIX.scenarios[0].prompt_tokens, 2), 0.0)
    alone_s = engine.begin_run(0.0) or 0.0
    times, _ = first_tokens(result, NAMES, 0.0)
    added = sorted(ttft - alone_s for ttft in times[MIX.scenarios[0].name])
    return percentile(added, 0.5), percentile(added, 0.9)


# -- the comparison -------------------------------------------------------------------------------------------------
def ratios(live_: Side, simulated_: Side) -> dict[str, dict[str, float]]:
    return {
        name: {key: live_.quantile(name, q) / simulated_.quantile(name, q) for key, q in (("p50", 0.5), ("p99", 0.99))}
        for name in (*NAMES, "all")
    }


def chance(cluster: Cluster, args: argparse.Namespace, policy: str, rate: float, base: Side) -> dict[str, Any]:
    """Lowest and highest of the ratios that other simulations of the same requests have to ``base``."""
    found = []
    for world in range(1001, 1001 + CHANCE_RUNS):
        other = Side()
        for seed in args.seeds:
            other.add(*simulated(cluster, args, policy, rate, seed, world + 100 * seed))
        found.append(ratios(other, base))
    return {
        name: {key: (min(f[name][key] for f in found), max(f[name][key] for f in found)) for key in ("p50", "p99")}
        for name in (*NAMES, "all")
    }


def compare(cluster: Cluster, args: argparse.Namespace, rate: float) -> dict[str, Any]:
    """Rounds of both sides for every policy; the order of the policies turns from round to round."""
    policies = args.policies.split(",")
    sides = {policy: (Side(), Side()) for policy in policies}
    conditions: list[Conditions] = []
    for number, seed in enumerate(args.seeds):
        plan = make_plan(MIX, Arrivals(rate, args.seconds), seed)
        turn = number % len(policies)
        for policy in policies[turn:] + policies[:turn]:
            real, model = sides[policy]
            result, found = undisturbed(partial(_live, cluster, policy, plan), args.tries, args.wait_s)
            conditions.append(found)
            times, failed = first_tokens(result, NAMES, WARMUP_S)
            real.add(times, failed)
            model.add(*simulated(cluster, args, policy, rate, seed, seed))
            print(f"seed {seed}, {policy}: {_line(times)}, {failed} failed; {found}", flush=True)
    table = {}
    for policy, (real, model) in sides.items():
        table[policy] = {
            "ratio": ratios(real, model),
            "chance": chance(cluster, args, policy, rate, model),
            "live": _figures(real),
            "simulated": _figures(model),
        }
    return {"policies": table, "conditions": as_dicts(conditions), "text": together(conditions)}


def _figures(side: Side) -> dict[str, Any]:
    out: dict[str, Any] = {"requests": side.requests, "failed": side.failed}
    for name in (*NAMES, "all"):
        out[name] = {"p50_s": side.quantile(name, 0.5), "p99_s": side.quantile(name, 0.99)}
    return out


def _line(times: Times) -> str:
    return ", ".join(
        f"{name} {percentile(sorted(v), 0.5):.3f}/{percentile(sorted(v), 0.99):.3f} s" for name, v in times.items() if v
    )


def misses(table: dict[str, Any]) -> list[str]:
    out = []
    for policy, each in table.items():
        for name in NAMES:
            for key, most in (("p50", P50_MAX), ("p99", P99_MAX)):
                ratio = each["ratio"][name][key]
                if not abs(ratio - 1.0) <= most:
                    out.append(f"{policy} {name} {key}: {ratio:.3f}")
    return out


def markdown(study: dict[str, Any]) -> str:
    rows = ["| policy | scenario | P50 live | simulated | ratio | chance | P99 live | simulated | ratio | chance |"]
    rows.append("|---|---|---|---|---|---|---|---|---|---|")
    for policy, each in study["policies"].items():
        for name in (*NAMES, "all"):
            cells = []
            for key in ("p50", "p99"):
                low, high = each["chance"][name][key]
                real, model = each["live"][name][f"{key}_s"], each["simulated"][name][f"{key}_s"]
                cells += [f"{real:.3f} s", f"{model:.3f} s", f"**{each['ratio'][name][key]:.3f}**"]
                cells.append(f"{low:.2f} to {high:.2f}")
            rows.append(f"| {policy} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _seeds(args: argparse.Namespace) -> Sequence[int]:
    return range(args.seed, args.seed + args.rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, default=CLUSTER)
    parser.add_argument("--policies", default="entropy,round_robin")
    parser.add_argument("--load", type=float, default=0.8, help="share of the cluster's capacity")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hop-ms", type=float, default=None, help="instead of measuring it")
    parser.add_argument("--tries", type=int, default=3, help="of a round that other work disturbs")
    parser.add_argument("--wait-s", type=float, default=60.0, help="for a quieter machine, before each run")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "agreement.json")
    args = parser.parse_args()
    args.seeds = _seeds(args)
    raise_file_limit()
    cluster = load_cluster(args.cluster)
    units = units_of(cluster)
    rate = args.load * len(units) * replica_capacity_per_s(units[0].profile, MIX, args.seed)
    print(f"{len(units)} replicas, {rate:.1f} requests/s ({args.load:.0%} of capacity)", flush=True)
    if args.hop_ms is None:
        added, added_p90 = uvloop.run(way_s(cluster))
        args.hop_s = max(0.0, added / 2.0)
        print(
            f"added to an engine's time at light load: {1000 * added:.2f} ms, P90 {1000 * added_p90:.2f} ms", flush=True
        )
    else:
        args.hop_s = args.hop_ms / 1000.0
    study = {
        "command": "python -m benchmarks.bench_agreement " + " ".join(sys.argv[1:]),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": description(),
        "replicas": len(units),
        "rate_per_s": rate,
        "load": args.load,
        "hop_s": args.hop_s,
        "seeds": list(args.seeds),
    }
    study |= compare(cluster, args, rate)
    print(f"\n{markdown(study)}\n\n{study['text']}")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(study, indent=1) + "\n")
    missed = misses(study["policies"])
    for miss in missed:
        print(f"off: {miss}")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
