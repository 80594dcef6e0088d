"""How fast the simulator is, and what it holds: simulated seconds per second of one core, and memory.

Two fleets: 3,072 replicas under 28,000 requests/s of 64 tokens in and 64 out, and 256 units of four cards under the mix
of short, long and very long prompts. Each run is a process of its own, so that memory is its own; processor time is
counted, not the clock on the wall. The first fleet is also run for a quarter and for half of the time: cost must grow
linearly with requests.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import description
from exaserve.config import load_cluster
from exaserve.simulate.demand import demand
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import Simulation
from exaserve.simulate.units import replica_capacity_per_s, units_of
from exaserve.workload import REFERENCE_MIX, Mix, OutputLengths, Scenario

CLUSTERS = Path(__file__).parent / "clusters"
TINY = Mix(((Scenario("64/64", 64, OutputLengths("fixed", 64.0, tokens_max=64)), 1.0),))
MEMORY_MAX_MB = 2_000.0


def reference_us() -> float:
    """Best µs of a fixed piece of Python work: how fast this machine was just then, to compare runs by."""
    best = float("inf")
    for _ in range(200):
        began = time.perf_counter()
        total = 0
        for number in range(2_000):
            total += number
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def one(fleet: str, policy: str, seconds: float, seed: int) -> dict[str, object]:
    """Simulates in this process."""
    reference = reference_us()
    if fleet == "fleet":
        cluster, mix, rate = load_cluster(CLUSTERS / "fleet.yaml"), TINY, 28_000.0
        units = units_of(cluster)
    else:
        cluster, mix = load_cluster(CLUSTERS / "units-of-four.yaml"), REFERENCE_MIX
        units = units_of(cluster, 256)
        rate = 0.8 * len(units) * replica_capacity_per_s(units[0].profile, mix, seed)
    wanted = demand(mix, rate, seconds, seed)
    simulation = Simulation(cluster, units, wanted, SimSettings(seed=seed, warmup_s=min(5.0, seconds / 4)), policy)
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    began = time.process_time()
    stats = simulation.run()
    cpu_s = time.process_time() - began
    return {
        "fleet": fleet,
        "policy": policy,
        "replicas": len(units),
        "rate_per_s": rate,
        "seconds": seconds,
        "requests": len(wanted),
        "events": simulation.world.events_total,
        "cpu_s": cpu_s,
        "us_per_request": cpu_s / len(wanted) * 1e6,
        "times_real": seconds / cpu_s,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "reference_us": reference,
        "failed": stats.all.failed,
        "ttft_p99_s": stats.all.ttft_p99,
        "idle_share": stats.idle_share,
    }


def apart(fleet: str, policy: str, seconds: float, seed: int) -> dict[str, object]:
    """The same in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.bench_simulate", "--one", fleet, policy, str(seconds), str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds of arrivals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", default="round_robin,entropy")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "simulate.json")
    parser.add_argument("--check", action="store_true", help="exit 1 where it is slower than real or takes too much")
    parser.add_argument("--one", nargs=4, metavar=("FLEET", "POLICY", "SECONDS", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        fleet, policy, seconds, seed = options.one
        print(json.dumps(one(fleet, policy, float(seconds), int(seed))))
        return 0
    print(f"{'fleet':<8}{'policy':<14}{'replicas':>9}{'sim s':>7}{'requests':>11}{'events':>11}{'CPU s':>9}"
          f"{'µs/request':>12}{'x real':>8}{'MB':>7}{'ref µs':>8}{'P99 TTFT':>10}")  # fmt: skip
    rows = []
    for policy in options.policies.split(","):
        plan = [("fleet", options.seconds * share) for share in (0.25, 0.5, 1.0)] + [("units", options.seconds)]
        for fleet, seconds in plan:
            row = apart(fleet, policy, seconds, options.seed)
            rows.append(row)
            print(
                f"{fleet:<8}{policy:<14}{row['replicas']:>9,}{seconds:>7g}{row['requests']:>11,}{row['events']:>11,}"
                f"{row['cpu_s']:>9.1f}{row['us_per_request']:>12.1f}{row['times_real']:>8.2f}{row['memory_mb']:>7.0f}"
                f"{row['reference_us']:>8.0f}{row['ttft_p99_s']:>10.3f}",
                flush=True,
            )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": description(), "seed": options.seed, "rows": rows}
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    met = all(row["times_real"] >= 1.0 and row["memory_mb"] <= MEMORY_MAX_MB for row in rows)  # type: ignore[operator]
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
