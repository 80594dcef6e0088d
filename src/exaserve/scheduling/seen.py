# compiled
"""What a replica's last report showed, and what has moved since: credit only for work newer than it."""

from __future__ import annotations

import math

from exaserve.domain.replica import Report

__all__ = ["Seen"]


class Seen:
    """The last report of one replica, and what of its load this gateway did not place.

    Attributes:
        report: as it came, None before the first and after a restart.
        at / seq: until when its figures are known to hold (monotonic seconds), and its newest number.
        fresh: whether it is believed; a report that is too old is not.
        waiting: queued requests it showed, -1 where unknown.
        placed_since / progressed_since: own and told requests placed, and first tokens or ends seen, since.
        foreign_waiting / foreign_running: requests it showed beyond what is known here.
    """

    __slots__ = (
        "at", "foreign_running", "foreign_waiting", "fresh", "placed_since", "progressed_since", "report", "seq",
        "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.report: Report | None = None
        self.at = -math.inf
        self.seq = -1
        self.fresh = False
        self.waiting = -1
        self.placed_since = 0
        self.progressed_since = 0
        self.foreign_waiting = 0
        self.foreign_running = 0

    def is_news(self, report: Report) -> bool:
        """Whether ``report`` is newer than the one held."""
        return report.seq > self.seq and report.taken_at >= self.at

    def take(self, report: Report, pending: int, known: int, newer: int) -> None:
        """Believe ``report``.

        Args:
            pending / known: requests known here that wait for their first token, and all that are not released.
            newer: those of them placed after the report was taken.
        """
        self.report = report
        self.seq = report.seq
        self.at = report.taken_at
        self.fresh = True
        waiting = report.waiting
        if waiting is None:
            self.waiting = -1
            waiting = 0
        else:
            self.waiting = waiting
        self.placed_since = newer
        self.progressed_since = 0
        foreign = waiting + (report.running or 0) - (known - newer)
        foreign_waiting = 0
        if foreign > 0:
            unknown = waiting - (pending - newer)
            if unknown > 0:
                foreign_waiting = unknown if unknown < foreign else foreign  # noqa: FURB136  # min() is a call
            foreign -= foreign_waiting
        self.foreign_running = foreign if foreign > 0 else 0  # noqa: FURB136
        self.foreign_waiting = foreign_waiting

    def disbelieve(self) -> None:
        """Too old: the ledger alone judges from here on."""
        self.fresh = False
        self.waiting = -1
        self.foreign_waiting = self.foreign_running = 0

    def forget(self) -> None:
        """The engine restarted: its report and the numbers of its source mean nothing now."""
        self.report = None
        self.seq, self.at = -1, -math.inf
        self.disbelieve()

    def depth(self, pending: int, assumed: int) -> int:
        """Requests believed to wait for their first token.

        Args:
            pending / assumed: those known here that have shown no first token: by prediction they wait, or do not. The
                engine knows better, so what a report shows waiting may be either.
        """
        if self.waiting < 0:
            return pending
        # Nobody can be waiting but our own without a first token, and what others had waiting.
        depth = self.waiting + self.placed_since - self.progressed_since
        most = pending + assumed + self.foreign_waiting
        depth = most if depth > most else depth  # noqa: FURB136  # min() and max() are calls
        return 0 if depth < 0 else depth  # noqa: FURB136
