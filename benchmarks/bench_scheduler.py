"""What one placement costs: the scheduler alone, with a live ledger, reports and a filled prefix index.

No sockets and no waiting: virtual time runs from arrival to arrival, requests end when their (modelled) work is done,
and every replica reports five times a second. Only ``place`` is timed for the decision; the ledger's other calls and a
report are timed beside it. The ledger is filled under round robin, which is cheap, before the policy takes over.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import description
from exaserve.bench import REFERENCE_MIX, Arrivals, Sessions, make_plan, percentile
from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.gateway.peers.replication import Outbox
from exaserve.observe import GatewayMetrics
from exaserve.scheduling import POLICIES, Placement, Scheduler, SchedulerConfig, block_hashes
from exaserve.workload import prompt_text

MODEL = "bench"
REPORT_S = 0.2
SETTLE = 500
"""Untimed decisions under the policy that is measured."""
TARGETS_US = {12: 15.0, 3072: 50.0}
"""Median of the default policy's decision, by number of replicas."""


@dataclass
class Times:
    """Nanoseconds of each call."""

    place: list[int] = field(default_factory=list)
    first_token: list[int] = field(default_factory=list)
    release: list[int] = field(default_factory=list)
    report: list[int] = field(default_factory=list)


def requests(count: int, seed: int) -> list[RequestFacts]:
    """The reference mix, half of it in sessions that share half of their prompts, as the gateway would describe it."""
    facts = []
    for number, sessions in enumerate((None, Sessions(200, 0.5))):
        for planned in make_plan(
            REFERENCE_MIX, Arrivals(count / 20.0, 10.0, "constant"), seed + number, sessions
        ).requests:
            text = prompt_text(planned).encode()
            session = None if planned.session is None else f"s{planned.session}"
            facts.append(
                RequestFacts(
                    model=MODEL,
                    prompt_tokens=planned.prompt_tokens,
                    output_tokens=planned.output_tokens,
                    total_tokens_max=planned.prompt_tokens + planned.output_tokens,
                    stream=True,
                    session=session,
                    prefix=block_hashes(text),
                    prompt_bytes=len(text),
                )
            )
    random.Random(seed).shuffle(facts)
    return facts


class Run:
    """One policy at one size, in virtual time."""

    def __init__(self, replicas: int, policy: str, inflight: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy = policy
        self.scheduler = Scheduler(SchedulerConfig(policy="round_robin"), random.Random(seed))
        self.ids = [ReplicaId(f"node{index // 12}/r{index % 12}") for index in range(replicas)]
        self.running = dict.fromkeys(self.ids, 0)
        for index, replica in enumerate(self.ids):
            spec = ReplicaSpec(
                replica, f"http://10.0.{index // 250}.{index % 250}:8000", (MODEL,), kv_tokens_max=400_000
            )
            self.scheduler.add(spec, 0.0)
            self.scheduler.set_health(replica, True, "ready")  # noqa: FBT003
        self.times = Times()
        self.ending: list[tuple[float, int, Placement, RequestFacts, bool]] = []
        self.order = itertools.count()
        self.seq = 0
        self.reporting = 0
        self.reported = 0.0
        # A request stays about 2.5 s, so this rate keeps ``inflight`` requests on each replica.
        self.gap_s = 2.5 / (inflight * replicas)

    def run(self, facts: list[RequestFacts], timed_from: int) -> Times:
        now = 0.0
        refused = 0
        for number, request in enumerate(facts):
            now += self.rng.expovariate(1.0 / self.gap_s)
            if number == timed_from - SETTLE:
                self.scheduler.set_policy(self.policy)
            self._reports(now)
            self._end(now)
            began = time.perf_counter_ns()
            placed = self.scheduler.place(request, now)
            took = time.perf_counter_ns() - began
            if number == timed_from:
                self.times = Times()
            self.times.place.append(took)
            if not isinstance(placed, Placement):
                refused += 1
                continue
            self.running[placed.replica_id] += 1
            first = now + 0.05 + request.prompt_tokens / 8_000.0
            heapq.heappush(self.ending, (first, next(self.order), placed, request, True))
        if refused > len(facts) / 100:
            print(f"note: {refused} of {len(facts)} requests were refused", file=sys.stderr)
        self.scheduler.validate()
        return self.times

    def _reports(self, now: float) -> None:
        """Each replica reports once per REPORT_S, one after the other, as agents do."""
        due = int((now - self.reported) / REPORT_S * len(self.ids))
        for _ in range(min(due, len(self.ids))):
            replica = self.ids[self.reporting]
            self.reporting = (self.reporting + 1) % len(self.ids)
            self.seq += 1
            running = self.running[replica]
            report = Report(replica, self.seq, now, running, 0, running * 3_000 / 400_000, 400_000)
            began = time.perf_counter_ns()
            self.scheduler.report(report, now)
            self.times.report.append(time.perf_counter_ns() - began)
        if due:
            self.reported = now

    def _end(self, now: float) -> None:
        while self.ending and self.ending[0][0] <= now:
            at, _, placed, request, first = heapq.heappop(self.ending)
            if first:
                began = time.perf_counter_ns()
                self.scheduler.first_token(placed, at)
                self.times.first_token.append(time.perf_counter_ns() - began)
                end = at + request.output_tokens * 0.012
                heapq.heappush(self.ending, (end, next(self.order), placed, request, False))
                continue
            usage = Usage(request.prompt_tokens, request.output_tokens)
            began = time.perf_counter_ns()
            self.scheduler.release(placed, at, Outcome.COMPLETED, usage)
            self.times.release.append(time.perf_counter_ns() - began)
            self.running[placed.replica_id] -= 1


def microseconds(values: list[int], q: float) -> float:
    return percentile(sorted(values), q) / 1e3


def reference_us() -> float:
    """Median µs of a fixed piece of Python work: how fast this machine was just then, to compare runs by."""
    took = []
    for _ in range(50):
        began = time.perf_counter_ns()
        total = 0
        for number in range(2_000):
            total += number
        took.append(time.perf_counter_ns() - began)
    return microseconds(took, 0.5)


def hashing() -> dict[str, float]:
    """Median µs to hash one prompt of each scenario, which the gateway does once per request before it places."""
    result = {}
    for scenario in REFERENCE_MIX.scenarios:
        text = b"some words " * (scenario.prompt_tokens * 4 // 11)
        took = []
        for _ in range(300):
            began = time.perf_counter_ns()
            block_hashes(text)
            took.append(time.perf_counter_ns() - began)
        result[f"{scenario.name} {scenario.prompt_tokens:,} tokens"] = microseconds(took, 0.5)
    return result


def beside() -> dict[str, float]:
    """What else each request pays: microseconds of one event told to peers, and of one request in the metrics."""
    outbox = Outbox()
    outbox.listening = True
    scheduler = Scheduler(SchedulerConfig(), random.Random(0))
    scheduler.add(ReplicaSpec(ReplicaId("r0"), "http://r0", (MODEL,)), 0.0)
    scheduler.set_health(ReplicaId("r0"), True, "up")  # noqa: FBT003
    placement = scheduler.place(RequestFacts(MODEL, 100, 20, 120, stream=True), 0.0)
    assert isinstance(placement, Placement)
    metrics = GatewayMetrics(process=False)
    usage = Usage(10, 20, 3)
    events: list[int] = []
    counted: list[int] = []
    for _ in range(20):
        began = time.perf_counter_ns()
        for _ in range(1000):
            outbox.placed(placement)
            outbox.first_token(placement)
            outbox.done(placement)
        events.append((time.perf_counter_ns() - began) // 3000)
        outbox.take()
        began = time.perf_counter_ns()
        for _ in range(1000):
            metrics.started()
            metrics.finished(MODEL, "r0", 200, True, Outcome.COMPLETED, 0.12, 1.2, usage)  # noqa: FBT003
        counted.append((time.perf_counter_ns() - began) // 1000)
    return {"event told": microseconds(events, 0.5), "request counted": microseconds(counted, 0.5)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", default="12,256,3072", help="numbers of replicas, comma-separated")
    parser.add_argument("--policies", default=",".join(sorted(POLICIES)))
    parser.add_argument("--decisions", type=int, default=3_000, help="timed decisions")
    parser.add_argument("--inflight", type=float, default=6.0, help="requests in flight per replica")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "scheduler.json")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    sizes = [int(size) for size in options.replicas.split(",")]
    warm = {size: max(3_000, int(size * options.inflight * 1.5)) for size in sizes}
    pool = requests(max(20_000, options.decisions), options.seed)
    rows: list[dict[str, object]] = []
    met = True
    print(f"{'policy':<26}{'replicas':>9}{'median µs':>11}{'p99 µs':>9}{'first token':>13}{'release':>9}{'report':>9}")
    for size, policy in itertools.product(sizes, options.policies.split(",")):
        facts = list(itertools.islice(itertools.cycle(pool), warm[size] + options.decisions))
        gc.collect()
        gc.freeze()
        times = Run(size, policy, options.inflight, options.seed).run(facts, warm[size])
        gc.unfreeze()
        row: dict[str, object] = {"policy": policy, "replicas": size}
        for name in ("place", "first_token", "release", "report"):
            row[f"{name}_median_us"] = microseconds(getattr(times, name), 0.5)
            row[f"{name}_p99_us"] = microseconds(getattr(times, name), 0.99)
        rows.append(row)
        target = TARGETS_US.get(size) if policy == SchedulerConfig().policy else None
        verdict = ""
        if target is not None:
            good = microseconds(times.place, 0.5) <= target
            met = met and good
            verdict = f"  target ≤ {target:g}: {'met' if good else 'MISSED'}"
        cells = (
            row["place_median_us"],
            row["place_p99_us"],
            *(row[f"{n}_median_us"] for n in ("first_token", "release", "report")),
        )
        widths = (11, 9, 13, 9, 9)
        print(
            f"{policy:<26}{size:>9}" + "".join(f"{c:>{w}.1f}" for c, w in zip(cells, widths, strict=True)) + verdict,
            flush=True,
        )
    hashes = hashing()
    reference = reference_us()
    print(f"reference: adding 2,000 numbers in Python took {reference:.0f} µs")
    print("prompt hashing, median µs: " + ", ".join(f"{name}: {value:.1f}" for name, value in hashes.items()))
    others = beside()
    print("beside it, median µs: " + ", ".join(f"{name}: {value:.2f}" for name, value in others.items()))
    result = {
        "machine": description(),
        "rows": rows,
        "hashing_us": hashes,
        "beside_us": others,
        "reference_us": reference,
        "met": met,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
