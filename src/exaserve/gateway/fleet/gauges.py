"""Per-replica gauges of the gateway's own metrics, read from the scheduler and the health book when someone scrapes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.health import State
from exaserve.observe import Family, labels
from exaserve.scheduling import ReplicaLedger
from exaserve.scheduling.entropy import cost, terms
from exaserve.serving.fleet import Fleet

__all__ = ["ReplicaGauges", "entropy_terms"]

_NOMINAL = RequestFacts(model="", prompt_tokens=1, output_tokens=0)
"""Prices a replica as it stands: what the smallest request would wait for."""


def entropy_terms(state: ReplicaLedger, now: float) -> dict[str, float]:
    """The replica's entropy by term and in ``total_s``, seconds, for the smallest request; infinities included."""
    parts = terms(state, _NOMINAL, 0.0, now)
    return parts | {"total_s": cost(state, _NOMINAL, 0.0, now)}


class ReplicaGauges:
    """Families of every replica's state, load, ledger and entropy, and of decisions taken without a signal.

    Label texts are kept per replica: making them is most of a scrape's cost, which is paid on the loop that relays
    tokens.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._scheduler = fleet.scheduler
        self._health = fleet.health
        self._labels: dict[ReplicaId, _Labels] = {}

    def families(self, now: float) -> Iterable[Family]:
        states = self._scheduler.states()
        if len(self._labels) > 2 * len(states) + 64:
            self._labels.clear()
        state_of = Family("exaserve_replica_state", "gauge", "1 for the health state the replica is in.")
        eligible = Family("exaserve_replica_eligible", "gauge", "1 where the replica may take requests.")
        known = Family("exaserve_replicas", "gauge", "Replicas that this gateway knows; 0 where it knows none.")
        ready = Family("exaserve_replicas_eligible", "gauge", "Replicas that may take requests; 0 where none may.")
        known.add(len(states))
        ready.add(sum(state.eligible for state in states.values()))
        share = Family("exaserve_replica_share", "gauge", "Slow-start share times weight, 1 is normal.")
        inflight = Family("exaserve_replica_inflight", "gauge", "Placements of this gateway not yet released.")
        pending = Family(
            "exaserve_replica_pending_seconds", "gauge", "Prefill placed and without a first token, seconds."
        )
        kv_own = Family("exaserve_replica_ledger_kv_tokens", "gauge", "KV tokens charged by this gateway.")
        entropy = Family(
            "exaserve_replica_entropy_seconds", "gauge", "Cost of the smallest request there, seconds, by term."
        )
        ejections = Family("exaserve_replica_ejections", "gauge", "Ejections since the replica was last forgiven.")
        reported = (
            Family("exaserve_replica_running", "gauge", "Running requests, as last reported."),
            Family("exaserve_replica_waiting", "gauge", "Waiting requests, as last reported."),
            Family("exaserve_replica_kv_use_ratio", "gauge", "Share of KV blocks in use, as last reported."),
            Family("exaserve_replica_report_age_seconds", "gauge", "Age of the last report, seconds."),
        )
        for replica, state in states.items():
            text = self._labels.get(replica)
            if text is None:
                text = self._labels[replica] = _Labels(replica)
            head = text.head
            if replica in self._health:
                name, count = self._health.state(replica)
                state_of.add(1, text.states[name])
                ejections.add(count, head)
            eligible.add(int(state.eligible), head)
            share.add(state.standing.ramp * state.standing.weight, head)
            inflight.add(state.inflight, head)
            pending.add(state.pending_s, head)
            kv_own.add(state.kv.own, head)
            _reported(state, head, now, reported)
            for term, value in entropy_terms(state, now).items():
                if term[-2:] == "_s" and value < math.inf:
                    entropy.add(value, text.term(term))
        blind = Family(
            "exaserve_policy_without_signal_total", "counter", "Decisions for which a wanted signal was unknown."
        )
        for signal, count in self._scheduler.signal_missing().items():
            blind.add(count, labels(signal=signal))
        return [
            known,
            ready,
            state_of,
            eligible,
            share,
            inflight,
            pending,
            kv_own,
            *reported,
            entropy,
            ejections,
            blind,
        ]


class _Labels:
    """One replica's label texts."""

    __slots__ = ("_replica", "_terms", "head", "states")

    def __init__(self, replica: ReplicaId) -> None:
        self._replica = replica
        self.head = labels(replica=replica)
        self.states = {each.value: labels(replica=replica, state=each.value) for each in State}
        self._terms: dict[str, str] = {}

    def term(self, name: str) -> str:
        text = self._terms.get(name)
        if text is None:
            text = self._terms[name] = labels(replica=self._replica, term=name[:-2])
        return text


def _reported(state: ReplicaLedger, head: str, now: float, families: tuple[Family, Family, Family, Family]) -> None:
    """What the last report says. An unknown figure has no sample: it is not zero."""
    running, waiting, kv_use, age = families
    report = state.seen.report
    if report is None:
        return
    age.add(now - state.seen.at, head)
    if not state.seen.fresh:
        return
    if report.running is not None:
        running.add(report.running, head)
    if report.waiting is not None:
        waiting.add(report.waiting, head)
    if report.kv_use is not None:
        kv_use.add(report.kv_use, head)
