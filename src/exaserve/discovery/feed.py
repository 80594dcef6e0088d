"""What all sources have in common: the newest set wins, trouble is told once, attempts are paced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from exaserve.discovery.belief import Belief
from exaserve.discovery.changes import Change, changes_between
from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["Feed", "Source", "SourceError", "SourceStatus", "Tell", "silent"]

Tell = Callable[..., None]
"""``tell(level, event, **fields)``: where events of a source go."""

BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0
REPLICAS_MAX = 100_000
RECHECK_S = 1.0
"""While an answer is in doubt: between two looks at who still answers its probes."""


def silent(_level: str, _event: str, **_fields: object) -> None:
    """Tells nobody."""


class SourceError(Exception):
    """The source cannot be asked, or its answer cannot be used: the last known set stays good."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source as the admin API shows it.

    Attributes:
        error: "" while it is well.
        replicas: those it lists.
        held: those kept though it does not list them any more (:mod:`exaserve.discovery.belief`).
    """

    name: str
    reached: bool
    error: str
    replicas: int
    updates: int
    failures: int
    held: int = 0


class Feed:
    """A :class:`~exaserve.discovery.changes.Discovery` over a set that :meth:`publish` swaps.

    Only the newest set counts: a watcher that is slow sees one batch that leads straight to it, so nothing queues up.
    """

    def __init__(self, name: str, tell: Tell = silent) -> None:
        self.name = name
        self._tell = tell
        self._wanted: tuple[ReplicaSpec, ...] = ()
        self._reasons: dict[ReplicaId, str] = {}
        self._leaving: set[ReplicaId] = set()
        self._belief: Belief | None = None
        self._changed = asyncio.Event()
        self._published = False
        self._closed = False
        self._updates = 0
        self._failures = 0
        self._error = ""

    def doubt(self, belief: Belief) -> None:
        """From now on answers that take much away are believed only as ``belief`` says."""
        self._belief = belief

    def believe(self) -> int:
        """An operator says that the newest answer is right; returns how many replicas leave by it."""
        if self._belief is None or not self._belief.held:
            return 0
        leave = len(self._belief.held)
        self._belief.force()
        self._changed.set()
        return leave

    def publish(
        self,
        specs: Iterable[ReplicaSpec],
        reasons: Mapping[ReplicaId, str] | None = None,
        leaving: Iterable[ReplicaId] = (),
    ) -> None:
        """The set that holds from now on; of two replicas with one id the first is taken.

        Args:
            reasons: why single replicas come or go.
            leaving: those that the source takes out by name, as against those that it just does not list.
        """
        unique: dict[ReplicaId, ReplicaSpec] = {}
        for spec in specs:
            if unique.setdefault(spec.id, spec) is not spec:
                self._tell("warning", "discovery_duplicate", source=self.name, replica=spec.id, ignored=spec.url)
        if not unique and (self._wanted or not self._published):
            why = next(iter((reasons or {}).values()), "nobody is listed")
            self._tell("warning", "discovery_empty", source=self.name, why=why)
        self._wanted = tuple(unique.values())[:REPLICAS_MAX]
        self._reasons |= reasons or {}
        self._leaving = (self._leaving | set(leaving)) - unique.keys()
        self._published = True
        self._updates += 1
        self._changed.set()

    def status(self) -> SourceStatus:
        return SourceStatus(
            self.name,
            self._published and not self._error,
            self._error,
            len(self._wanted),
            self._updates,
            self._failures,
            len(self._belief.held) if self._belief is not None else 0,
        )

    async def watch(self) -> AsyncIterator[tuple[Change, ...]]:
        """Batches of changes, until :meth:`close`."""
        known: tuple[ReplicaSpec, ...] = ()
        first = True
        while True:
            await self._news()
            if self._closed:
                return
            self._changed.clear()
            reasons, self._reasons = self._reasons, {}
            wanted, why = self._settled()
            batch = changes_between(known, wanted, self.name, reasons | why)
            known = wanted
            if batch or first:
                first = False
                yield batch

    async def _news(self) -> None:
        """Returns at the next answer, or when it is time to look again at those that are held."""
        limit_s = RECHECK_S if self._belief is not None and self._belief.held else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changed.wait()

    def _settled(self) -> tuple[tuple[ReplicaSpec, ...], dict[ReplicaId, str]]:
        """The set to go by, and why some leave it after all."""
        leaving, self._leaving = self._leaving, set()
        belief = self._belief
        if belief is None:
            return self._wanted, {}
        held = len(belief.held)
        wanted = belief.settle(self._wanted, asyncio.get_running_loop().time(), leaving)
        if belief.held and not held:
            listed, kept = len(self._wanted), len(belief.held)
            self._tell("warning", "discovery_doubted", source=self.name, listed=listed, kept=kept, hold_s=belief.hold_s)
        elif held and not belief.held:
            self._tell(
                "info", "discovery_settled", source=self.name, listed=len(self._wanted), left=len(belief.given_up)
            )
        return wanted, belief.given_up

    async def close(self) -> None:
        self._closed = True
        self._changed.set()


class Source(Feed):
    """A feed whose set someone else keeps. Subclasses write :meth:`_follow`."""

    def __init__(self, name: str, tell: Tell = silent, rng: Random | None = None) -> None:
        super().__init__(name, tell)
        self._rng = rng or Random()
        self._ignored: dict[str, str] = {}

    async def _follow(self) -> None:
        """Publishes as long as all is well; raises SourceError (or OSError) where it is not. Never returns."""
        raise NotImplementedError

    async def watch(self) -> AsyncIterator[tuple[Change, ...]]:
        task = asyncio.create_task(self._run())
        try:
            async for batch in super().watch():
                yield batch
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        failures = 0
        while True:
            updates = self._updates
            try:
                await self._follow()
            except (SourceError, OSError, ValueError) as error:
                failures = 0 if self._updates > updates else failures
                self._failed(str(error) or type(error).__name__)
            pause_s = min(BACKOFF_MIN_S * 2.0 ** min(failures, 10), BACKOFF_MAX_S)
            failures += 1
            await asyncio.sleep(pause_s * self._rng.uniform(0.75, 1.25))

    def _failed(self, why: str) -> None:
        self._failures += 1
        if why != self._error:
            self._error = why
            kept = len(self._wanted)
            self._tell("warning", "discovery_unreachable", source=self.name, why=why, replicas_kept=kept)

    def _well(self) -> None:
        """The source has answered."""
        if self._error:
            self._error = ""
            self._tell("info", "discovery_back", source=self.name)

    def _ignore(self, entry: str, why: str) -> None:
        """One entry is of no use; told once as long as the reason stays the same."""
        if self._ignored.get(entry) != why:
            if len(self._ignored) > 10_000:
                self._ignored.clear()
            self._ignored[entry] = why
            self._tell("warning", "discovery_entry_ignored", source=self.name, entry=entry, why=why)
