"""Reads the cluster file: text, tree, typed values, then what no single value can show (contradictions, duplicates)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec

from exaserve.config.checks import check_file
from exaserve.config.cluster import SCHEMA, Cluster, ClusterFile, NodeEntry, Pool
from exaserve.config.convert import Reader
from exaserve.config.document import TEXT_BYTES_MAX, Item, Problem, parse_document
from exaserve.config.profile import with_profile, with_weights
from exaserve.domain.errors import ConfigError
from exaserve.scheduling.config import SchedulerConfig

__all__ = ["PROBLEMS_SHOWN_MAX", "load_cluster", "parse_cluster"]

PROBLEMS_SHOWN_MAX = 20


def load_cluster(path: str | Path) -> Cluster:
    """The cluster of a file.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; the message lists every problem.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; name the cluster file in it", param=str(path))
        with path.open("rb") as file:
            data = file.read(TEXT_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", param=str(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}", param=str(path)) from None
    cluster = parse_cluster(data, str(path))
    if not any(pool.profile for pool in cluster.pools):
        return cluster
    pools = tuple(with_profile(pool, path.absolute().parent) for pool in cluster.pools)
    return msgspec.structs.replace(cluster, pools=pools, scheduling=with_weights(cluster.scheduling, pools))


def parse_cluster(text: str | bytes, name: str = "cluster.yaml") -> Cluster:
    """The cluster of a text; ``name`` stands for it in messages.

    Raises:
        ConfigError: as :func:`load_cluster`.
    """
    root, problems = parse_document(text)
    if root is None:
        root = Item({}, 1, 1)
    elif not isinstance(root.value, dict) and not problems:
        problems.append(
            Problem("", "must be a mapping of keys, such as model: NAME; see exaserve demo --show-config", 1)
        )
    if problems and not isinstance(root.value, dict):
        raise _error(problems, name)
    reader = Reader(SCHEMA)
    file = reader.read(ClusterFile, root)
    problems += reader.problems
    if file is not None:
        wrong = {problem.path for problem in problems}
        problems += [problem for problem in check_file(file, reader.given) if problem.path not in wrong]
    if problems or file is None:
        raise _error(problems, name)
    return _normal(file, reader.given)


def _normal(file: ClusterFile, given: dict[str, Item]) -> Cluster:
    scheduling = {f.name: getattr(file.scheduling, f.name) for f in dataclasses.fields(SchedulerConfig)}
    health = file.health
    if file.scheduling.health_check_interval_s is not None:
        health = dataclasses.replace(health, probe_interval_s=file.scheduling.health_check_interval_s)
    pools = file.pools or tuple(_top_pool(file, given))
    return Cluster(
        nodes=_nodes(file) if any(pool.starts_replicas for pool in pools) else (),
        pools=pools,
        scheduling=SchedulerConfig(**scheduling),
        admission=file.admission,
        health=health,
        telemetry=file.telemetry,
        gateway=file.gateway,
        agents=file.agents,
        discovery=file.discovery,
    )


def _top_pool(file: ClusterFile, given: dict[str, Item]) -> Iterator[Pool]:
    """The pool whose keys stand at the top of the file, if there is one."""
    if any(name in given for name in Pool.__struct_fields__):
        yield Pool(**{name: getattr(file, name) for name in Pool.__struct_fields__})


def _nodes(file: ClusterFile) -> tuple[NodeEntry, ...]:
    """Nodes with addresses; node k without one is 127.0.k.1, since all of 127.0.0.0/8 is this machine."""
    entries = (
        tuple(NodeEntry(name=f"node{k}") for k in range(1, file.nodes + 1))
        if isinstance(file.nodes, int)
        else file.nodes
    )
    return tuple(
        NodeEntry(name=entry.name, address=entry.address or f"127.{k >> 8}.{k & 255}.1")
        for k, entry in enumerate(entries, 1)
    )


def _error(problems: list[Problem], name: str) -> ConfigError:
    problems = sorted(problems, key=lambda p: (p.line, p.column))
    lines = [
        f"{_where(problem, name)}{': ' if problem.path else ''}{problem.path}: {problem.message}"
        for problem in problems
    ]
    shown = lines[:PROBLEMS_SHOWN_MAX]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    text = shown[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} problems in {name}", *shown])
    return ConfigError(text, param=problems[0].path or None)


def _where(problem: Problem, name: str) -> str:
    if not problem.line:
        return name
    return f"{name}:{problem.line}:{problem.column}" if problem.column else f"{name}:{problem.line}"
