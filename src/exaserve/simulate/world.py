# compiled
"""The event loop: a calendar of ``(instant, order, function, a, b)`` in virtual time, and what all parts share.

Events stand in days of a fraction of a millisecond; a day is sorted when it comes, and only the days' numbers are in a
heap. With thousands of replicas that is several times cheaper than one heap of all events.

Same seed, same result, to the byte: ties are broken by the order in which events were made, every random stream has a
seed of its own, and nothing reads a clock.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable
from random import Random
from typing import Any, Final

from exaserve.config import Cluster
from exaserve.domain.replica import ReplicaId
from exaserve.simulate.recorder import Recorder
from exaserve.simulate.settings import SimSettings

__all__ = ["Stepper", "World"]

Action = Callable[[float, Any, Any], None]
Event = tuple[float, int, object, Any, Any]

_DAYS_PER_S: Final = 4096.0


class Stepper:
    """Something with one instant of its own at a time, which is often moved.

    Attributes:
        due: that instant, -1 for none. What the calendar holds for it at other instants is void.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = -1.0

    def step(self, now: float) -> None:
        """It is ``due``; ``due`` has been set to -1."""


class World:
    """Time, chance, and the count of who waits and who is idle.

    Attributes:
        now: instant of the event under way.
        due: instant of the next event, infinite while there is none.
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
        self.events_total = 0
        self.now = 0.0
        self.due = math.inf
        self._days: dict[int, list[Event]] = {}
        self._order_of_days: list[int] = []
        """Heap of the keys of ``_days``."""
        self._day = -1
        """The day under way: its events from ``_at`` on are to come, in order."""
        self._today: list[Event] = []
        self._at = 0
        self.open = 0
        self.waiting = self.idle = self.up = 0
        self.waited_s = self.idle_while_waiting_s = self.up_while_waiting_s = 0.0
        self._counted_to = settings.warmup_s
        self._measure_to = measure_to_s
        self._order = 0

    def at(self, instant: float, action: Action, a: Any = None, b: Any = None) -> None:
        """Calls ``action(instant, a, b)`` when it is due."""
        self._note(instant, action, a, b)

    def step_at(self, instant: float, stepper: Stepper) -> None:
        """Moves the instant of ``stepper``."""
        stepper.due = instant
        self._note(instant, stepper, None, None)

    def _note(self, instant: float, target: object, a: Any, b: Any) -> None:
        self._order += 1
        event = (instant, self._order, target, a, b)
        day = int(instant * _DAYS_PER_S)
        if day <= self._day:
            insort(self._today, event, self._at)
        else:
            events = self._days.get(day)
            if events is None:
                self._days[day] = [event]
                heapq.heappush(self._order_of_days, day)
            else:
                events.append(event)
        if instant < self.due:  # noqa: PLR1730  # min() is a call
            self.due = instant

    def _next(self) -> Event:
        """Takes out the next event; call only while one is due."""
        today = self._today
        at = self._at
        if at >= len(today):
            self._day = heapq.heappop(self._order_of_days)
            today = self._today = self._days.pop(self._day)
            today.sort()
            at = 0
        event = today[at]
        self._at = at = at + 1
        if at < len(today):
            self.due = today[at][0]
        elif self._order_of_days:
            self.due = min(self._days[self._order_of_days[0]])[0]
        else:
            self.due = math.inf
        return event

    def run_until(self, instant: float) -> None:
        """Does what is due up to ``instant``."""
        while self.due <= instant:
            self._do_next()

    def run_out(self, end: float) -> None:
        """Does what is due until no request is open, at the latest until ``end``."""
        while self.open and self.due <= end:
            self._do_next()

    def _do_next(self) -> None:
        now, _, target, a, b = self._next()
        self.events_total += 1
        self.now = now
        if isinstance(target, Stepper):
            if target.due == now:
                target.due = -1.0
                target.step(now)
        else:
            target(now, a, b)  # type: ignore[operator]  # an Action

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
        """Share of the usable replicas' time, while anybody waited, in which they had nothing to do."""
        return self.idle_while_waiting_s / self.up_while_waiting_s if self.up_while_waiting_s else 0.0
