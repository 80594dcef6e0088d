"""All policies under the mix of short, long and very long prompts: the tables of docs/results/simulate-policies.md.

Loads of 50 to 90 % of capacity, 64 and 256 replicas, one gateway and eight, reports every 50 ms to 2 s. Everything is
in virtual time: the same seed gives the same table on any machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from exaserve.config import Cluster, load_cluster
from exaserve.scheduling import POLICIES
from exaserve.simulate.demand import SimDemand, demand
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import Simulation
from exaserve.simulate.units import replica_capacity_per_s, units_of
from exaserve.workload import REFERENCE_MIX

CLUSTER = Path(__file__).parent / "clusters" / "units-of-four.yaml"
WARMUP_S = 5.0
TOLD_S = 0.001

Case = dict[str, Any]


def cases(loads: list[float], sizes: list[int], gateways: list[int], stale: list[float]) -> Iterator[Case]:
    """Every policy at the usual 200 ms; where reports or messages matter, the rest as well."""
    for size in sizes:
        for count in gateways:
            for load in loads:
                base = {"replicas": size, "gateways": count, "load": load}
                for policy in ("oracle", *POLICIES):
                    yield {**base, "policy": policy, "stale_s": 0.2, "told_s": None}
                told = [None, TOLD_S] if count > 1 else [None]
                for told_s in told:
                    for stale_s in stale:
                        if (stale_s, told_s) != (0.2, None):
                            yield {**base, "policy": "entropy", "stale_s": stale_s, "told_s": told_s}


def run(case: Case, cluster: Cluster, wanted: SimDemand, seed: int) -> Case:
    telemetry = msgspec.structs.replace(cluster.telemetry, interval_s=case["stale_s"])
    settings = SimSettings(seed=seed, gateways=case["gateways"], told_s=case["told_s"], warmup_s=WARMUP_S, window_s=5.0)
    began = time.process_time()
    units = units_of(cluster, case["replicas"])
    simulation = Simulation(
        msgspec.structs.replace(cluster, telemetry=telemetry), units, wanted, settings, case["policy"]
    )
    stats = simulation.run()
    return {**case, "cpu_s": time.process_time() - began, **stats.as_dict()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=65.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loads", default="0.5,0.7,0.8,0.9")
    parser.add_argument("--replicas", default="64,256")
    parser.add_argument("--gateways", default="1,8")
    parser.add_argument("--staleness", default="0.05,0.2,1,2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "policies.json")
    parser.add_argument("--markdown", type=Path, help="also write the tables there")
    options = parser.parse_args()
    cluster = load_cluster(CLUSTER)
    per_replica = replica_capacity_per_s(units_of(cluster, 1)[0].profile, REFERENCE_MIX, options.seed)
    numbers = [[float(n) for n in text.split(",")] for text in (options.loads, options.staleness)]
    counts = [[int(n) for n in text.split(",")] for text in (options.replicas, options.gateways)]
    rows: list[Case] = []
    study: Case = {"seed": options.seed, "seconds": options.seconds, "per_replica_per_s": per_replica, "rows": rows}
    known: dict[tuple[int, float], SimDemand] = {}
    gc.set_threshold(100_000, 50, 50)
    for case in cases(numbers[0], counts[0], counts[1], numbers[1]):
        key = (case["replicas"], case["load"])
        if key not in known:
            known.clear()
            known[key] = demand(REFERENCE_MIX, key[0] * key[1] * per_replica, options.seconds, options.seed)
        row = run(case, cluster, known[key], options.seed)
        rows.append(row)
        print(line(row), flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(study, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(study))
    return 0


def line(row: Case) -> str:
    told = "" if row["told_s"] is None else " told"
    cells = [f"{n} {f['ttft_p50']:.2f}/{f['ttft_p99']:.2f}" for n, f in row["scenarios"].items()]
    return (
        f"{row['replicas']:>4} {row['gateways']} gw{told:<5} {row['load']:.0%} {row['stale_s']:g} s "
        f"{row['policy']:<27}{'  '.join(cells)}  ± {row['windows_std']:.3f}  idle {row['idle_share']:.1%} "
        f"failed {sum(row['errors'].values())} [{row['cpu_s']:.0f} s]"
    )


def markdown(study: Case) -> str:
    """One table per size, number of gateways and load."""
    out = []
    rows = study["rows"]
    groups = sorted({(r["replicas"], r["gateways"], r["load"]) for r in rows})
    for size, count, load in groups:
        mine = [r for r in rows if (r["replicas"], r["gateways"], r["load"]) == (size, count, load)]
        oracle = next(r for r in mine if r["policy"] == "oracle")
        plural = "s" if count > 1 else ""
        out += [f"### {size} replicas, {count} gateway{plural}, {load:.0%} of capacity", ""]
        out += ["| policy | reports | A | B | C | all | A, B, C against oracle | ± | idle | failed |"]
        out += ["|---|---|---|---|---|---|---|---|---|---|"]
        for row in mine:
            out.append(_row(row, oracle, several=count > 1))
        out.append("")
    return "\n".join(out) + "\n"


def _row(row: Case, oracle: Case, *, several: bool) -> str:
    names = ("A", "B", "C", "all")
    cells = [f"{row['scenarios'][n]['ttft_p50']:.2f} / {row['scenarios'][n]['ttft_p99']:.2f}" for n in names]
    ratios = [row["scenarios"][n]["ttft_p99"] / oracle["scenarios"][n]["ttft_p99"] for n in names[:3]]
    name = row["policy"]
    if several and name == "entropy":
        name += ", blind" if row["told_s"] is None else f", told after {1000 * row['told_s']:g} ms"
    against = ", ".join(f"{r:.2f}" for r in ratios)
    failed = sum(row["errors"].values())
    return (
        f"| {name} | {row['stale_s']:g} s | {' | '.join(cells)} | {against} | {row['windows_std']:.3f} "
        f"| {row['idle_share']:.1%} | {failed} |"
    )


if __name__ == "__main__":
    sys.exit(main())
