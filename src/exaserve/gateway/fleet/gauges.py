# compiled
"""Gauges of the replicas in the gateway's own metrics, read from the fleet when someone scrapes.

One series for each replica, or sums by node for large fleets: a scrape runs on the loop that relays tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from exaserve.domain.request import RequestFacts
from exaserve.health import State
from exaserve.observe import Family, labels
from exaserve.scheduling import ReplicaLedger
from exaserve.scheduling.entropy import cost, terms
from exaserve.serving.fleet import Fleet

__all__ = ["ReplicaGauges", "entropy_terms"]

_NOMINAL = RequestFacts(model="", prompt_tokens=1, output_tokens=0)
"""Prices a replica as it stands: what the smallest request would wait for."""
_PAUSE_EVERY = 32
"""Replicas between two pauses: about a millisecond."""


def entropy_terms(state: ReplicaLedger, now: float) -> dict[str, float]:
    """The replica's entropy by term and in ``total_s``, seconds, for the smallest request; infinities included."""
    parts = terms(state, _NOMINAL, 0.0, now)
    return parts | {"total_s": cost(state, _NOMINAL, 0.0, now)}


class ReplicaGauges:
    """Families of every replica's state, load, ledger and entropy, and of decisions taken without a signal.

    By node, figures are sums over its replicas; of the KV use and the age of reports it is the largest, and entropy is
    left out: it is dear, and no sum of it means anything.

    Label texts are kept: making them is most of a scrape's cost.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock
        self._labels: dict[str, _Labels] = {}

    def families(self, nodes: Mapping[str, str] | None) -> Iterator[Family | None]:
        fleet, now = self._fleet, self._clock()
        rows = list(fleet.members().values())
        if len(self._labels) > 2 * len(rows) + 64:
            self._labels.clear()
        known = Family("exaserve_replicas", "gauge", "Replicas that this gateway knows; 0 where it knows none.")
        ready = Family("exaserve_replicas_eligible", "gauge", "Replicas that may take requests; 0 where none may.")
        known.add(len(rows))
        ready.add(sum([member.ledger.eligible for member in rows]))
        state_of = Family("exaserve_replica_state", "gauge", "1 for the health state the replica is in.")
        ejections = Family("exaserve_replica_ejections", "gauge", "Ejections since the replica was last forgiven.")
        entropy = Family(
            "exaserve_replica_entropy_seconds", "gauge", "Cost of the smallest request there, seconds, by term."
        )
        load, reported = _load_families(), _reported_families()
        for number, member in enumerate(rows):
            if number % _PAUSE_EVERY == _PAUSE_EVERY - 1:
                yield None
            replica, ledger = member.id, member.ledger
            text = self._text("replica", replica) if nodes is None else self._text("node", nodes.get(replica, ""))
            if replica in fleet.health:
                name, count = fleet.health.state(replica)
                state_of.sum(1, text.states[name])
                ejections.sum(count, text.head)
            _add_load(ledger, text.head, load)
            _add_reported(ledger, text.head, now, reported)
            if nodes is None:
                for term, value in entropy_terms(ledger, now).items():
                    if term[-2:] == "_s" and value < math.inf:
                        entropy.sum(value, text.term(term))
        blind = Family(
            "exaserve_policy_without_signal_total", "counter", "Decisions for which a wanted signal was unknown."
        )
        for signal, blinds in fleet.scheduler.signal_missing().items():
            blind.add(blinds, labels(signal=signal))
        shunned = Family("exaserve_replicas_shunned", "gauge", "Replicas that reject what their peers accept.")
        for (model, route), replicas in fleet.scheduler.shunned().items():
            shunned.add(len(replicas), labels(model=model, route=route))
        yield known
        yield ready
        yield state_of
        yield from load
        yield from reported
        yield entropy
        yield ejections
        yield blind
        yield shunned

    def _text(self, label: str, value: str) -> _Labels:
        text = self._labels.get(value)
        if text is None or text.label != label:
            text = self._labels[value] = _Labels(label, value)
        return text


class _Labels:
    """Label texts of one replica, or of one node."""

    __slots__ = ("_terms", "_value", "head", "label", "states")

    def __init__(self, label: str, value: str) -> None:
        self.label = label
        self._value = value
        self.head = labels(**{label: value})
        self.states = {each.value: labels(**{label: value, "state": each.value}) for each in State}
        self._terms: dict[str, str] = {}

    def term(self, name: str) -> str:
        text = self._terms.get(name)
        if text is None:
            text = self._terms[name] = labels(**{self.label: self._value, "term": name[:-2]})
        return text


def _load_families() -> tuple[Family, Family, Family, Family, Family]:
    return (
        Family("exaserve_replica_eligible", "gauge", "1 where the replica may take requests."),
        Family("exaserve_replica_share", "gauge", "Slow-start share times weight, 1 is normal."),
        Family("exaserve_replica_inflight", "gauge", "Placements of this gateway not yet released."),
        Family("exaserve_replica_pending_seconds", "gauge", "Prefill placed and without a first token, seconds."),
        Family("exaserve_replica_ledger_kv_tokens", "gauge", "KV tokens charged by this gateway."),
    )


def _add_load(ledger: ReplicaLedger, head: str, families: tuple[Family, Family, Family, Family, Family]) -> None:
    eligible, share, inflight, pending, kv_own = families
    eligible.sum(int(ledger.eligible), head)
    share.sum(ledger.standing.ramp * ledger.standing.weight, head)
    inflight.sum(ledger.inflight, head)
    pending.sum(ledger.pending_s, head)
    kv_own.sum(ledger.kv.own, head)


def _reported_families() -> tuple[Family, Family, Family, Family]:
    return (
        Family("exaserve_replica_running", "gauge", "Running requests, as last reported."),
        Family("exaserve_replica_waiting", "gauge", "Waiting requests, as last reported."),
        Family("exaserve_replica_kv_use_ratio", "gauge", "Share of KV blocks in use, as last reported."),
        Family("exaserve_replica_report_age_seconds", "gauge", "Age of the last report, seconds."),
    )


def _add_reported(
    ledger: ReplicaLedger, head: str, now: float, families: tuple[Family, Family, Family, Family]
) -> None:
    """What the last report says. An unknown figure has no sample: it is not zero."""
    running, waiting, kv_use, age = families
    report = ledger.seen.report
    if report is None:
        return
    age.top(now - ledger.seen.at, head)
    if not ledger.seen.fresh:
        return
    if report.running is not None:
        running.sum(report.running, head)
    if report.waiting is not None:
        waiting.sum(report.waiting, head)
    if report.kv_use is not None:
        kv_use.top(report.kv_use, head)
