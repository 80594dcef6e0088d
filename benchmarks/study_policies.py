"""All policies under the mix of short, long and very long prompts: the table of docs/results/simulate-policies.md,
and the rows beside it.

Loads of 50 to 90 % of capacity, 64 and 256 replicas, one gateway and eight, reports every 50 ms to 2 s. Everything is
in virtual time: the same seed gives the same table on any machine.
"""

from __future__ import annotations

import argparse
import csv
import gc
import io
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
NAMES = ("A", "B", "C", "all")
SUMMARY = ("oracle", "entropy", "entropy, told", "least_connections", "power_of_two", "round_robin")
COLUMNS = (
    *("replicas", "gateways", "load", "policy", "told_ms", "reports_s"),
    *(f"{name}_ttft_{figure}_s" for name in NAMES for figure in ("p50", "p99")),
    *(f"{name}_p99_of_oracle" for name in NAMES[:3]),
    *("windows_p99_std_s", "idle_share", "failed"),
)


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
    parser.add_argument("--markdown", type=Path, help="also write the summary's table there")
    parser.add_argument("--csv", type=Path, help="also write one line per run there")
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
    if options.csv:
        options.csv.write_text(csv_text(study))
    return 0


def line(row: Case) -> str:
    told = "" if row["told_s"] is None else " told"
    cells = [f"{n} {f['ttft_p50']:.2f}/{f['ttft_p99']:.2f}" for n, f in row["scenarios"].items()]
    return (
        f"{row['replicas']:>4} {row['gateways']} gw{told:<5} {row['load']:.0%} {row['stale_s']:g} s "
        f"{row['policy']:<27}{'  '.join(cells)}  ± {row['windows_std']:.3f}  idle {row['idle_share']:.1%} "
        f"failed {sum(row['errors'].values())} [{row['cpu_s']:.0f} s]"
    )


def csv_text(study: Case) -> str:
    """One line per run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in study["rows"]:
        oracle = _find(study, row, "oracle")
        figures = [round(row["scenarios"][n][f"ttft_{q}"], 2) for n in NAMES for q in ("p50", "p99")]
        against = [round(_p99(row, n) / _p99(oracle, n), 2) for n in NAMES[:3]] if oracle else ["", "", ""]
        told = "" if row["told_s"] is None else f"{1000 * row['told_s']:g}"
        writer.writerow(
            [
                *(row["replicas"], row["gateways"], row["load"], row["policy"], told, f"{row['stale_s']:g}"),
                *figures,
                *against,
                *(round(row["windows_std"], 3), round(row["idle_share"], 5), sum(row["errors"].values())),
            ]
        )
    return out.getvalue()


def markdown(study: Case) -> str:
    """The summary: P99 of A and of all requests at the usual age of reports, one line per size, gateways and load."""
    out = [f"| replicas | gateways | load | {' | '.join(SUMMARY)} |", "|---" * (len(SUMMARY) + 3) + "|"]
    for size, count, load in sorted({(r["replicas"], r["gateways"], r["load"]) for r in study["rows"]}):
        base = {"replicas": size, "gateways": count, "load": load}
        found = [_find(study, base, name.partition(",")[0], told="told" in name) for name in SUMMARY]
        cells = ["-" if row is None else f"{_p99(row, 'A'):.2f} / {_p99(row, 'all'):.2f}" for row in found]
        out.append(f"| {size} | {count} | {load:.0%} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _p99(row: Case, name: str) -> float:
    return float(row["scenarios"][name]["ttft_p99"])


def _find(study: Case, like: Case, policy: str, *, told: bool = False) -> Case | None:
    """The run of a policy at the usual age of reports, with the size, gateways and load of another."""
    for row in study["rows"]:
        same = all(row[key] == like[key] for key in ("replicas", "gateways", "load"))
        if same and row["policy"] == policy and (row["told_s"] is not None) == told and row["stale_s"] == 0.2:
            return dict(row)
    return None


if __name__ == "__main__":
    sys.exit(main())
