"""What sources say, put into effect by a whole gateway: in by Consul, out when critical, each address once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.discovery.fake_consul import FakeConsul
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import ONE_PROBE, QUICK, Watched, admin_of, until

from exaserve.config import Cluster, GatewaySettings, Pool, TelemetrySettings
from exaserve.config.sources import ConsulSettings, DiscoverySettings, FileSettings
from exaserve.discovery import consul as consul_module
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.fleet import registries
from exaserve.gateway.fleet.registries import watch_file
from exaserve.health import HealthConfig
from exaserve.serving.fleet import TICK_S

pytestmark = pytest.mark.may_block

ASK = {"model": "m", "prompt": "x", "max_tokens": 1}


def cluster_of(discovery: DiscoverySettings, *urls: str, health: HealthConfig = QUICK) -> Cluster:
    return Cluster(
        pools=(Pool(replicas=urls),) if urls else (),
        health=health,
        telemetry=TelemetrySettings(interval_s=0.05, timeout_s=10.0),
        gateway=GatewaySettings(port=0, admin_port=0, drain_s=2.0),
        discovery=discovery,
    )


@contextlib.asynccontextmanager
async def running(discovery: DiscoverySettings, *urls: str, health: HealthConfig = QUICK) -> AsyncIterator[Watched]:
    gateway = Watched(cluster_of(discovery, *urls, health=health), None)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(0.0)
        gateway.scheduler.validate()
        gateway.fleet.validate()


def consul_of(consul: FakeConsul) -> DiscoverySettings:
    consul_settings = ConsulSettings(service="vllm", servers=(consul.url,))
    return DiscoverySettings(consul=consul_settings, shrink_hold_s=0.0)  # these tests empty sets of engines that run


def ids(gateway: Watched) -> set[str]:
    return set(gateway.scheduler.states())


async def test_found_served_and_out_at_once_when_critical():
    """By the answer to the query that waits for it and by the first probe: both would come again after minutes."""
    pauses_s = (1.5 * consul_module.PAUSE_MIN_S, registries.PAUSE_SHARE * 0.01, TICK_S)
    assert sum(pauses_s) < 0.5, "a node that joins serves within half a second"
    async with FakeConsul() as consul, FakeEngine() as one, FakeEngine() as two:
        consul.put("vllm", "a", "127.0.0.1", one.port)
        async with (
            running(consul_of(consul), health=ONE_PROBE) as gateway,
            httpx.AsyncClient(trust_env=False, timeout=20) as client,
        ):
            await until(gateway.scheduler.ready_models)
            answer = await client.post(f"{gateway.url}/v1/completions", json=ASK)
            assert answer.headers["x-exaserve-replica"] == "node-a/a"
            consul.put("vllm", "b", "127.0.0.1", two.port)
            await until(lambda: len([s for s in gateway.scheduler.states().values() if s.standing.available]) == 2)
            consul.set_status("vllm", "a", "critical")
            await until(lambda: ids(gateway) == {"node-b/b"})
            assert any(
                'event=replica_gone replica=node-a/a source=consul:vllm why="critical' in x for x in gateway.lines
            )
            for _ in range(5):
                answer = await client.post(f"{gateway.url}/v1/completions", json=ASK)
                assert (answer.status_code, answer.headers["x-exaserve-replica"]) == (200, "node-b/b")


async def test_with_consul_away_everything_goes_on():
    async with FakeConsul() as consul, FakeEngine() as engine:
        consul.put("vllm", "a", "127.0.0.1", engine.port)
        async with running(consul_of(consul)) as gateway, admin_of(gateway) as admin:
            await until(gateway.scheduler.ready_models)
            await consul.stop()
            await until(lambda: any("event=discovery_unreachable" in line for line in gateway.lines))
            assert gateway.scheduler.ready_models() == ("m",)
            (row,) = (await admin.get("/discovery")).json()["sources"]
            assert (row["source"], row["reached"], row["listed"]) == ("consul:vllm", False, 1)
            assert row["error"]
            assert 'exaserve_discovery_up{source="consul:vllm"} 0' in gateway.metrics.render().decode()
            await consul.start()
            consul.drop("vllm", "a")
            await until(lambda: not ids(gateway))


async def test_an_emptied_list_takes_nobody_out_who_answers_until_an_operator_says_so(tmp_path: Path):
    async with FakeEngine() as one, FakeEngine() as two:
        listed = tmp_path / "replicas.yaml"
        listed.write_text(f"- {{id: a, url: '{one.url}'}}\n- {{id: b, url: '{two.url}'}}\n")
        discovery = DiscoverySettings(file=FileSettings(path=str(listed), interval_s=0.05), shrink_hold_s=0.1)
        async with running(discovery) as gateway, admin_of(gateway) as admin:
            await until(lambda: len([s for s in gateway.scheduler.states().values() if s.standing.available]) == 2)
            listed.write_text("")
            await until(lambda: any("event=discovery_doubted" in line for line in gateway.lines))
            assert 'exaserve_discovery_held{source="file:' in gateway.metrics.render().decode()
            await two.stop()
            await until(lambda: ids(gateway) == {"a"})
            assert any("replica_gone replica=b" in line and "fails its probes" in line for line in gateway.lines)
            (row,) = (await admin.get("/discovery")).json()["sources"]
            assert (row["listed"], row["held"]) == (0, 1)
            assert (await admin.post("/discovery/believe", json={"source": "file:x"})).status_code == 404
            answer = await admin.post("/discovery/believe", json={"source": row["source"]})
            assert answer.json() == {"source": row["source"], "leave": 1}
            await until(lambda: not ids(gateway))
            told = gateway.metrics.render().decode().splitlines()
            assert {"exaserve_replicas 0", "exaserve_replicas_eligible 0"} <= set(told), "an alert needs a series"


async def test_weights_and_models_follow_without_a_new_replica():
    async with FakeConsul() as consul, FakeEngine() as engine:
        consul.put("vllm", "a", "127.0.0.1", engine.port)
        async with running(consul_of(consul)) as gateway:
            await until(gateway.scheduler.ready_models)
            state = gateway.scheduler.states()[ReplicaId("node-a/a")]
            consul.put("vllm", "a", "127.0.0.1", engine.port, meta={"weight": "0.25"})
            await until(lambda: state.standing.weight == 0.25)
            assert gateway.scheduler.states()[ReplicaId("node-a/a")] is state
            assert gateway.scheduler.models() == ("m",), "what was asked of it still holds"


async def test_the_cluster_file_comes_first_and_one_address_is_one_replica(tmp_path: Path):
    async with FakeEngine() as one, FakeEngine() as two:
        listed = tmp_path / "more.yaml"
        listed.write_text(f"- {{id: again, url: '{one.url}'}}\n- {{id: 'other', url: '{two.url}'}}\n")
        discovery = DiscoverySettings(file=FileSettings(path=str(listed), interval_s=0.05))
        async with running(discovery, one.url) as gateway:
            await until(lambda: len(ids(gateway)) == 2)
            assert ids(gateway) == {f"127.0.0.1:{one.port}", "other"}
            assert any("event=replica_left_out replica=again" in line for line in gateway.lines)
            changed = cluster_of(discovery, f"http://127.0.0.2:{one.port}")
            gateway.reload(changed)
            assert ids(gateway) == {f"127.0.0.2:{one.port}", "other", "again"}
            claimed = msgspec.structs.replace(
                changed, pools=(Pool(replicas=(two.url.replace("127.0.0.1", "127.0.0.3"),)),)
            )
            listed.write_text(f"- {{id: '127.0.0.3:{two.port}', url: '{two.url}'}}\n")
            await until(lambda: ids(gateway) == {f"127.0.0.2:{one.port}", f"127.0.0.3:{two.port}"})
            gateway.reload(claimed)
            assert ids(gateway) == {f"127.0.0.3:{two.port}"}
            state = gateway.scheduler.states()[ReplicaId(f"127.0.0.3:{two.port}")]
            assert state.url == f"http://127.0.0.3:{two.port}"


async def test_of_two_sources_with_one_id_the_first_counts_until_it_lets_go(tmp_path: Path):
    async with FakeConsul() as consul, FakeEngine() as one, FakeEngine() as two:
        listed = tmp_path / "more.json"
        listed.write_text(msgspec.json.encode([{"id": "node-a/a", "url": one.url}]).decode())
        consul.put("vllm", "a", "127.0.0.1", two.port)
        discovery = msgspec.structs.replace(consul_of(consul), file=FileSettings(path=str(listed), interval_s=0.05))
        async with running(discovery) as gateway:
            await until(
                lambda: gateway.registries is not None and all(r["updates"] for r in gateway.registries.as_rows())
            )
            await until(lambda: gateway.scheduler.states()[ReplicaId("node-a/a")].url == one.url)
            listed.write_text("[]")
            await until(lambda: gateway.scheduler.states()[ReplicaId("node-a/a")].url == two.url)


async def test_a_file_is_watched_through_rename_and_absence(tmp_path: Path):
    path = tmp_path / "cluster.yaml"
    path.write_text("a")
    seen: list[Any] = []
    task = asyncio.create_task(watch_file(path, lambda: seen.append(1), 0.02))
    await asyncio.sleep(0.1)
    assert seen == []
    aside = tmp_path / "aside"
    aside.write_text("b")
    aside.rename(path)
    await until(lambda: len(seen) == 1)
    path.unlink()
    await asyncio.sleep(0.1)
    assert len(seen) == 1
    path.write_text("ccc")
    await until(lambda: len(seen) == 2)
    task.cancel()
