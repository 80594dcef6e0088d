"""The event loop: a heap of ``(instant, order, function, a, b)`` in virtual time, and what all parts share.

Same seed, same result, to the byte: ties are broken by the order in which events were made, every random stream has a
seed of its own, and nothing reads a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from exaserve.config import Cluster
from exaserve.domain.replica import ReplicaId
from exaserve.simulate.record import Recorder
from exaserve.simulate.settings import SimSettings

__all__ = ["World"]

Action = Callable[[float, Any, Any], None]


class World:
    """Time, chance, and the count of who waits and who is idle.

    Attributes:
        now: instant of the event under way.
        open: requests that have not ended.
        waiting: requests that no engine computes yet: in engines' queues and in admission queues.
        idle: replicas that are up, take requests and have nothing to do.
        up: replicas that are up and take requests.
    """

    def __init__(self, cluster: Cluster, settings: SimSettings, recorder: Recorder, measure_to_s: float) -> None:
        self.cluster = cluster
        self.settings = settings
        self.recorder = recorder
        self.rng = Random(f"{settings.seed}/world")
        self.replicas: dict[ReplicaId, Any] = {}
        self.gateways: list[Any] = []
        self.heap: list[tuple[float, int, Action, Any, Any]] = []
        self.events_total = 0
        self.now = 0.0
        self.open = 0
        self.waiting = self.idle = self.up = 0
        self.waited_s = self.idle_while_waiting_s = self.up_while_waiting_s = 0.0
        self._counted_to = settings.warmup_s
        self._measure_to = measure_to_s
        self._order = 0

    def at(self, instant: float, action: Action, a: Any = None, b: Any = None) -> None:
        """Calls ``action(instant, a, b)`` when it is due."""
        self._order += 1
        heapq.heappush(self.heap, (instant, self._order, action, a, b))

    def run_until(self, instant: float) -> None:
        """Does what is due up to ``instant``."""
        heap, pop = self.heap, heapq.heappop
        count = 0
        while heap and heap[0][0] <= instant:
            now, _, action, a, b = pop(heap)
            count += 1
            self.now = now
            action(now, a, b)
        self.events_total += count

    def run_out(self, end: float) -> None:
        """Does what is due until no request is open, at the latest until ``end``."""
        heap, pop = self.heap, heapq.heappop
        while self.open and heap and heap[0][0] <= end:
            now, _, action, a, b = pop(heap)
            self.events_total += 1
            self.now = now
            action(now, a, b)

    def count(self, now: float, waiting: int, idle: int, up: int = 0) -> None:
        """The numbers of waiting requests, of idle and of usable replicas change by these amounts."""
        end = min(self._measure_to, now)
        passed = end - self._counted_to
        if passed > 0.0:
            if self.waiting:
                self.waited_s += passed
                self.idle_while_waiting_s += passed * self.idle
                self.up_while_waiting_s += passed * self.up
            self._counted_to = end
        self.waiting += waiting
        self.idle += idle
        self.up += up

    @property
    def idle_share(self) -> float:
        """Share of the usable replicas' time, while anybody waited, in which they had nothing to do (A16)."""
        return self.idle_while_waiting_s / self.up_while_waiting_s if self.up_while_waiting_s else 0.0
