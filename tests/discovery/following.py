"""Watches a source in the background and keeps the set that its changes lead to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from exaserve.discovery import Added, Change, Discovery, Removed
from exaserve.domain.replica import ReplicaSpec


class Following:
    def __init__(self) -> None:
        self.batches: list[tuple[Change, ...]] = []
        self.held: dict[str, ReplicaSpec] = {}
        self.ended = False

    def take(self, batch: tuple[Change, ...]) -> None:
        self.batches.append(batch)
        for change in batch:
            if isinstance(change, Removed):
                del self.held[change.id]
            elif isinstance(change, Added):
                assert change.spec.id not in self.held
                self.held[change.spec.id] = change.spec
            else:
                assert self.held[change.spec.id].url == change.spec.url
                self.held[change.spec.id] = change.spec

    @property
    def changes(self) -> list[Change]:
        return [change for batch in self.batches for change in batch]


@contextlib.asynccontextmanager
async def following(source: Discovery) -> AsyncIterator[Following]:
    seen = Following()

    async def watch() -> None:
        async for batch in source.watch():
            seen.take(batch)
        seen.ended = True

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        await source.close()
        await asyncio.wait_for(task, 30)
