"""The life of a replica, as a table.

Theory. A gateway knows a replica's health only from what it sees: probes that it sends and answers to clients'
requests. Both are noisy, so one observation never moves a replica between "may take requests" and "may not"; it takes
a run of them (:class:`HealthConfig`), in both directions. That is the hysteresis, and it lives in
:class:`HealthBook`, which turns observations into the events below. This table says only what an event means in each
state::

    UNKNOWN ──PROBED_WELL──▶ HEALTHY ◀──RAMPED── RAMPING
                                │                 │   ▲
                             TRIPPED           TRIPPED│PROBED_WELL
                                ▼                 ▼   │
                             EJECTED ◀─PROBED_BADLY─ HALF_OPEN
                                └──────COOLED──────────▶┘

- UNKNOWN: never probed with success; takes nothing. A first success is enough to use it: it has no bad past.
- HEALTHY: takes its full share.
- RENEWED leads from HEALTHY and RAMPING to HALF_OPEN: another process answers there, perhaps with other models.
- EJECTED: the breaker is open. Takes nothing and is not even probed until it has cooled, each time longer.
- HALF_OPEN: still takes no client's request. Probes, which nobody waits for, decide.
- RAMPING: back, with a share that grows, since its caches are cold and every gateway sees it empty at the same time.

TRIPPED and PROBED_WELL stand for whole runs of observations. A pair that is not in the table is a bug in the caller,
and raises. Stragglers (answers to requests placed before an ejection) are dropped before they become events.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["AVAILABLE", "TRANSITIONS", "Event", "IllegalTransition", "State", "transition"]


class State(Enum):
    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    EJECTED = "ejected"
    HALF_OPEN = "half_open"
    RAMPING = "ramping"


class Event(Enum):
    PROBED_WELL = "probed_well"
    """Enough successful probes in a row."""
    PROBED_BADLY = "probed_badly"
    """A probe failed while the replica was taking nothing."""
    TRIPPED = "tripped"
    """Too many failures, passive or probed, in a row or by rate."""
    COOLED = "cooled"
    """The open time is over."""
    RENEWED = "renewed"
    """Another process answers at its address."""
    RAMPED = "ramped"
    """The slow start is over."""


class IllegalTransition(AssertionError):
    """The event cannot happen in this state: the caller is wrong."""


AVAILABLE = frozenset({State.HEALTHY, State.RAMPING})
"""States in which a replica takes clients' requests."""

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.UNKNOWN, Event.PROBED_WELL): State.HEALTHY,
    (State.UNKNOWN, Event.PROBED_BADLY): State.UNKNOWN,
    (State.HEALTHY, Event.TRIPPED): State.EJECTED,
    (State.HEALTHY, Event.RENEWED): State.HALF_OPEN,
    (State.EJECTED, Event.COOLED): State.HALF_OPEN,
    (State.HALF_OPEN, Event.PROBED_WELL): State.RAMPING,
    (State.HALF_OPEN, Event.PROBED_BADLY): State.EJECTED,
    (State.RAMPING, Event.RAMPED): State.HEALTHY,
    (State.RAMPING, Event.TRIPPED): State.EJECTED,
    (State.RAMPING, Event.RENEWED): State.HALF_OPEN,
}


def transition(state: State, event: Event) -> State:
    """The state after ``event``. Raises :class:`IllegalTransition` where the table has no such pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"{event.name} cannot happen in {state.name}") from None
