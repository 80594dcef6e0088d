"""The gateway as a whole over fake engines: start, readiness, membership, stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import subprocess

import msgspec
import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import ONE_PROBE, client_of, cluster_of, running, until
from tests.programs import program

from exaserve.config import GatewaySettings
from exaserve.domain.errors import ConfigError
from exaserve.gateway.app import Gateway, fit_to_file_limit
from exaserve.observe import EventLog, null_log

pytestmark = pytest.mark.may_block

ASK = {"model": "m", "prompt": "x", "max_tokens": 1}


async def test_ready_as_soon_as_its_replicas_answer():
    """Asked at the start and once: neither a second probe nor a report is waited for."""
    async with FakeEngine() as engine:
        engine.answers["/metrics"] = "hang"
        async with running(engine, health=ONE_PROBE) as gateway, client_of(gateway) as client:
            await until(gateway.scheduler.ready_models)
            assert engine.asked["/v1/completions"] == 1
            assert (await client.get("/ready")).status_code == 200
            answer = await client.post("/v1/completions", json=ASK)
            assert (answer.status_code, answer.headers["x-exaserve-replica"]) == (200, f"127.0.0.1:{engine.port}")


async def test_starts_without_reachable_replicas_and_says_so():
    dead = FakeEngine()
    await dead.start()
    await dead.stop()
    async with FakeEngine() as engine, running(dead, engine) as gateway, client_of(gateway) as client:
        await until(gateway.scheduler.ready_models)
        for _ in range(4):
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200
        rows = gateway.scheduler.states()
        assert sum(state.standing.available for state in rows.values()) == 1


async def test_nothing_ready_is_alive_but_not_ready():
    dead = FakeEngine()
    await dead.start()
    await dead.stop()
    async with running(dead) as gateway, client_of(gateway) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503
        await dead.start()
        await until(gateway.scheduler.ready_models)
        assert (await client.get("/ready")).status_code == 200
        assert any("event=ready" in line for line in gateway.lines)
    await dead.stop()


async def test_before_any_model_is_known_requests_wait_instead_of_404():
    late = FakeEngine()
    await late.start()
    await late.stop()
    async with running(late) as gateway, client_of(gateway) as client:
        asked = asyncio.create_task(client.post("/v1/completions", json=ASK))
        await until(lambda: len(gateway.admission) == 1)
        await late.start()
        answer = await asked
        assert answer.status_code == 200
        assert (await client.post("/v1/completions", json=ASK | {"model": "none"})).status_code == 404
    await late.stop()


async def test_a_replica_that_stops_generating_leaves_and_comes_back():
    async with FakeEngine() as one, FakeEngine() as two, running(one, two) as gateway, client_of(gateway) as client:
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        one.answers["/v1/completions"] = (500, b"{}")
        await until(lambda: not gateway.state(one).standing.available)
        for _ in range(4):
            answer = await client.post("/v1/completions", json=ASK)
            assert (answer.status_code, answer.headers["x-exaserve-replica"]) == (200, f"127.0.0.1:{two.port}")
        one.answers["/v1/completions"] = (200, b"{}")
        await until(lambda: gateway.state(one).standing.available)
        events = [line.split("event=")[1].split()[0] for line in gateway.lines]
        assert events.count("replica_down") == 1


async def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with FakeEngine() as engine:
            for name, flag in (("port", "--port"), ("admin_port", "--admin-port")):
                settings = {"port": 0, "admin_port": 0, name: port}
                cluster = cluster_of(engine)
                cluster = msgspec.structs.replace(cluster, gateway=msgspec.structs.replace(cluster.gateway, **settings))
                with pytest.raises(
                    ConfigError, match=f"127.0.0.1:{port} for .*gateway.{name}.*in use.*{flag}"
                ) as caught:
                    await Gateway(cluster, log=null_log()).start()
                assert caught.value.param == f"gateway.{name}"
            await asyncio.sleep(0.01)


async def test_an_address_that_is_not_ours_is_named():
    async with FakeEngine() as engine:
        with pytest.raises(ConfigError, match="does not have that address"):
            async with running(engine, host="192.0.2.1", auth="open"):
                pass


async def test_reload_adds_removes_and_switches_the_policy():
    async with FakeEngine() as one, FakeEngine() as two, running(one) as gateway, client_of(gateway) as client:
        await until(gateway.scheduler.ready_models)
        new = cluster_of(two)
        new = msgspec.structs.replace(new, scheduling=dataclasses.replace(new.scheduling, policy="round_robin"))
        changes = gateway.reload(new)
        assert f"replica 127.0.0.1:{one.port}: removed" in changes
        assert f"replica 127.0.0.1:{two.port}: added" in changes
        assert gateway.scheduler.policy_name == "round_robin"
        await until(gateway.scheduler.ready_models)
        assert (await client.post("/v1/completions", json=ASK)).headers["x-exaserve-replica"] == f"127.0.0.1:{two.port}"
        await until(lambda: one.open == 0)
        assert gateway.reload(new) == []


async def test_reload_says_what_needs_a_restart_and_leaves_it():
    async with FakeEngine() as engine, running(engine) as gateway:
        new = msgspec.structs.replace(
            gateway.cluster, gateway=msgspec.structs.replace(gateway.cluster.gateway, drain_s=7.0)
        )
        gateway.reload(new)
        assert any("reload_needs_restart" in line and "gateway.drain" in line for line in gateway.lines)
        assert gateway.cluster.gateway.drain_s == 60.0


@pytest.mark.parametrize("extra", [b"", b"A: b\r\n"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_heads_keep_their_lines_apart_in_both_directions(extra, chunked):
    """Also where no header of the client, or of the replica, is passed on."""
    body = b'{"model":"m"}'
    async with FakeEngine() as engine, running(engine) as gateway:
        await until(gateway.scheduler.ready_models)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%b%b\r\n\r\n%b" % (extra, framing, sent))
        answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        assert answer[0].startswith(b"HTTP/1.1 200 ")
        assert b"x-exaserve-replica: 127.0.0.1:%d" % engine.port in answer
        head = engine.heads[-1].split(b"\r\n")
        assert head[0] == b"POST /v1/completions HTTP/1.1"
        assert b"Host: 127.0.0.1:%d" % engine.port in head
        assert b"Content-Length: %d" % len(body) in head
        assert (b"A: b" in head) == bool(extra)
        writer.transport.abort()
        await asyncio.sleep(0.01)


def refuses(gateway) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))) != 0


async def test_stop_finishes_what_is_under_way_and_takes_nothing_new():
    release = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closed in any case, also where the gateway gives the connection up before it has asked anything.
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/v1/completions" in head and b"x-test" in head:
                await release.wait()
            body = b'{"data":[{"id":"m"}]}' if b"/v1/models" in head else b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    engine = FakeEngine()
    engine.port = server.sockets[0].getsockname()[1]
    async with running(engine, linger_s=3.0) as gateway, client_of(gateway) as client:
        await until(gateway.scheduler.ready_models)
        asked = asyncio.create_task(client.post("/v1/completions", json=ASK, headers={"x-test": "1"}))
        await until(lambda: gateway.data_plane.inflight() == 1)
        async with client_of(gateway) as other:
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0)
            assert (await other.get("/ready")).status_code == 503, "still answers, and says that it goes"
        await until(lambda: refuses(gateway))
        assert not stopping.done()
        release.set()
        assert (await asked).status_code == 200
        await asyncio.wait_for(stopping, 20)  # not when its limit is reached
    server.close()


async def test_stop_cuts_what_takes_longer_than_the_limit():
    async with FakeEngine() as engine, running(engine) as gateway, client_of(gateway) as client:
        await until(gateway.scheduler.ready_models)
        engine.answers["/v1/chat/completions"] = "hang"
        asked = asyncio.create_task(client.post("/v1/chat/completions", json={"model": "m", "messages": []}))
        await until(lambda: gateway.data_plane.inflight() == 1)
        await asyncio.wait_for(gateway.stop(0.5), 20)  # the cluster's own limit is a minute
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"] == "1"
        assert any("cut=1" in line for line in gateway.lines)
        assert all(state.inflight == 0 for state in gateway.scheduler.states().values())


async def test_metrics_hold_every_replica():
    async with FakeEngine() as one, FakeEngine() as two, running(one, two) as gateway, client_of(gateway) as client:
        await until(lambda: all(state.seen.report for state in gateway.scheduler.states().values()))
        text = (await client.get("/metrics")).text
        for engine in (one, two):
            assert f'exaserve_replica_running{{replica="127.0.0.1:{engine.port}"}} 3' in text
            assert f'exaserve_replica_state{{replica="127.0.0.1:{engine.port}",state="healthy"}} 1' in text
        checked = subprocess.run(
            [program("promtool"), "check", "metrics"], input=text.encode(), capture_output=True, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_the_file_limit_bounds_connections_and_is_told():
    lines: list[str] = []
    settings = fit_to_file_limit(GatewaySettings(), 48, EventLog(lines.append))
    assert 16 <= settings.limits.connections_max <= GatewaySettings().limits.connections_max
    assert "event=file_limit" in lines[0]


async def test_engines_key_is_for_probes_and_telemetry_and_clients_keep_theirs():
    async with FakeEngine() as engine:
        gateway = Gateway(cluster_of(engine), log=null_log(), engine_api_key="sk-engines")
        await gateway.start()
        try:
            await until(lambda: gateway.scheduler.ready_models() and engine.asked["/metrics"])
            assert all(b"\r\nAuthorization: Bearer sk-engines\r\n" in head for head in engine.heads)
            engine.heads.clear()
            async with client_of(gateway) as client:
                await client.post("/v1/completions", json=ASK, headers={"authorization": "Bearer sk-client"})
                await client.post("/v1/completions", json=ASK)
            heads = [head.lower() for head in engine.heads if b"x-request-id" in head.lower()]
            assert [b"sk-client" in head for head in heads] == [True, False]
            assert not any(b"sk-engines" in head for head in heads)
        finally:
            await gateway.stop(0.0)
