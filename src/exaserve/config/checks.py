"""What no single value of the cluster file shows: contradictions, duplicates, ports that meet, models too large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exaserve.config.cluster import STARTING_KEYS, ClusterFile, NodeEntry, Pool, ReplicaEntry
from exaserve.config.convert import unknown_choice
from exaserve.config.document import Item, Problem
from exaserve.config.sources import discovery_problems
from exaserve.config.urls import check_host, same_address, split_address, split_url
from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import profile
from exaserve.scheduling import POLICIES

__all__ = ["check_file"]

Given = Mapping[str, Item]

_REPLICAS_MAX = 100_000
_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 -- compared with, not bound


def check_file(file: ClusterFile, given: Given) -> list[Problem]:
    """Every problem between the values of a file; ``given`` are the fields it sets, with their places."""
    problems = list(_check_sections(file, given))
    if file.pools:
        problems += _check_no_top_pool(given)
    pools = [(f"pools[{i}].", pool) for i, pool in enumerate(file.pools)] or [("", file)]
    nodes = file.nodes if isinstance(file.nodes, int) else len(file.nodes)
    if sum(pool.num_replicas_per_node for _, pool in pools) * nodes > _REPLICAS_MAX:
        problems.append(_at(given, "nodes", f"gives more than {_REPLICAS_MAX} replicas; is it a typing error?"))
        return problems
    problems += _check_nodes(file, given)
    seen_ids: dict[str, str] = {}
    seen_addresses: dict[str, str] = {}
    for path, pool in pools:
        problems += _check_pool(pool, path, given)
        problems += _check_replicas(pool, path, given, seen_ids, seen_addresses)
    problems += _check_ports(file, [pool for _, pool in pools], [path for path, _ in pools], given)
    if given.get("nodes") and not any(pool.starts_replicas for _, pool in pools):
        why = (
            "is there, but replicas says where they run"
            if any(p.replicas for _, p in pools)
            else "needs a model to start"
        )
        problems.append(_at(given, "nodes", f"{why}; keep one" if "replicas" in why else f"{why}: add model"))
    return problems


def _at(given: Given, path: str, message: str) -> Problem:
    item = given.get(path)
    if item is None:
        return Problem(path, message)
    return Problem(path, message, item.key_line or item.line, 0 if item.key_line else item.column)


def _check_sections(file: ClusterFile, given: Given) -> Iterator[Problem]:
    if file.scheduling.policy not in POLICIES:
        yield _at(given, "scheduling.strategy", unknown_choice(file.scheduling.policy, sorted(POLICIES)))
    if file.scheduling.health_check_interval_s is not None and "health.probe_interval_s" in given:
        path = "scheduling.health_check_interval"
        yield _at(given, path, "says the same as health.probe_interval; keep one")
    for path in ("gateway.host", "gateway.admin_host"):
        try:
            check_host(getattr(file.gateway, path.rpartition(".")[2]))
        except ValueError as error:
            yield _at(given, path, str(error))
    gateway = file.gateway
    if gateway.port and gateway.port == gateway.admin_port and gateway.host == gateway.admin_host:
        yield _at(given, "gateway.admin_port", f"is the same as gateway.port ({gateway.port}); give it one of its own")
    yield from _check_peers(file, given)
    for field, message in discovery_problems(file.discovery):
        yield _at(given, f"discovery.{field}", message)
    times = gateway.timeouts
    for name in ("connect_s", "first_byte_s", "between_bytes_s"):
        path = f"gateway.timeouts.{name[:-2]}"
        if path in given and getattr(times, name) > times.total_s:
            yield _at(
                given, path, f"is longer than gateway.timeouts.total ({times.total_s:g} s), so it would never count"
            )


def _check_peers(file: ClusterFile, given: Given) -> Iterator[Problem]:
    gateway = file.gateway
    for i, peer in enumerate(gateway.peers):
        try:
            split_address(peer)
        except ValueError as error:
            yield _at(given, f"gateway.peers[{i}]", str(error))
    if gateway.peer_listen:
        try:
            split_address(gateway.peer_listen, port_min=0)
        except ValueError as error:
            yield _at(given, "gateway.peer_listen", str(error))
    if len(gateway.name.encode()) > 255:
        yield _at(given, "gateway.name", "is longer than 255 bytes")


def _check_no_top_pool(given: Given) -> Iterator[Problem]:
    for name in Pool.__struct_fields__:
        if name in given:
            yield _at(given, name, "stands beside pools; put it into the pool it belongs to")


def _check_nodes(file: ClusterFile, given: Given) -> Iterator[Problem]:
    if isinstance(file.nodes, int):
        return
    if not file.nodes:
        yield _at(given, "nodes", "is an empty list; name at least one node, or write nodes: 1")
    names: dict[str, int] = {}
    addresses: dict[str, int] = {}
    for i, node in enumerate(file.nodes):
        path = f"nodes[{i}]"
        if not node.name:
            yield _at(given, f"{path}.name", "is empty")
        if node.name in names:
            yield _at(given, f"{path}.name", f"{node.name!a} is also the name of nodes[{names[node.name]}]")
        names.setdefault(node.name, i)
        yield from _check_node_address(node, i, addresses, given)


def _check_node_address(node: NodeEntry, i: int, addresses: dict[str, int], given: Given) -> Iterator[Problem]:
    if not node.address:
        return
    path = f"nodes[{i}].address"
    try:
        check_host(node.address)
    except ValueError as error:
        yield _at(given, path, str(error))
        return
    if node.address in addresses:
        yield _at(given, path, f"{node.address} is also the address of nodes[{addresses[node.address]}]")
    addresses.setdefault(node.address, i)


def _check_pool(pool: Pool, path: str, given: Given) -> Iterator[Problem]:
    if pool.replicas:
        for name in STARTING_KEYS:
            if path + name in given:
                yield _at(
                    given, path + name, f"says how replicas are started, but {path}replicas already run; keep one"
                )
        return
    if pool.engine == "command" and not pool.engine_command:
        yield _at(given, path + "engine", 'is "command", so engine_command must give the program and its arguments')
    if pool.engine_command and pool.engine != "command":
        yield _at(given, path + "engine_command", f"is only for engine: command, not {pool.engine}")
    if not pool.starts_replicas:
        named = next((name for name in ("replicas", "model", "engine_command") if path + name in given), None)
        if named:
            yield _at(given, path + named, "is empty; give a model to start replicas for, or replicas with URLs")
            return
        set_here = [name for name in Pool.__struct_fields__ if path + name in given and name != "replicas"]
        if set_here or path:
            where = path + set_here[0] if set_here else path.rstrip(".")
            yield _at(given, where, "needs a model beside it (model: NAME), or replicas with URLs")
        return
    if pool.base_port + pool.num_replicas_per_node - 1 > 65_535:
        yield _at(
            given, path + "base_port", f"{pool.num_replicas_per_node} replicas from {pool.base_port} on pass port 65535"
        )
    if pool.engine == "emulator":
        yield from _check_emulated(pool, path, given)


def _check_emulated(pool: Pool, path: str, given: Given) -> Iterator[Problem]:
    """The performance model must know the model and the hardware, and the one must fit on the other."""
    try:
        profile(
            pool.hardware,
            pool.model,
            pool.precision,
            tp=pool.tensor_parallel_size,
            pp=pool.pipeline_parallel_size,
            max_num_seqs=pool.max_num_seqs,
            token_budget=pool.emulator.token_budget,
            block_size=pool.emulator.block_size,
            max_model_len=pool.max_model_len or None,
        )
    except ConfigError as error:
        field = {"hardware": "hardware", "precision": "precision"}.get(error.param or "", "model")
        yield _at(given, path + field, error.message)


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
            yield _at(given, url_path, str(error))
            continue
        if address in seen_addresses:
            yield _at(
                given, url_path, f"{address} is also the address of {seen_addresses[address]}; each needs its own"
            )
        replica_id = entry.id or f"{host}:{port}"
        if replica_id in seen_ids and address not in seen_addresses:
            yield _at(given, f"{here}.id", f"{replica_id!a} is also the id of {seen_ids[replica_id]}; ids are unique")
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
                yield _at(given, path + "base_port", f"ports {first} to {last} meet those of {other} ({low} to {high})")
        taken.append((first, last, path.rstrip(".") or "the replicas"))
    addresses = {node.address for node in file.nodes} if not isinstance(file.nodes, int) else set()
    for name, host, port in (
        ("gateway.port", file.gateway.host, file.gateway.port),
        ("gateway.admin_port", file.gateway.admin_host, file.gateway.admin_port),
    ):
        for low, high, other in taken:
            if low <= port <= high and (host in addresses or host in _ALL_INTERFACES):
                yield _at(given, name, f"{port} is also a port of {other} ({low} to {high})")
