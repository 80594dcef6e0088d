"""Which kinds of requests that a replica rejects, though its peers accept them, are to be tried by a probe, and when.

A probe that is answered well ends the shunning only where a probe had been rejected before: the replica has been
mended in between. One that never was does not show what clients' requests are rejected for (say, tools or images), and
says nothing of its end. As long as probes are rejected, no client's request is spent on trying; for what probes do not
show, or cannot ask, the scheduler lets a client's request through once the time is over.
"""

from __future__ import annotations

import math
from collections.abc import Container

from exaserve.domain.replica import ReplicaId
from exaserve.scheduling import Scheduler

__all__ = ["Trial", "Trials"]

Trial = tuple[ReplicaId, str, str]
"""Replica, model and route."""


class Trials:
    """One gateway's. Keeps one flag for each replica that is shunned for a kind that can be probed, and costs by their
    number once per round.

    Args:
        routes: the routes that probes can ask.
        round_s: between two probes of one replica and kind, seconds.
    """

    def __init__(self, scheduler: Scheduler, routes: Container[str], round_s: float) -> None:
        self._scheduler = scheduler
        self._routes = routes
        self._round_s = round_s
        self._round_at = -math.inf
        self._rejected: dict[Trial, bool] = {}
        """Whether a probe has been rejected."""
        self._waiting: list[Trial] = []

    def due(self, now: float, room: int) -> list[Trial]:
        """Up to ``room`` to probe now. Each is asked at most once in a round, and a round begins when the last one's
        have all been taken."""
        if not self._waiting and now - self._round_at >= self._round_s:
            self._round_at = now
            self._waiting = [
                (replica, model, route)
                for (model, route), replicas in self._scheduler.shunned().items()
                if route in self._routes
                for replica in replicas
            ]
            self._rejected = {trial: self._rejected.get(trial, False) for trial in self._waiting}
        taken, self._waiting = self._waiting[:room], self._waiting[room:]
        return taken

    def finished(self, trial: Trial, status: int | None, now: float, timeout_s: float) -> bool:
        """A probe of it has ended; returns whether the replica gets such requests again. ``timeout_s``: how long the
        next probe may take. No answer, 429 and 5xx say nothing of what it accepts."""
        if status is None or trial not in self._rejected:
            return False
        replica, model, route = trial
        if 400 <= status < 500 and status != 429:
            self._rejected[trial] = True
            self._scheduler.postpone(replica, model, route, now + 2.0 * self._round_s + timeout_s)
        elif 200 <= status < 300 and self._rejected[trial]:
            del self._rejected[trial]
            self._scheduler.forgive(replica, model, route)
            return True
        return False
