"""Limits among peers: what each used is told at once, so that one bound is one bound over all gateways.

Frames are MessagePack lists: ``["used", number, [[meter, second, amount], ...]]`` says what the sender used, and gave
back, since its last frame, the first time all of its window; ``["heard", number]`` confirms all up to that number;
``["period", [[meter, day or month, gateway, amount], ...]]`` are sums of calendar periods, of all gateways that the
sender knows of, and the larger holds. What a peer told of minutes is forgotten when it is lost, and told anew when it
is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from exaserve.control.limits import LimitBook
from exaserve.control.meters import SPAN_S, TOKENS_PERIOD, Meter
from exaserve.gateway.guard.periods import PeriodKeeper
from exaserve.gateway.peers.link import PeerLink
from exaserve.observe import EventLog
from exaserve.wire import FrameKind, WireError

__all__ = ["FLUSH_S", "PERIODS_S", "LimitSync"]

FLUSH_S = 0.005
"""From a use to its telling, together with all others meanwhile; half of how old what a peer knows is."""
PERIODS_S = 0.5
"""Between two tellings of the sums of days and months, and two looks at how many peers there should be."""
_PENDING_MAX = 4096
"""Tellings that peers have not confirmed; beyond, the oldest count as heard."""
_ROWS_MAX = 20_000
_TOLD_MAX = 100_000
"""Seconds of meters of one peer beyond which those that have left the window are forgotten."""
_Row = tuple[str, int, float]


class LimitSync:
    """Args:

    links: the peers that are connected.
    expected: how many the configuration names.
    periods: sums of days and months.
    wall: seconds since 1970.
    """

    def __init__(
        self,
        limits: LimitBook,
        links: Callable[[], list[PeerLink]],
        expected: Callable[[], int],
        periods: PeriodKeeper,
        wall: Callable[[], float],
        log: EventLog,
    ) -> None:
        self._limits = limits
        limits.on_change = self._soon
        self._links = links
        self._expected = expected
        self._periods = periods
        self._wall = wall
        self._log = log
        self._number = 0
        self._pending: deque[tuple[int, list[tuple[Meter, float]]]] = deque()
        self._heard: dict[PeerLink, int] = {}
        self._told: dict[PeerLink, dict[tuple[str, int], float]] = {}
        """What each peer told, by meter and the second in which it is counted here."""
        self._known = (0, 0)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._recount()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self._limits.on_change = int
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIODS_S)
            self._recount()
            if links := self._links():
                rows = self._periods.told()
                for link in links if rows else ():
                    self._send(link, ("period", rows))

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Tells what changed since the last time."""
        self._timer = None
        limits = self._limits
        rows: list[_Row] = []
        amounts: list[tuple[Meter, float]] = []
        for meter in limits.changed:
            if meter.changes:
                rows += [(meter.name, second, amount) for second, amount in meter.changes.items()]
                amounts.append((meter, sum(meter.changes.values())))
                meter.changes = {}
        limits.changed.clear()
        links = self._links()
        if not rows or not links:
            return
        self._number += 1
        self._pending.append((self._number, amounts))
        if len(self._pending) > _PENDING_MAX:
            self._confirm(self._pending[0][0])
        for piece in _pieces(rows):
            for link in links:
                self._send(link, ("used", self._number, piece))

    def greeted(self, link: PeerLink) -> None:
        """A peer has come: it learns the whole window."""
        self._heard[link] = self._number
        minutes = [meter for meter in self._limits.meters.values() if meter.kind < TOKENS_PERIOD]
        rows = [(meter.name, second, amount) for meter in minutes for second, amount in meter.told()]
        for piece in _pieces(rows):
            self._send(link, ("used", self._number, piece))
        self._recount()

    def lost(self, link: PeerLink) -> None:
        """A peer is gone, and with it what it told."""
        self._heard.pop(link, None)
        now = int(self._wall())
        for (name, second), amount in self._told.pop(link, {}).items():
            self._limits.hear(name, second, -amount, now)
        self._confirm(min(self._heard.values(), default=self._number))
        self._recount()

    def _recount(self) -> None:
        """How many gateways there are, and how many there should be."""
        known = len(self._links()), self._expected()
        if known != self._known:
            self._known = known
            before = self._limits.share
            self._limits.share_with(*known)
            if self._limits.share != before:
                self._say(self._limits.share)

    def _say(self, share: float) -> None:
        if share < 1.0:
            why = "peers are lost; each side keeps to its part of every limit until they are back"
            self._log.warning("limits_in_part", share=round(share, 3), why=why)
        else:
            self._log.info("limits_whole", why="all peers are connected")

    def _greet(self, link: PeerLink) -> None:
        """It learns the whole window."""
        self._heard[link] = self._number
        minutes = [meter for meter in self._limits.meters.values() if meter.kind < TOKENS_PERIOD]
        rows = [(meter.name, second, amount) for meter in minutes for second, amount in meter.told()]
        for piece in _pieces(rows):
            self._send(link, ("used", self._number, piece))

    def took(self, link: PeerLink, payload: bytes) -> None:
        """A frame of a peer. WireError where it is not this language."""
        try:
            word, *rest = msgspec.msgpack.decode(payload, type=list[Any])
            if word == "used":
                number, rows = msgspec.convert(rest, tuple[int, list[_Row]])
                self._hear(link, rows)
                self._send(link, ("heard", number))
            elif word == "heard":
                self._heard[link] = max(self._heard.get(link, 0), msgspec.convert(rest, tuple[int])[0])
                self._confirm(min(self._heard.values()))
            elif word == "period":
                self._periods.hear(msgspec.convert(rest, tuple[list[tuple[str, str, str, float]]])[0])
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
            raise WireError(f"not a frame of limits: {error}") from None

    def _hear(self, link: PeerLink, rows: list[_Row]) -> None:
        told = self._told.setdefault(link, {})
        now = int(self._wall())
        for name, second, amount in rows:
            at = self._limits.hear(name, second, amount, now)
            told[name, at] = told.get((name, at), 0.0) + amount
        if len(told) > _TOLD_MAX:
            self._told[link] = {
                key: amount for key, amount in told.items() if not 0 < key[1] <= now - SPAN_S and amount
            }

    def _confirm(self, number: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= number:
            for meter, amount in pending.popleft()[1]:
                meter.unheard -= amount

    @staticmethod
    def _send(link: PeerLink, what: tuple[Any, ...]) -> None:
        link.send(FrameKind.LIMITS, msgspec.msgpack.encode(what))


def _pieces(rows: list[_Row]) -> Iterable[list[_Row]]:
    return (rows[at : at + _ROWS_MAX] for at in range(0, len(rows), _ROWS_MAX))
