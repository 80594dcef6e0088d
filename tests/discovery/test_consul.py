"""Consul's own rules: indexes, blocking, ACLs, failover, criticality, TLS, and registration with a TTL check."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.discovery.certificates import Certificates
from tests.discovery.fake_consul import FakeConsul
from tests.discovery.following import following
from tests.gateway.running import until

from exaserve.discovery import Belief, Defaults, SourceError
from exaserve.discovery.consul import QUERIES_BURST, QUERIES_PER_S, ConsulDiscovery, ConsulRegistration
from exaserve.discovery.http import Tls
from exaserve.domain.replica import ReplicaId, ReplicaSpec

pytestmark = pytest.mark.may_block


def source_of(*servers: str, **settings: Any) -> ConsulDiscovery:
    chosen: dict[str, Any] = {"wait_s": 5.0, "rng": Random(0)} | settings
    return ConsulDiscovery("vllm", servers, **chosen)


async def error_of(source: ConsulDiscovery, named: str) -> None:
    await until(lambda: named in source.status().error)


def health_queries(consul: FakeConsul) -> list[dict[str, str]]:
    return [asked.params for asked in consul.asked if asked.path == "/v1/health/service/vllm"]


async def test_meta_and_tags_say_what_a_replica_is():
    async with FakeConsul() as consul:
        consul.put(
            "vllm", "a", "10.0.0.1", 8001, node="n1",
            meta={"models": "m, m-lora", "version": "v2", "engine": "vllm", "max_model_len": "8192",
                  "replica": "n1/r0"},
        )  # fmt: skip
        consul.put("vllm", "b", "", 8002, node="n2", tags=["model=x", "model=y", "weight=0.5", "primary"])
        async with following(source_of(consul.url, defaults=Defaults(("d",), "sglang"))) as seen:
            await until(lambda: len(seen.held) == 2)
            a, b = seen.held["n1/r0"], seen.held["n2/b"]
            assert a == ReplicaSpec(
                ReplicaId("n1/r0"), "http://10.0.0.1:8001", ("m", "m-lora"), "v2", "n1", "vllm", max_model_len=8192
            )
            assert (b.url, b.models, b.weight) == ("http://10.9.9.9:8002", ("x", "y"), 0.5), "the node's own address"
            assert b.engine == "sglang"


async def test_one_query_blocks_and_its_answer_is_the_change():
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        async with following(source_of(consul.url, wait_s=300.0)) as seen:
            await until(lambda: consul.waiting == 1)
            await asyncio.sleep(0.3)
            assert len(health_queries(consul)) == 2, "the second query is still waiting"
            assert health_queries(consul)[1]["index"] == str(consul.service_index["vllm"])
            assert health_queries(consul)[1]["wait"] == "300000ms"
            consul.set_status("vllm", "a", "critical")
            await until(lambda: not seen.held)
            assert seen.changes[-1].reason == "critical: ttl: TTL"


async def test_critical_is_out_at_once_warning_stays_with_its_weight():
    async with FakeConsul() as consul:
        for name in "abc":
            consul.put("vllm", name, f"10.0.0.{ord(name)}", 8000, weights={"Passing": 10, "Warning": 2})
        async with following(source_of(consul.url)) as seen:
            await until(lambda: len(seen.held) == 3)
            consul.set_status("vllm", "a", "warning")
            await until(lambda: seen.held["node-a/a"].weight == 2)
            consul.instances["vllm"]["b"]["Checks"].append(
                {
                    "CheckID": "_node_maintenance",
                    "Name": "Node Maintenance Mode",
                    "Status": "critical",
                    "Output": "disk",
                }
            )
            consul.touch("vllm")
            await until(lambda: "node-b/b" not in seen.held)
            assert seen.changes[-1].reason == "critical: Node Maintenance Mode: disk"
            consul.drop("vllm", "c")
            await until(lambda: "node-c/c" not in seen.held)
            assert seen.changes[-1].reason == "deregistered"


async def test_an_index_that_goes_backwards_starts_again():
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        async with following(source_of(consul.url)) as seen:
            await until(lambda: consul.waiting == 1)
            before = len(health_queries(consul))
            consul.service_index["vllm"] = 3  # a restored snapshot
            consul.put("vllm", "b", "10.0.0.2", 8000)
            consul.service_index["vllm"] = 3
            consul.wake()
            await until(lambda: len(seen.held) == 2)
            await until(lambda: consul.waiting == 1)
            after = health_queries(consul)[before:]
            assert "index" not in after[0], "asked from the start"
            assert after[-1]["index"] == "3"


@pytest.mark.parametrize("index", ["0", "-5", "", "many"])
async def test_an_index_that_is_none_is_polled_at_a_walk(index: str):
    async with FakeConsul() as consul:
        consul.raw = (200, b"[]", {"X-Consul-Index": index})
        async with following(source_of(consul.url, poll_s=60.0)) as seen:
            await until(lambda: seen.batches)
            await asyncio.sleep(0.4)
            assert len(consul.asked) == 1
            assert "index" not in consul.asked[0].params
            assert seen.batches == [()]


async def test_a_service_that_changes_all_the_time_is_not_asked_in_a_circle():
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        async with following(source_of(consul.url)) as seen:
            await until(lambda: seen.held)
            began = time.monotonic()
            while time.monotonic() < began + 1.5:
                consul.touch("vllm")
                await asyncio.sleep(0.002)
            allowed = (time.monotonic() - began) * QUERIES_PER_S + QUERIES_BURST
            assert len(consul.asked) <= allowed + 2


async def test_a_server_that_accepts_and_never_answers_is_noticed_without_the_blocking_time():
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = source_of(f"http://127.0.0.1:{port}", wait_s=600.0, answer_s=0.1)
    async with following(source):
        await error_of(source, "no answer in time")
    server.close()


async def test_maintenance_is_a_word_and_criticality_of_all_is_doubted():
    async with FakeConsul() as consul:
        for name in "ab":
            consul.put("vllm", name, f"10.0.0.{ord(name)}", 8000)
        source = source_of(consul.url)
        source.doubt(Belief(60.0, lambda _replica: True))
        async with following(source) as seen:
            await until(lambda: len(seen.held) == 2)
            for name in "ab":
                consul.set_status("vllm", name, "critical")
            await until(lambda: source.status().held)
            maintenance = {
                "CheckID": "_service_maintenance:b",
                "Name": "Maintenance",
                "Status": "critical",
                "Output": "",
            }
            consul.instances["vllm"]["b"]["Checks"].append(maintenance)
            consul.touch("vllm")
            await until(lambda: "node-b/b" not in seen.held)


async def test_the_next_server_is_asked_when_one_fails():
    async with FakeConsul() as one, FakeConsul() as two, FakeConsul() as three:
        for consul in (one, two, three):
            consul.put("vllm", "a", "10.0.0.1", 8000)
        two.index = 500
        source = source_of(one.url, two.url, three.url)
        async with following(source) as seen:
            await until(lambda: one.waiting == 1)
            await one.stop()
            two.leader = False
            await until(lambda: three.waiting == 1)
            assert any("index" not in asked for asked in health_queries(three))
            three.put("vllm", "b", "10.0.0.2", 8000)
            await until(lambda: len(seen.held) == 2)
            assert not any(type(change).__name__ == "Removed" for change in seen.changes)


async def test_without_a_leader_a_stale_answer_will_do_where_allowed():
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        consul.leader = False
        strict = source_of(consul.url)
        async with following(strict):
            await until(lambda: "No cluster leader" in strict.status().error)
        async with following(source_of(consul.url, stale=True)) as seen:
            await until(lambda: seen.held)


async def test_the_acl_token_is_sent_and_its_lack_is_named(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("b1gs33cr3t-token\n")
    async with FakeConsul() as consul:
        consul.token = "b1gs33cr3t-token"
        consul.put("vllm", "a", "10.0.0.1", 8000)
        async with following(source_of(consul.url, token_file=str(token))) as seen:
            await until(lambda: seen.held)
        without = source_of(consul.url)
        async with following(without) as seen:
            await until(lambda: "service:read" in without.status().error)
            assert seen.batches == []
        nowhere = source_of(consul.url, token_file=str(tmp_path / "none"))
        async with following(nowhere):
            await until(lambda: "No such file" in nowhere.status().error)
            assert "token_file" in nowhere.status().error


async def test_an_answer_that_acls_have_thinned_out_takes_nobody_out():
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        source = source_of(consul.url)
        async with following(source) as seen:
            await until(lambda: seen.held)
            consul.filtered = True
            consul.touch("vllm")
            await until(lambda: "hides part" in source.status().error)
            assert len(seen.held) == 1


async def test_datacenter_namespace_and_tag_go_into_the_query():
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000, tags=["gpu"])
        consul.put("vllm", "b", "10.0.0.2", 8000)
        consul.datacenters = {"dc2"}
        wrong = source_of(consul.url, datacenter="dc9")
        async with following(wrong):
            await until(lambda: "No path to datacenter" in wrong.status().error)
        async with following(source_of(consul.url, datacenter="dc2", namespace="team", tag="gpu")) as seen:
            await until(lambda: seen.held)
            assert list(seen.held) == ["node-a/a"]
            assert health_queries(consul)[-1]["ns"] == "team"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'[{"Node":{}}]', b'[{"Node":{},"Service":{"Port":"x"}}]', b"\xff"]
)
async def test_what_is_not_consuls_answer_is_said_and_changes_nothing(body: bytes):
    async with FakeConsul() as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        source = source_of(consul.url)
        async with following(source) as seen:
            await until(lambda: consul.waiting == 1)
            consul.raw = (200, body, {"X-Consul-Index": "99"})
            consul.touch("vllm")
            await until(lambda: "not Consul's" in source.status().error)
            assert len(seen.held) == 1


async def test_tls_with_an_own_ca_and_a_client_certificate(tmp_path: Path):
    made = Certificates(tmp_path)
    async with FakeConsul(tls=made.server_context(ask_client=True)) as consul:
        consul.put("vllm", "a", "10.0.0.1", 8000)
        tls = Tls(str(made.ca), str(made.client_cert), str(made.client_key))
        async with following(source_of(consul.url, tls=tls)) as seen:
            await until(lambda: seen.held)
        for wrong, named in (
            (Tls(), "certificate verify failed"),
            (Tls(str(tmp_path / "none.pem")), "ca_file"),
            (Tls(str(made.ca), str(tmp_path / "none.pem")), "cert_file"),
        ):
            source = source_of(consul.url, tls=wrong)
            async with following(source):
                await error_of(source, named)


SPEC = ReplicaSpec(
    ReplicaId("n1/r0"), "http://10.0.0.1:8001", ("m",), "v2", "n1", "vllm", 0.5, 8192, 64, 100_000, 5000.0, 0.02
)


async def test_what_is_registered_is_what_is_discovered():
    async with FakeConsul() as consul:
        own = ConsulRegistration("vllm", SPEC, consul.url, ttl_s=1.0)
        async with following(source_of(consul.url)) as seen:
            await own.beat()
            await until(lambda: seen.held)
            assert seen.held == {"n1/r0": SPEC}
            await own.close()
            await until(lambda: not seen.held)
            assert seen.changes[-1].reason == "deregistered"


async def test_a_replica_whose_beat_stops_is_out_when_its_ttl_is_over():
    async with FakeConsul() as consul:
        own = ConsulRegistration("vllm", SPEC, consul.url, ttl_s=2.0)
        async with following(source_of(consul.url)) as seen:
            await own.beat()
            await until(lambda: seen.held)
            for _ in range(4):
                await asyncio.sleep(own.beat_every_s)
                await own.beat()
            assert len(seen.changes) == 1
            await until(lambda: not seen.held)
            await own.beat("warning", "busy")
            await until(lambda: seen.held)
        await own.close()


async def test_an_agent_that_has_forgotten_is_told_again():
    async with FakeConsul() as consul:
        own = ConsulRegistration("vllm", SPEC, consul.url)
        await own.beat()
        consul.drop("vllm", "n1-r0")
        await own.beat()
        assert "n1-r0" in consul.instances["vllm"]
        consul.token = "some token that we lack"
        with pytest.raises(SourceError, match="service:write"):
            await own.beat()
        await own.close()


@pytest.mark.parametrize("ttl_s", [0.5, 15.1, 60.0])
def test_a_ttl_beyond_15_seconds_is_refused(ttl_s: float):
    with pytest.raises(ValueError, match="ttl_s must be from 1 to 15"):
        ConsulRegistration("vllm", SPEC, ttl_s=ttl_s)
