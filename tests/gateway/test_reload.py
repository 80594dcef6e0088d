"""A reload costs by what changes, and the loop does not wait for it."""

from __future__ import annotations

import asyncio
import threading

from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import cluster_of, running, until

from exaserve.config import Cluster, parse_cluster
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.reload import ClusterChange, Reloads, compare
from exaserve.observe import EventLog

TWO = "model: m\nreplicas: ['http://127.0.0.1:8001', 'http://127.0.0.1:8002']\n"
NEW = "model: m\nreplicas: [{url: 'http://127.0.0.1:8002', weight: 0.5}, 'http://127.0.0.1:8003']\n"


def test_what_differs_is_named_replica_by_replica():
    difference = compare(parse_cluster(TWO), parse_cluster(NEW + "gateway: {drain: 7s}\n"))
    assert difference.removed == ("127.0.0.1:8001",)
    assert [spec.id for spec in difference.added] == ["127.0.0.1:8003"]
    assert [(old.weight, new.weight) for old, new in difference.changed] == [(1.0, 0.5)]
    assert difference.needs_restart == ["gateway.drain"]


def test_equal_files_differ_in_nothing():
    difference = compare(parse_cluster(TWO), parse_cluster(TWO))
    assert (difference.lines, difference.removed, difference.added, difference.changed) == ((), (), (), ())


class Target:
    def __init__(self) -> None:
        self.cluster = parse_cluster(TWO)
        self.taken: list[ClusterChange] = []

    def take(self, difference: ClusterChange) -> None:
        self.cluster = difference.cluster
        self.taken.append(difference)


async def test_the_loop_goes_on_while_the_file_is_read_and_errors_keep_what_is_in_use():
    target = Target()
    lines: list[str] = []
    may_go_on = threading.Event()
    results: list[Cluster | Exception] = [
        ConfigError("no such key"),
        RuntimeError("nobody foresaw this"),
        parse_cluster(NEW),
        parse_cluster(NEW),
    ]

    def read() -> Cluster:
        assert may_go_on.wait(30.0)
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    reloads = Reloads(lambda: target.cluster, read, target.take, EventLog(lines.append))
    task = asyncio.create_task(reloads.run())
    reloads.ask()
    for _ in range(20):
        await asyncio.sleep(0.001)  # it does: `read` waits until this has been reached
    may_go_on.set()
    await until(lambda: len(results) == 3)
    reloads.ask()
    await until(lambda: sum("reload_failed" in line for line in lines) == 2)
    assert "no such key" in lines[0]
    assert "nobody foresaw this" in lines[1]
    assert target.taken == []
    reloads.ask()
    reloads.ask()
    await until(lambda: len(target.taken) == 1)
    assert target.taken[0].removed == ("127.0.0.1:8001",)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_replicas_that_did_not_change_are_neither_asked_nor_probed_again():
    async with FakeEngine() as one, FakeEngine() as two, running(one) as gateway:
        await until(gateway.scheduler.ready_models)
        member = gateway.fleet.members()[ReplicaId(f"127.0.0.1:{one.port}")]
        before = (member.models_at, gateway.fleet.view(member.id).since)
        gateway.reload(cluster_of(one, two))
        await until(lambda: two.asked["/v1/completions"])
        assert gateway.fleet.members()[member.id] is member
        assert (member.models_at, gateway.fleet.view(member.id).since) == before
        assert one.asked["/v1/models"] == 1


async def test_a_changed_description_keeps_the_replica_in_rotation():
    async with FakeEngine() as engine, running(engine) as gateway:
        await until(gateway.scheduler.ready_models)
        (spec,) = gateway.cluster.replicas()
        text = f"model: m\nreplicas: [{{id: '{spec.id}', url: '{spec.url}', weight: 0.5}}]\n"
        gateway.reload(parse_cluster(text))
        (state,) = gateway.scheduler.states().values()
        assert (state.standing.weight, state.eligible) == (0.5, True)
        gateway.fleet.validate()
