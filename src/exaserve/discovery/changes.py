"""The language of discovery: what became of which replica, and who tells it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["Added", "Change", "Discovery", "Removed", "Updated", "changes_between"]


@dataclass(frozen=True, slots=True)
class Added:
    """A replica that was not there before."""

    spec: ReplicaSpec


@dataclass(frozen=True, slots=True)
class Removed:
    """A replica that is gone; what is in flight on it may still end well."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Updated:
    """The same replica (id and address) with other models, weight, version or limits."""

    spec: ReplicaSpec


Change = Added | Removed | Updated


class Discovery(Protocol):
    """A source of replicas.

    The contract that the gateway relies on, whatever the source:

    - the first batch holds an :class:`Added` for every replica known at the start (it may be empty);
    - each batch leads from one consistent set to the next, removals first, so that an address may move to another id;
    - a source that cannot be reached yields nothing: the last known set stays good.
    """

    def watch(self) -> AsyncIterator[tuple[Change, ...]]:
        """Batches of changes, until the source is closed. One watcher at a time."""
        ...

    async def close(self) -> None:
        """Ends :meth:`watch`. Idempotent."""
        ...


def changes_between(old: Iterable[ReplicaSpec], new: Iterable[ReplicaSpec]) -> tuple[Change, ...]:
    """What leads from one set to another. A replica whose address changed is another engine: removed, then added."""
    before = {spec.id: spec for spec in old}
    after = {spec.id: spec for spec in new}
    moved = {each for each, spec in after.items() if each in before and before[each].url != spec.url}
    removed = [Removed(each) for each in before if each not in after or each in moved]
    added = [Added(spec) for each, spec in after.items() if each not in before or each in moved]
    updated = [
        Updated(spec) for each, spec in after.items() if each in before and each not in moved and before[each] != spec
    ]
    return (*removed, *updated, *added)
