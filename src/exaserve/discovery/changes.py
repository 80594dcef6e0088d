"""The language of discovery: what became of which replica, who says so and why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["Added", "Change", "Discovery", "Removed", "Updated", "changes_between"]


@dataclass(frozen=True, slots=True)
class Added:
    """A replica that was not there before."""

    spec: ReplicaSpec
    source: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Removed:
    """A replica that is gone; what is in flight on it may still end well."""

    id: ReplicaId
    source: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Updated:
    """The same replica (id and address) with other models, weight, version or limits."""

    spec: ReplicaSpec
    source: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)


Change = Added | Removed | Updated


class Discovery(Protocol):
    """A source of replicas.

    The contract that the gateway relies on, whatever the source:

    - the first batch holds an :class:`Added` for every replica known at the start (it may be empty);
    - each batch leads from one consistent set to the next, removals first, so that an address may move to another id;
    - a source that cannot be reached yields nothing: the last known set stays good.
    """

    name: str
    """What events and metrics call this source, such as ``consul:vllm``."""

    def watch(self) -> AsyncIterator[tuple[Change, ...]]:
        """Batches of changes, until the source is closed. One watcher at a time."""
        ...

    async def close(self) -> None:
        """Ends :meth:`watch`. Idempotent."""
        ...


def changes_between(
    old: Iterable[ReplicaSpec],
    new: Iterable[ReplicaSpec],
    source: str = "",
    reasons: Mapping[ReplicaId, str] | None = None,
) -> tuple[Change, ...]:
    """What leads from one set to another. A replica whose address changed is another engine: removed, then added.

    Args:
        source: who says so.
        reasons: why single replicas come or go, where the source knows more than that.
    """
    before = {spec.id: spec for spec in old}
    after = {spec.id: spec for spec in new}
    why = reasons or {}
    moved = {each for each, spec in after.items() if each in before and before[each].url != spec.url}
    removed = [
        Removed(each, source, why.get(each, "its address changed" if each in moved else "no longer listed"))
        for each in before
        if each not in after or each in moved
    ]
    added = [
        Added(spec, source, why.get(each, "listed"))
        for each, spec in after.items()
        if each not in before or each in moved
    ]
    updated = [
        Updated(spec, source, why.get(each, "changed"))
        for each, spec in after.items()
        if each in before and each not in moved and before[each] != spec
    ]
    return (*removed, *updated, *added)
