"""A cluster's effective values as text, and what changed between two of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from exaserve.config.cluster import SCHEMA, STARTING_KEYS, Cluster, Pool, SchedulingSection
from exaserve.config.convert import OFF, is_record, key_of, names_of
from exaserve.config.mask import masked
from exaserve.config.scalars import show_duration
from exaserve.scheduling.config import SchedulerConfig

__all__ = ["diff", "effective", "shown_to_people", "to_yaml", "without_limits"]

_CHANGES_MAX = 50


def effective(value: Any) -> Any:
    """Records as plain mappings with the file's own keys; durations as text."""
    if is_record(type(value)):
        kind: Any = SchedulingSection if type(value) is SchedulerConfig else type(value)
        shown = {}
        for name in names_of(type(value)):
            key = key_of(kind, name, SCHEMA)
            each = getattr(value, name)
            if each is None or (isinstance(value, Pool) and name in STARTING_KEYS and value.replicas):
                continue  # not set, or without meaning beside what is set
            if each == SCHEMA.off.get(kind, {}).get(name):
                shown[key] = OFF
                continue
            shown[key] = show_duration(each) if key != name and name.endswith("_s") else effective(each)
        return shown
    if isinstance(value, tuple):
        return [effective(each) for each in value]
    if isinstance(value, dict):
        return {key: effective(each) for key, each in value.items()}
    return value


def shown_to_people(cluster: Cluster) -> dict[str, Any]:
    """Every value in effect, with the secrets in it masked."""
    shown: dict[str, Any] = masked(effective(cluster))
    return shown


def to_yaml(cluster: Cluster, *, mask: bool = False) -> str:
    """Every value, defaults too, as a cluster file; with ``mask`` for people's eyes."""
    values = shown_to_people(cluster) if mask else effective(cluster)
    shown = {key: value for key, value in values.items() if value != []}
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100)


def diff(old: Cluster, new: Cluster) -> list[str]:
    """What a reload changes, one line each, at most 50; its cost is that of what changed.

    Such as ``scheduling.max_queue_depth: 32 -> 64`` or ``replica node1/r0: added``.
    Replicas are compared one by one, so that a longer list does not show as one long change.
    """
    lines: list[str] = []
    for name in names_of(Cluster):
        if name not in ("nodes", "pools"):  # they show as replicas
            lines += _changes(name, getattr(old, name), getattr(new, name))
    before = {spec.id: spec for spec in old.replicas()}
    after = {spec.id: spec for spec in new.replicas()}
    lines += [f"replica {each}: removed" for each in before if each not in after]
    for each, spec in after.items():
        if each not in before:
            lines.append(f"replica {each}: added")
        elif before[each] != spec:
            shown = len(lines) <= _CHANGES_MAX
            lines += _changes(f"replica {each}", before[each], spec) if shown else [f"replica {each}: changed"]
    if len(lines) > _CHANGES_MAX:
        lines[_CHANGES_MAX:] = [f"and {len(lines) - _CHANGES_MAX} more"]
    return lines


def without_limits(cluster: Cluster) -> Cluster:
    """The cluster with every limit of the scheduler that can be ``off`` turned off."""
    off: dict[str, Any] = dict(SCHEMA.off[SchedulingSection])
    return msgspec.structs.replace(cluster, scheduling=dataclasses.replace(cluster.scheduling, **off))


def _changes(path: str, old: Any, new: Any) -> Iterator[str]:
    """Equal values are not looked into."""
    if old == new:
        return
    if is_record(type(old)) and type(old) is type(new):
        old, new = effective(old), effective(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _changes(f"{path}.{key}", old.get(key), new.get(key))
    else:
        yield f"{path}: {effective(old)} -> {effective(new)}"
