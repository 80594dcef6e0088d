"""The life of a replica on its node, as a table.

Theory. An engine that has a process may not yet be able to answer, and one that answers may have stopped to generate.
So the states are about what was *shown*: ``LOADING`` has a process, ``WARMING`` has answered a completion once,
``READY`` has answered all its warming requests in time. Only READY takes clients' requests::

    STOPPED ─START─▶ STARTING ─SPAWNED─▶ LOADING ─ANSWERED─▶ WARMING ─WARMED─▶ READY ◀─RESUME─┐
       ▲                ▲                   │                   │                │ └──DRAIN─▶ DRAINING
       │                │START              ├───────EXITED──────┴───────┬────────┘               │
       │             BACKOFF ◀──────────────┘                           │                        │
       │                │GIVE_UP                                      STOP (drained, hung, asked)│
       │                ▼                                               ▼                        │
       │              FAILED ─START─▶ STARTING                       STOPPING ◀──────────────────┘
       └──────────────────────────────EXITED────────────────────────────┘ (BROKE ─▶ BACKOFF)

A process that ends unasked goes through BACKOFF, where the restart policy decides between START and GIVE_UP; so does
one that we had to end because it did not work (BROKE), in whatever state it was when its supervision failed. A restart
that an operator asks for is a stop that is followed by a START. A pair that is not in the table is a bug of the caller,
and raises.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["HAS_PROCESS", "TRANSITIONS", "IllegalUnitTransition", "UnitEvent", "UnitState", "transition"]


class UnitState(Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    """Its ports are held and its process is being made."""
    LOADING = "loading"
    """The process runs and has answered nothing yet."""
    WARMING = "warming"
    """It has answered a completion; kernels are being compiled and caches filled by a few more."""
    READY = "ready"
    DRAINING = "draining"
    """Takes no new request; those in flight go on."""
    STOPPING = "stopping"
    """SIGTERM has been sent, SIGKILL follows."""
    BACKOFF = "backoff"
    """It ended unasked and waits for its restart."""
    FAILED = "failed"
    """Given up; only an operator starts it again."""


class UnitEvent(Enum):
    START = "start"
    SPAWNED = "spawned"
    ANSWERED = "answered"
    WARMED = "warmed"
    DRAIN = "drain"
    RESUME = "resume"
    STOP = "stop"
    EXITED = "exited"
    BROKE = "broke"
    """It was ended because it hung, never answered, or its supervision itself failed."""
    GIVE_UP = "give_up"


class IllegalUnitTransition(AssertionError):
    """The event cannot happen in this state: the caller is wrong."""


HAS_PROCESS = frozenset({UnitState.LOADING, UnitState.WARMING, UnitState.READY, UnitState.DRAINING, UnitState.STOPPING})

TRANSITIONS: dict[tuple[UnitState, UnitEvent], UnitState] = {
    (UnitState.STOPPED, UnitEvent.START): UnitState.STARTING,
    (UnitState.FAILED, UnitEvent.START): UnitState.STARTING,
    (UnitState.BACKOFF, UnitEvent.START): UnitState.STARTING,
    (UnitState.STARTING, UnitEvent.SPAWNED): UnitState.LOADING,
    (UnitState.STARTING, UnitEvent.EXITED): UnitState.BACKOFF,
    (UnitState.LOADING, UnitEvent.ANSWERED): UnitState.WARMING,
    (UnitState.LOADING, UnitEvent.EXITED): UnitState.BACKOFF,
    (UnitState.WARMING, UnitEvent.WARMED): UnitState.READY,
    (UnitState.WARMING, UnitEvent.EXITED): UnitState.BACKOFF,
    (UnitState.READY, UnitEvent.DRAIN): UnitState.DRAINING,
    (UnitState.READY, UnitEvent.EXITED): UnitState.BACKOFF,
    (UnitState.DRAINING, UnitEvent.RESUME): UnitState.READY,
    (UnitState.DRAINING, UnitEvent.EXITED): UnitState.BACKOFF,
    (UnitState.BACKOFF, UnitEvent.GIVE_UP): UnitState.FAILED,
    (UnitState.BACKOFF, UnitEvent.STOP): UnitState.STOPPED,
    (UnitState.FAILED, UnitEvent.STOP): UnitState.STOPPED,
    (UnitState.STARTING, UnitEvent.STOP): UnitState.STOPPING,
    (UnitState.LOADING, UnitEvent.STOP): UnitState.STOPPING,
    (UnitState.WARMING, UnitEvent.STOP): UnitState.STOPPING,
    (UnitState.READY, UnitEvent.STOP): UnitState.STOPPING,
    (UnitState.DRAINING, UnitEvent.STOP): UnitState.STOPPING,
    (UnitState.STOPPING, UnitEvent.EXITED): UnitState.STOPPED,
    (UnitState.STARTING, UnitEvent.BROKE): UnitState.BACKOFF,
    (UnitState.LOADING, UnitEvent.BROKE): UnitState.BACKOFF,
    (UnitState.WARMING, UnitEvent.BROKE): UnitState.BACKOFF,
    (UnitState.READY, UnitEvent.BROKE): UnitState.BACKOFF,
    (UnitState.DRAINING, UnitEvent.BROKE): UnitState.BACKOFF,
    (UnitState.STOPPING, UnitEvent.BROKE): UnitState.BACKOFF,
    (UnitState.BACKOFF, UnitEvent.BROKE): UnitState.BACKOFF,
}


def transition(state: UnitState, event: UnitEvent) -> UnitState:
    """The state after ``event``. Raises :class:`IllegalUnitTransition` where the table has no such pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalUnitTransition(f"{event.name} cannot happen in {state.name}") from None
