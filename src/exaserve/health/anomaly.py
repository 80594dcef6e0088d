# compiled
"""Replicas whose score looks too good to be true."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from exaserve.domain.replica import ReplicaId

__all__ = ["AnomalyGuard"]


_SCORE_MAX = 1e12


class AnomalyGuard:
    """A score far below everyone's in several reports running draws all traffic to its replica. If it is wrong (in the
    known case a clock out of step made a replica look fresh for ever) that replica drowns, so it is suspected for a
    while and the scheduler gives it less. It is never taken out: the score may be honest.

    Args:
        sigmas: how many standard deviations below the mean are suspect.
        reports_min: in how many observations running.
        hold_s: how long the suspicion lasts after the last such observation, seconds.
        population_min: with n scores none can be more than (n-1)/√n deviations from their mean, which is under 2 up to
            n = 5: below this many nothing is said.
    """

    def __init__(
        self, *, sigmas: float = 2.0, reports_min: int = 3, hold_s: float = 30.0, population_min: int = 6
    ) -> None:
        self._sigmas = sigmas
        self._reports_min = reports_min
        self._hold_s = hold_s
        self._population_min = population_min
        self._runs: dict[ReplicaId, int] = {}
        self._until: dict[ReplicaId, float] = {}

    def observe(
        self, groups: Iterable[Mapping[ReplicaId, float]], now: float, idle: Collection[ReplicaId] = ()
    ) -> set[ReplicaId]:
        """One round of scores (lower takes more traffic); returns who is suspect at ``now``.

        Args:
            groups: scores of equal replicas, which are compared with each other only. Scores that are not finite (or
                absurd) take no part. Replicas in no group are forgotten once their time is over.
            idle: those that have less to do than their peers. Theirs is the low score that one expects.
        """
        runs: dict[ReplicaId, int] = {}
        for scores in groups:
            finite = {replica: score for replica, score in scores.items() if abs(score) < _SCORE_MAX}
            threshold = self._threshold(list(finite.values()))
            for replica, score in finite.items():
                if score < threshold and replica not in idle:
                    run = runs[replica] = min(self._runs.get(replica, 0) + 1, self._reports_min)
                    if run == self._reports_min:
                        self._until[replica] = now + self._hold_s
        self._runs = runs
        self._until = {replica: until for replica, until in self._until.items() if until > now}
        return set(self._until)

    def forget(self, replica: ReplicaId) -> None:
        """The operator, or a restart, cleared it."""
        self._runs.pop(replica, None)
        self._until.pop(replica, None)

    def __contains__(self, replica: ReplicaId) -> bool:
        """Whether anything is remembered of it."""
        return replica in self._runs or replica in self._until

    def _threshold(self, scores: list[float]) -> float:
        count = len(scores)
        if count < self._population_min:
            return -math.inf
        mean = math.fsum(scores) / count
        deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / count)
        return mean - self._sigmas * deviation if deviation > 1e-9 * max(1.0, abs(mean)) else -math.inf
