"""Per-replica gauges of the gateway's own metrics, read from the scheduler and the health book when someone scrapes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from exaserve.domain.request import RequestFacts
from exaserve.health import HealthBook, State
from exaserve.observe import Family, labels
from exaserve.scheduling import ReplicaState, Scheduler
from exaserve.scheduling.entropy import cost, terms

__all__ = ["entropy_terms", "replica_families"]

_NOMINAL = RequestFacts(model="", prompt_tokens=1, output_tokens=0)
"""Prices a replica as it stands: what the smallest request would wait for."""


def entropy_terms(state: ReplicaState, now: float) -> dict[str, float]:
    """The replica's entropy by term and in ``total_s``, seconds, for the smallest request; infinities included."""
    parts = terms(state, _NOMINAL, 0.0, now)
    return parts | {"total_s": cost(state, _NOMINAL, 0.0, now)}


def replica_families(scheduler: Scheduler, health: HealthBook, now: float) -> Iterable[Family]:
    """State, load, ledger and entropy of every replica, and decisions taken without a signal."""
    state_of = Family("exaserve_replica_state", "gauge", "1 for the health state the replica is in.")
    eligible = Family("exaserve_replica_eligible", "gauge", "1 where the replica may take requests.")
    share = Family("exaserve_replica_share", "gauge", "Slow-start share times weight, 1 is normal.")
    inflight = Family("exaserve_replica_inflight", "gauge", "Placements of this gateway not yet released.")
    pending = Family("exaserve_replica_pending_seconds", "gauge", "Prefill placed and without a first token, seconds.")
    kv_own = Family("exaserve_replica_ledger_kv_tokens", "gauge", "KV tokens charged by this gateway.")
    running = Family("exaserve_replica_running", "gauge", "Running requests, as last reported.")
    waiting = Family("exaserve_replica_waiting", "gauge", "Waiting requests, as last reported.")
    kv_use = Family("exaserve_replica_kv_use_ratio", "gauge", "Share of KV blocks in use, as last reported.")
    age = Family("exaserve_replica_report_age_seconds", "gauge", "Age of the last report, seconds.")
    entropy = Family(
        "exaserve_replica_entropy_seconds", "gauge", "Cost of the smallest request there, seconds, by term."
    )
    ejections = Family("exaserve_replica_ejections", "gauge", "Ejections since the replica was last forgiven.")
    for replica, state in scheduler.states().items():
        head = labels(replica=replica)
        if replica in health:
            view = health.view(replica)
            for each in State:
                state_of.add(int(view.state == each.value), labels(replica=replica, state=each.value))
            ejections.add(view.ejections, head)
        eligible.add(int(state.eligible), head)
        share.add(state.ramp * state.weight, head)
        inflight.add(state.inflight, head)
        pending.add(state.pending_s, head)
        kv_own.add(state.kv_own, head)
        _reported(state, head, now, (running, waiting, kv_use, age))
        for term, value in entropy_terms(state, now).items():
            if term.endswith("_s") and math.isfinite(value):
                entropy.add(value, labels(replica=replica, term=term[:-2]))
    blind = Family(
        "exaserve_policy_without_signal_total", "counter", "Decisions for which a wanted signal was unknown."
    )
    for signal, count in scheduler.signal_missing().items():
        blind.add(count, labels(signal=signal))
    return [
        state_of, eligible, share, inflight, pending, kv_own, running, waiting, kv_use, age, entropy, ejections, blind,
    ]  # fmt: skip


def _reported(state: ReplicaState, head: str, now: float, families: tuple[Family, Family, Family, Family]) -> None:
    """What the last report says. An unknown figure has no sample: it is not zero."""
    running, waiting, kv_use, age = families
    report = state.last_report
    if report is None:
        return
    age.add(now - report.taken_at, head)
    if not state.report_fresh:
        return
    if report.running is not None:
        running.add(report.running, head)
    if report.waiting is not None:
        waiting.add(report.waiting, head)
    if report.kv_use is not None:
        kv_use.add(report.kv_use, head)
