# compiled
"""The states, events and effects of a request's life, and which state may follow which.

:mod:`exaserve.serving.journey` has the theory and the picture.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANSWER",
    "BACKING_OFF",
    "BEGIN",
    "BREAK",
    "CONNECTING",
    "DISPATCHED",
    "DONE",
    "END",
    "ENDED",
    "EVACUATED",
    "EVENTS",
    "EXPIRED",
    "FAILED",
    "FIRST_BYTE",
    "HEAD",
    "LEFT",
    "LEGAL",
    "NOTHING",
    "PARK",
    "PASS_ON",
    "PLACING",
    "QUEUED",
    "RECONNECT",
    "RELAYING",
    "SEND",
    "SENT",
    "STATES",
    "STOPPED",
    "TRANSITIONS",
    "WAITING",
]

PLACING: Final = 0
QUEUED: Final = 1
BACKING_OFF: Final = 2
CONNECTING: Final = 3
WAITING: Final = 4
RELAYING: Final = 5
DONE: Final = 6
STATES = ("PLACING", "QUEUED", "BACKING_OFF", "CONNECTING", "WAITING", "RELAYING", "DONE")

BEGIN: Final = 0
DISPATCHED: Final = 1
SENT: Final = 2
FAILED: Final = 3
HEAD: Final = 4
FIRST_BYTE: Final = 5
ENDED: Final = 6
EXPIRED: Final = 7
EVACUATED: Final = 8
LEFT: Final = 9
"""The client has gone."""
STOPPED: Final = 10
"""The gateway ends."""
EVENTS = (
    "BEGIN", "DISPATCHED", "SENT", "FAILED", "HEAD", "FIRST_BYTE", "ENDED", "EXPIRED", "EVACUATED", "LEFT", "STOPPED",
)  # fmt: skip

NOTHING: Final = 0
SEND: Final = 1
"""Leave the connection you have; send the request where ``placement`` says."""
RECONNECT: Final = 2
"""The same, over a new connection: the old one was dead."""
PARK: Final = 3
"""Leave the connection you have; wait for the queue or the deadline."""
PASS_ON: Final = 4
"""Relay the answer whose head has come, and say when its first byte goes out."""
ANSWER: Final = 5
"""Over: answer with ``error``; nothing has been sent yet."""
BREAK: Final = 6
"""Over: the answer that has begun will not be finished, because of ``error``."""
END: Final = 7
"""Over: nothing is left to say."""

# Where a request goes that has no replica (any more).
_PLACED = frozenset({CONNECTING, QUEUED, BACKING_OFF, DONE})
_OVER = frozenset({DONE})

TRANSITIONS: dict[tuple[int, int], frozenset[int]] = {
    (PLACING, BEGIN): _PLACED,
    (QUEUED, DISPATCHED): frozenset({CONNECTING}),
    (QUEUED, EXPIRED): _OVER,
    (QUEUED, LEFT): _OVER,
    (QUEUED, STOPPED): _OVER,
    (BACKING_OFF, EXPIRED): _PLACED,
    (BACKING_OFF, LEFT): _OVER,
    (BACKING_OFF, STOPPED): _OVER,
    (CONNECTING, SENT): frozenset({WAITING}),
    (CONNECTING, FAILED): _PLACED,
    (CONNECTING, EXPIRED): _OVER,
    (CONNECTING, EVACUATED): _PLACED | {CONNECTING},
    (CONNECTING, LEFT): _OVER,
    (CONNECTING, STOPPED): _OVER,
    (WAITING, FAILED): _PLACED,
    (WAITING, HEAD): frozenset({WAITING, CONNECTING}),
    (WAITING, FIRST_BYTE): frozenset({RELAYING}),
    (WAITING, ENDED): _OVER,
    (WAITING, EXPIRED): _PLACED,
    (WAITING, EVACUATED): _PLACED | {WAITING},
    (WAITING, LEFT): _OVER,
    (WAITING, STOPPED): _OVER,
    (RELAYING, FAILED): _OVER,
    (RELAYING, ENDED): _OVER,
    (RELAYING, EXPIRED): _OVER,
    (RELAYING, EVACUATED): frozenset({RELAYING}),
    (RELAYING, LEFT): _OVER,
    (RELAYING, STOPPED): _OVER,
}
"""State and event to the states that may follow. A pair that is not here is a mistake of the executor and raises."""


def _mask(state: int, event: int) -> int:
    return sum(1 << after for after in TRANSITIONS.get((state, event), ()))


LEGAL: Final = tuple(_mask(state, event) for state in range(len(STATES)) for event in range(len(EVENTS)))
"""Bits of the states that may follow, by ``state * len(EVENTS) + event``."""
