"""Bounds of days and months: their calendar (UTC), and what outlives the process. Kept once a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from exaserve.control.limits import LimitBook
from exaserve.gateway.guard.state import ControlState

__all__ = ["KEEP_S", "PeriodKeeper"]

KEEP_S = 1.0
"""How much settled use a process that is killed may forget, seconds."""
_FORMS = {"day": "%Y-%m-%d", "month": "%Y-%m"}


class PeriodKeeper:
    """See the module's text.

    Args:
        node: this gateway's name, the same after a restart.
        wall: seconds since 1970.
    """

    def __init__(self, limits: LimitBook, state: ControlState, node: str, wall: Callable[[], float]) -> None:
        self._limits = limits
        self._state = state
        self._node = node
        self._wall = wall
        self._keys = self._now()
        self._kept: dict[tuple[str, str], float] = {}
        """What was written last, by meter and node."""
        self._task: asyncio.Task[None] | None = None
        self._over: set[str] = set()
        """Days and months whose sums are still on the disk."""
        self._wrote = False
        rows = [(name, key, by, amount) for name, key, by, amount in state.counters()]
        self._wrote = bool(rows)
        self._over |= {key for _, key, _, _ in rows if key not in self._keys.values()}
        self.hear(rows)

    def _now(self) -> dict[str, str]:
        at = datetime.fromtimestamp(self._wall(), UTC)
        return {period: at.strftime(form) for period, form in _FORMS.items()}

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Keeps what there is."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            self.tick()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            self.tick()

    def tick(self) -> None:
        """Turns the calendar, and has what changed written."""
        keys = self._now()
        for period, key in keys.items():
            if key != self._keys[period]:
                self._limits.roll(period)
                if self._wrote:
                    self._over.add(self._keys[period])
        if keys != self._keys:
            self._kept.clear()
        self._keys = keys
        if self._over:
            self._state.drop_counters(sorted(self._over))
            self._over.clear()
        rows = []
        for row in self.told():
            name, _, node, used = row
            if used != self._kept.get((name, node)):
                self._kept[name, node] = used
                rows.append(row)
        self._wrote = self._wrote or bool(rows)
        self._state.count(rows)

    def told(self) -> list[tuple[str, str, str, float]]:
        """Meter, day or month, gateway and what that has used, of all gateways that are known: for disk and peers."""
        use = self._limits.period_use()
        return [(name, self._keys[period], node or self._node, used) for name, period, node, used in use]

    def hear(self, rows: Iterable[tuple[str, str, str, float]]) -> None:
        """What a peer or the disk knows; of another day or month than ours it is nothing."""
        current = self._keys.values()
        for name, key, node, used in rows:
            if key in current:
                self._limits.hear_period(name, "" if node == self._node else node, used)
