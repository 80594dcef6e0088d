"""What no single value of the cluster file shows: contradictions, duplicates, ports that meet, models too large."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from exaserve.config.cluster import ClusterFile, NodeEntry, Pool, ReplicaEntry
from exaserve.config.convert import unknown_choice
from exaserve.config.document import Problem
from exaserve.config.pool_checks import Given, check_pool, problem_at
from exaserve.config.scalars import show_duration
from exaserve.config.settings import AgentSettings
from exaserve.config.sources import discovery_problems, register_problems
from exaserve.config.urls import (
    check_host,
    is_every_address,
    join_address,
    same_address,
    same_host,
    split_address,
    split_url,
)
from exaserve.scheduling import POLICIES

__all__ = ["check_file"]

_REPLICAS_MAX = 100_000
_ACCELERATORS_USUAL = 8
"""Cards of a node where the file does not say; machines with more are rare, and their owners know."""
_ON_CARDS = ("vllm", "sglang", "trtllm")
"""Engines that need accelerators unless the file says ``accelerator: cpu``."""
_NODE_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
"""It becomes a folder, a part of ids and of URLs."""


def check_file(file: ClusterFile, given: Given) -> list[Problem]:
    """Every problem between the values of a file; ``given`` are the fields it sets, with their places."""
    problems = list(_check_sections(file, given))
    if file.pools:
        problems += _check_no_top_pool(given)
    pools = [(f"pools[{i}].", pool) for i, pool in enumerate(file.pools)] or [("", file)]
    nodes = file.nodes if isinstance(file.nodes, int) else len(file.nodes)
    if sum(pool.num_replicas_per_node for _, pool in pools) * nodes > _REPLICAS_MAX:
        problems.append(problem_at(given, "nodes", f"gives more than {_REPLICAS_MAX} replicas; is it a typing error?"))
        return problems
    problems += _check_nodes(file, given)
    problems += _check_pool_names(pools, given)
    problems += _check_accelerators(file, pools, given)
    seen_ids: dict[str, str] = {}
    seen_addresses: dict[str, str] = {}
    for path, pool in pools:
        problems += check_pool(pool, path, given)
        problems += _check_replicas(pool, path, given, seen_ids, seen_addresses)
    problems += _check_ports(file, [pool for _, pool in pools], [path for path, _ in pools], given)
    if given.get("nodes") and not any(pool.starts_replicas for _, pool in pools):
        why = (
            "is there, but replicas says where they run"
            if any(p.replicas for _, p in pools)
            else "needs a model to start"
        )
        problems.append(problem_at(given, "nodes", f"{why}; keep one" if "replicas" in why else f"{why}: add model"))
    return problems


def _check_sections(file: ClusterFile, given: Given) -> Iterator[Problem]:
    if file.scheduling.policy not in POLICIES:
        yield problem_at(given, "scheduling.strategy", unknown_choice(file.scheduling.policy, sorted(POLICIES)))
    if file.scheduling.health_check_interval_s is not None and "health.probe_interval_s" in given:
        path = "scheduling.health_check_interval"
        yield problem_at(given, path, "says the same as health.probe_interval; keep one")
    for path in ("gateway.host", "gateway.admin_host"):
        try:
            check_host(getattr(file.gateway, path.rpartition(".")[2]))
        except ValueError as error:
            yield problem_at(given, path, str(error))
    gateway = file.gateway
    if "gateway.linger_s" in given and gateway.linger_s >= gateway.drain_s > 0.0:
        message = (
            f"is a part of gateway.drain ({show_duration(gateway.drain_s)}) and leaves no time for requests in flight;"
            " give drain more"
        )
        yield problem_at(given, "gateway.linger", message)
    yield from _check_agents(file.agents, given)
    yield from _check_peers(file, given)
    for field, message in discovery_problems(file.discovery):
        yield problem_at(given, f"discovery.{field}", message)
    times = gateway.timeouts
    for name in ("connect_s", "first_byte_s", "between_bytes_s"):
        path = f"gateway.timeouts.{name[:-2]}"
        if path in given and getattr(times, name) > times.total_s:
            yield problem_at(
                given, path, f"is longer than gateway.timeouts.total ({times.total_s:g} s), so it would never count"
            )


def _check_peers(file: ClusterFile, given: Given) -> Iterator[Problem]:
    gateway = file.gateway
    for i, peer in enumerate(gateway.peers):
        try:
            split_address(peer)
        except ValueError as error:
            yield problem_at(given, f"gateway.peers[{i}]", str(error))
    if gateway.peer_listen:
        try:
            split_address(gateway.peer_listen, port_min=0)
        except ValueError as error:
            yield problem_at(given, "gateway.peer_listen", str(error))
    if len(gateway.name.encode()) > 255:
        yield problem_at(given, "gateway.name", "is longer than 255 bytes")


def _check_no_top_pool(given: Given) -> Iterator[Problem]:
    for name in Pool.__struct_fields__:
        if name in given:
            yield problem_at(given, name, "stands beside pools; put it into the pool it belongs to")


def _check_nodes(file: ClusterFile, given: Given) -> Iterator[Problem]:
    if isinstance(file.nodes, int):
        return
    if not file.nodes:
        yield problem_at(given, "nodes", "is an empty list; name at least one node, or write nodes: 1")
    names: dict[str, int] = {}
    addresses: dict[str, int] = {}
    for i, node in enumerate(file.nodes):
        path = f"nodes[{i}]"
        if not _NODE_NAME.fullmatch(node.name) or ".." in node.name:
            message = "is empty" if not node.name else f"{node.name!a} is no name; use letters, digits, - _ and ."
            yield problem_at(given, f"{path}.name", message)
        if node.name in names:
            yield problem_at(given, f"{path}.name", f"{node.name!a} is also the name of nodes[{names[node.name]}]")
        names.setdefault(node.name, i)
        yield from _check_node_address(node, i, addresses, given)


def _check_node_address(node: NodeEntry, i: int, addresses: dict[str, int], given: Given) -> Iterator[Problem]:
    if not node.address:
        return
    path = f"nodes[{i}].address"
    try:
        check_host(node.address)
    except ValueError as error:
        yield problem_at(given, path, str(error))
        return
    if node.address in addresses:
        yield problem_at(given, path, f"{node.address} is also the address of nodes[{addresses[node.address]}]")
    addresses.setdefault(node.address, i)


def _check_replicas(
    pool: Pool, path: str, given: Given, seen_ids: dict[str, str], seen_addresses: dict[str, str]
) -> Iterator[Problem]:
    for i, each in enumerate(pool.replicas):
        here = f"{path}replicas[{i}]"
        entry = ReplicaEntry(url=each) if isinstance(each, str) else each
        url_path = here if isinstance(each, str) else f"{here}.url"
        try:
            host, port = split_url(entry.url)
            address = same_address(entry.url)
        except ValueError as error:
            yield problem_at(given, url_path, str(error))
            continue
        if address in seen_addresses:
            yield problem_at(
                given, url_path, f"{address} is also the address of {seen_addresses[address]}; each needs its own"
            )
        replica_id = entry.id or join_address(host, port)
        if replica_id in seen_ids and address not in seen_addresses:
            yield problem_at(
                given, f"{here}.id", f"{replica_id!a} is also the id of {seen_ids[replica_id]}; ids are unique"
            )
        seen_addresses.setdefault(address, here)
        seen_ids.setdefault(replica_id, here)


def _check_ports(file: ClusterFile, pools: list[Pool], paths: list[str], given: Given) -> Iterator[Problem]:
    """Ports that two parts of this cluster would both bind on one address."""
    taken: list[tuple[int, int, str]] = []
    for pool, path in zip(pools, paths, strict=True):
        if not pool.starts_replicas:
            continue
        first, last = pool.base_port, pool.base_port + pool.num_replicas_per_node - 1
        for low, high, other in taken:
            if first <= high and low <= last:
                yield problem_at(
                    given, path + "base_port", f"ports {first} to {last} meet those of {other} ({low} to {high})"
                )
        taken.append((first, last, path.rstrip(".") or "the replicas"))
    yield from _check_listeners(file, taken, given)


def _check_listeners(file: ClusterFile, taken: list[tuple[int, int, str]], given: Given) -> Iterator[Problem]:
    """Ports of the gateway against each other and against those of the replicas that run beside it."""
    addresses = {node.address for node in file.nodes} if not isinstance(file.nodes, int) else set()
    listeners: list[tuple[str, str, int]] = []
    for name, host, port in _listeners(file):
        if not port:
            continue
        for other, other_host, other_port in listeners:
            if port == other_port and same_host(host, other_host):
                yield problem_at(given, name, f"is the same as {other} ({port}); give it one of its own")
        listeners.append((name, host, port))
        for low, high, other in taken:
            if low <= port <= high and (host in addresses or is_every_address(host)):
                yield problem_at(given, name, f"{port} is also a port of {other} ({low} to {high})")


def _listeners(file: ClusterFile) -> Iterator[tuple[str, str, int]]:
    yield "gateway.port", file.gateway.host, file.gateway.port
    yield "gateway.admin_port", file.gateway.admin_host, file.gateway.admin_port
    if file.agents.enabled:
        yield "agents.port", file.agents.host, file.agents.port
    if file.gateway.peer_listen:
        with contextlib.suppress(ValueError):  # told where it is checked
            yield ("gateway.peer_listen", *split_address(file.gateway.peer_listen, port_min=0))


def _check_agents(agents: AgentSettings, given: Given) -> Iterator[Problem]:
    try:
        check_host(agents.host)
    except ValueError as error:
        yield problem_at(given, "agents.host", str(error))
    for i, text in enumerate(agents.gateways):
        try:
            split_address(text)
        except ValueError as error:
            yield problem_at(given, f"agents.gateways[{i}]", str(error))
    for field, message in register_problems(agents.register) if agents.register is not None else ():
        yield problem_at(given, f"agents.register.{field}", message)
    if agents.lost_s < 3 * agents.interval_s:
        path = "agents.lost" if "agents.lost_s" in given else "agents.interval"
        message = (
            f"a busy machine delays a batch, so lost ({show_duration(agents.lost_s)}) must be at least three times"
            f" interval ({show_duration(agents.interval_s)})"
        )
        yield problem_at(given, path, message)
    files = {"tls_cert": agents.tls_cert, "tls_key": agents.tls_key, "tls_ca": agents.tls_ca}
    missing = [name for name, file in files.items() if not file]
    if 0 < len(missing) < len(files):
        there = next(name for name, file in files.items() if file)
        yield problem_at(given, f"agents.{there}", f"mutual TLS needs {' and '.join(missing)} beside it")


def _check_pool_names(pools: list[tuple[str, Pool]], given: Given) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for path, pool in pools:
        if not pool.name:
            continue
        if not _NODE_NAME.fullmatch(pool.name):
            yield problem_at(given, path + "name", f"{pool.name!a} is no name; use letters, digits, - _ and .")
        if pool.name in seen:
            yield problem_at(given, path + "name", f"{pool.name!a} is also the name of {seen[pool.name]}")
        seen.setdefault(pool.name, path.rstrip("."))


def _check_accelerators(file: ClusterFile, pools: list[tuple[str, Pool]], given: Given) -> Iterator[Problem]:
    """Cards that the replicas of one node need, against those that it has."""
    stated = file.accelerators_per_node
    have = stated or _ACCELERATORS_USUAL
    words = f"has {have}" if stated else f"mostly has {have}; if yours have more, say so by accelerators_per_node"
    need = 0
    for path, pool in pools:
        on_cards = pool.engine in _ON_CARDS or (stated and pool.engine in ("command", "llamacpp"))
        if not (pool.starts_replicas and on_cards) or pool.accelerator == "cpu":
            continue
        each = pool.tensor_parallel_size * pool.pipeline_parallel_size
        need += each * pool.num_replicas_per_node
        where = path + ("pipeline_parallel_size" if pool.pipeline_parallel_size > 1 else "tensor_parallel_size")
        if each > have:
            message = (
                f"one replica needs {each} accelerators, and a node {words}. Replicas over several nodes are started by"
                " the engine's own multi-node launch; name their URLs under replicas"
            )
            yield problem_at(given, where, message)
            return
        if need > have:
            message = f"the replicas of one node need {need} accelerators, and a node {words}"
            yield problem_at(given, path + "num_replicas_per_node", message)
            return
