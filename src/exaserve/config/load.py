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
from exaserve.config.guard import AuthSettings
from exaserve.config.pool_checks import problem_at
from exaserve.config.profile import profile_remarks, with_profile, with_weights
from exaserve.config.spellings import own_spellings
from exaserve.config.start import secret_remarks, start_problems
from exaserve.domain.errors import ConfigError
from exaserve.scheduling.config import SchedulerConfig

__all__ = ["PROBLEMS_SHOWN_MAX", "load_cluster", "parse_cluster", "read_cluster"]

PROBLEMS_SHOWN_MAX = 20


def load_cluster(path: str | Path, *, to_start: bool = False) -> Cluster:
    """The cluster of a file.

    Args:
        to_start: whether what only a start needs is looked at too: secrets' files, and who could reach which port.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; the message lists every problem.
    """
    return read_cluster(path, to_start=to_start)[0]


def read_cluster(path: str | Path, *, to_start: bool = False) -> tuple[Cluster, list[str]]:
    """As :func:`load_cluster`, with what is no mistake but worth a thought, one line each."""
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
    cluster, remarks = _parse(data, str(path), to_start=to_start, in_file=True)
    if any(pool.profile for pool in cluster.pools):
        pools = tuple(with_profile(pool, path.absolute().parent) for pool in cluster.pools)
        cluster = msgspec.structs.replace(cluster, pools=pools, scheduling=with_weights(cluster.scheduling, pools))
    said = [f"{path}: {text}" for pool in cluster.pools for text in profile_remarks(pool)]
    return cluster, [*(_line_of(each, str(path)) for each in remarks), *dict.fromkeys(said)]


def parse_cluster(text: str | bytes, name: str = "cluster.yaml") -> Cluster:
    """The cluster of a text; ``name`` stands for it in messages.

    Raises:
        ConfigError: as :func:`load_cluster`.
    """
    return _parse(text, name, to_start=False, in_file=False)[0]


def _parse(text: str | bytes, name: str, *, to_start: bool, in_file: bool) -> tuple[Cluster, list[Problem]]:
    """The cluster and its remarks. A file without a key is refused: it may be in the middle of being written."""
    root, problems = parse_document(text)
    if root is None or root.value is None:
        root = Item({}, 1, 1)
        if in_file and not problems:
            problems.append(Problem("", "holds no key; write at least one, such as model: NAME"))
    elif not isinstance(root.value, dict) and not problems:
        problems.append(
            Problem("", "must be a mapping of keys, such as model: NAME; see exaserve demo --show-config", 1)
        )
    if problems and not isinstance(root.value, dict):
        raise _error(problems, name)
    root, said_twice = own_spellings(root)
    reader = Reader(SCHEMA)
    file = reader.read(ClusterFile, root)
    problems += said_twice + reader.problems
    if file is not None:
        wrong = {problem.path for problem in problems}
        found = check_file(file, reader.given)
        if to_start:
            found += [problem_at(reader.given, *each) for each in start_problems(file.gateway, file.agents)]
            found += [
                problem_at(reader.given, *each, remark=True) for each in secret_remarks(file.gateway, file.agents)
            ]
        problems += [problem for problem in found if problem.path not in wrong]
    errors = [problem for problem in problems if not problem.remark]
    if errors or file is None:
        raise _error(errors, name)
    cluster = _normal(file, reader.given)
    if collision := _collision(cluster):
        raise _error([collision], name)
    return cluster, problems


def _collision(cluster: Cluster) -> Problem | None:
    """A replica that already runs under the id or address of one that is started."""
    started = {spec.id: spec for pool in cluster.pools for spec in cluster.started(pool)}
    if not started or not any(pool.replicas for pool in cluster.pools):
        return None
    urls = {spec.url for spec in started.values()}
    for spec in cluster.replicas():
        if started.get(spec.id, spec) is not spec and started[spec.id] != spec:
            return Problem("pools", f"{spec.id!a} is the id of a replica that runs and of one that is started")
        if spec.id not in started and spec.url in urls:
            return Problem("pools", f"{spec.url} is the address of a replica that runs and of one that is started")
    return None


def _normal(file: ClusterFile, given: dict[str, Item]) -> Cluster:
    scheduling = {f.name: getattr(file.scheduling, f.name) for f in dataclasses.fields(SchedulerConfig)}
    health = file.health
    if file.scheduling.health_check_interval_s is not None:
        health = dataclasses.replace(health, probe_interval_s=file.scheduling.health_check_interval_s)
    variables = file.network.environment()
    pools = tuple(
        msgspec.structs.replace(pool, environment={**variables, **pool.environment}) if pool.starts_replicas else pool
        for pool in file.pools or _top_pool(file, given)
    )
    return Cluster(
        accelerators_per_node=file.accelerators_per_node,
        nodes=_nodes(file) if any(pool.starts_replicas for pool in pools) else (),
        pools=pools,
        scheduling=SchedulerConfig(**scheduling),
        admission=file.admission,
        health=health,
        telemetry=file.telemetry,
        gateway=file.gateway,
        agents=file.agents,
        network=file.network,
        discovery=file.discovery,
        auth=AuthSettings(mode=file.auth) if isinstance(file.auth, str) else file.auth,
        limits=file.limits,
        prices=file.prices,
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
    lines = [_line_of(problem, name) for problem in problems]
    shown = lines[:PROBLEMS_SHOWN_MAX]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    text = shown[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} problems in {name}", *shown])
    return ConfigError(text, param=problems[0].path or None)


def _line_of(problem: Problem, name: str) -> str:
    return f"{_where(problem, name)}{': ' if problem.path else ''}{problem.path}: {problem.message}"


def _where(problem: Problem, name: str) -> str:
    if not problem.line:
        return name
    return f"{name}:{problem.line}:{problem.column}" if problem.column else f"{name}:{problem.line}"
