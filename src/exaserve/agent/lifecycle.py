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

__all__ = ["HAS_PROCESS", "TRANSITIONS", "Event", "IllegalTransition", "State", "transition"]


class State(Enum):
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


class Event(Enum):
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


class IllegalTransition(AssertionError):
    """The event cannot happen in this state: the caller is wrong."""


HAS_PROCESS = frozenset({State.LOADING, State.WARMING, State.READY, State.DRAINING, State.STOPPING})

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.STOPPED, Event.START): State.STARTING,
    (State.FAILED, Event.START): State.STARTING,
    (State.BACKOFF, Event.START): State.STARTING,
    (State.STARTING, Event.SPAWNED): State.LOADING,
    (State.STARTING, Event.EXITED): State.BACKOFF,
    (State.LOADING, Event.ANSWERED): State.WARMING,
    (State.LOADING, Event.EXITED): State.BACKOFF,
    (State.WARMING, Event.WARMED): State.READY,
    (State.WARMING, Event.EXITED): State.BACKOFF,
    (State.READY, Event.DRAIN): State.DRAINING,
    (State.READY, Event.EXITED): State.BACKOFF,
    (State.DRAINING, Event.RESUME): State.READY,
    (State.DRAINING, Event.EXITED): State.BACKOFF,
    (State.BACKOFF, Event.GIVE_UP): State.FAILED,
    (State.BACKOFF, Event.STOP): State.STOPPED,
    (State.FAILED, Event.STOP): State.STOPPED,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.LOADING, Event.STOP): State.STOPPING,
    (State.WARMING, Event.STOP): State.STOPPING,
    (State.READY, Event.STOP): State.STOPPING,
    (State.DRAINING, Event.STOP): State.STOPPING,
    (State.STOPPING, Event.EXITED): State.STOPPED,
    (State.STARTING, Event.BROKE): State.BACKOFF,
    (State.LOADING, Event.BROKE): State.BACKOFF,
    (State.WARMING, Event.BROKE): State.BACKOFF,
    (State.READY, Event.BROKE): State.BACKOFF,
    (State.DRAINING, Event.BROKE): State.BACKOFF,
    (State.STOPPING, Event.BROKE): State.BACKOFF,
    (State.BACKOFF, Event.BROKE): State.BACKOFF,
}


def transition(state: State, event: Event) -> State:
    """The state after ``event``. Raises :class:`IllegalTransition` where the table has no such pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"{event.name} cannot happen in {state.name}") from None
