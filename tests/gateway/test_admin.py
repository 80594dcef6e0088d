"""The admin API: what it shows, what it moves, whom it refuses."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import admin_of, client_of, running, until

from exaserve.config import is_loopback
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.scheduling import POLICIES

pytestmark = pytest.mark.may_block
"""starlette and uvicorn read package data at import; the request path is tested elsewhere."""


async def test_replicas_show_health_load_report_ledger_and_entropy():
    async with FakeEngine(running=3, waiting=2, kv=0.25) as engine, running(engine) as gateway:
        await until(gateway.scheduler.ready_models)
        await until(lambda: next(iter(gateway.scheduler.states().values())).seen.report)
        async with admin_of(gateway) as admin:
            data = (await admin.get("/replicas")).json()
            assert (data["policy"], data["models"], data["in_flight"]) == ("entropy", ["m"], 0)
            row = data["replicas"][0]
            assert row["id"] == f"127.0.0.1:{engine.port}"
            assert (row["state"], row["eligible"], row["engine"]) == ("healthy", True, "vllm")
            assert (row["running"], row["waiting"], row["kv_use"], row["kv_tokens_max"]) == (3, 2, 0.25, 16000)
            assert 0 <= row["report_age_s"] < 5
            assert row["ledger"] == {
                "told": 0,
                "pending": 0,
                "pending_s": 0.0,
                "decoding": 0,
                "kv_tokens": 0,
                "placed_total": 0,
            }
            assert set(row["entropy"]) >= {"queued_s", "prefill_s", "decode_s", "memory_s", "total_s"}
            assert (await admin.get(f"/replicas/{row['id']}")).json()["id"] == row["id"]


async def test_unknown_is_null_and_not_zero():
    async with FakeEngine() as engine:
        engine.answers["/metrics"] = (404, b"")
        async with running(engine) as gateway, admin_of(gateway) as admin:
            await until(gateway.scheduler.ready_models)
            row = (await admin.get("/replicas")).json()["replicas"][0]
            assert [row[key] for key in ("running", "waiting", "kv_use", "report_age_s")] == [None] * 4


async def test_levers():
    async with FakeEngine() as engine, running(engine) as gateway, admin_of(gateway) as admin:
        await until(gateway.scheduler.ready_models)
        name = f"127.0.0.1:{engine.port}"
        state = gateway.scheduler.states()[ReplicaId(name)]
        assert (await admin.post(f"/replicas/{name}/drain")).json()["draining"] is True
        assert gateway.scheduler.ready_models() == ()
        assert (await admin.post(f"/replicas/{name}/undrain")).json()["eligible"] is True
        assert (await admin.post(f"/replicas/{name}/weight", json={"weight": 0.5})).json()["weight"] == 0.5
        assert state.standing.weight == 0.5
        assert (await admin.post(f"/replicas/{name}/score", json={"score": "inf"})).json()["forced_score"] == "inf"
        assert gateway.scheduler.ready_models() == ()
        assert (await admin.post(f"/replicas/{name}/score", json={"score": 1.5})).json()["forced_score"] == 1.5
        assert (await admin.post(f"/replicas/{name}/score", json={"score": None})).json()["forced_score"] is None
        assert (await admin.post("/policy", json={"policy": "round_robin"})).json() == {"policy": "round_robin"}
        assert gateway.scheduler.policy_name == "round_robin"
        told = [line for line in gateway.lines if "admin_change" in line]
        assert len(told) == 7


async def test_explain_prices_a_request_without_charging_it():
    async with FakeEngine() as one, FakeEngine() as two, running(one, two) as gateway, admin_of(gateway) as admin:
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        gateway.scheduler.drain(ReplicaId(f"127.0.0.1:{two.port}"))
        body = {"model": "m", "prompt": "x" * 4000, "max_tokens": 10}
        data = (await admin.post("/explain", json=body)).json()
        assert data["prompt_tokens"] == 1000
        assert data["chosen"] == f"127.0.0.1:{one.port}"
        out = {row["replica"]: row["out"] for row in data["candidates"]}
        assert out[f"127.0.0.1:{two.port}"] == "draining"
        assert all(state.inflight == 0 for state in gateway.scheduler.states().values())
        long = (await admin.post("/explain", json={"model": "m", "prompt_tokens": 5000})).json()
        assert long["chosen"] == f"127.0.0.1:{one.port}", "what fits nowhere by estimate gets the engine's own answer"


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_explain_names_what_the_same_body_then_gets(policy: str):
    """Chat and text, with the prefix that a conversation left behind."""
    async with (
        FakeEngine() as one,
        FakeEngine() as two,
        running(one, two) as gateway,
        admin_of(gateway) as admin,
        client_of(gateway) as client,
    ):
        for engine in (one, two):
            engine.answers["/v1/chat/completions"] = (200, b'{"choices":[]}')
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        gateway.scheduler.set_policy(policy)
        talk = [{"role": "user", "content": "tell me of a long road " * 200}]
        explained = {}
        for turn in range(6):
            body = {"model": "m", "messages": [*talk, {"role": "user", "content": str(turn)}], "user": "u"}
            explained = (await admin.post("/explain", json=body)).json()
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert explained["chosen"] == answer.headers["x-exaserve-replica"]
        cached = {row["replica"]: row["terms"]["cached_tokens"] for row in explained["candidates"]}
        assert max(cached.values()) > 500


async def test_with_all_replicas_drained_a_request_is_refused_at_once():
    async with FakeEngine() as one, running(one) as gateway, admin_of(gateway) as admin, client_of(gateway) as client:
        await until(gateway.scheduler.ready_models)
        await admin.post(f"/replicas/127.0.0.1:{one.port}/drain")
        answer = await asyncio.wait_for(client.post("/v1/completions", json={"model": "m", "prompt": "x"}), 5.0)
        assert answer.status_code == 503
        assert "draining" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("POST", "/explain", b'{"model":"m","path":"/v1/load_lora_adapter"}', 400, "route_not_found", "path"),
        ("POST", "/explain", b'{"model":""}', 400, "invalid_body", "model"),
        ("GET", "/nothing", None, 404, "route_not_found", None),
        ("GET", "/replicas/none", None, 404, "replica_not_found", "replica"),
        ("POST", "/replicas/none/drain", None, 404, "replica_not_found", "replica"),
        ("DELETE", "/replicas", None, 405, "method_not_allowed", None),
        ("POST", "/policy", b'{"policy":"none"}', 400, "unknown_policy", "policy"),
        ("POST", "/policy", b'{"policy":3}', 400, "invalid_body", "policy"),
        ("POST", "/policy", b'{"polcy":"entropy"}', 400, "invalid_body", "polcy"),
        ("POST", "/policy", b"{}", 400, "invalid_body", "policy"),
        ("POST", "/policy", b"[]", 400, "invalid_body", None),
        ("POST", "/policy", b"{", 400, "invalid_body", None),
        ("POST", "/policy", b"", 400, "invalid_body", None),
        ("POST", "/policy", b'{"policy":"\xff"}', 400, "invalid_body", None),
        ("POST", "/explain", b'{"model":"m","prompt_tokens":"x"}', 400, "invalid_body", "prompt_tokens"),
        ("POST", "/explain", b"x" * 1_100_000, 413, "body_too_large", None),
        ("POST", "/replicas/{r}/weight", b'{"weight":-1}', 400, "invalid_value", "weight"),
        ("POST", "/replicas/{r}/weight", b'{"weight":"1"}', 400, "invalid_body", "weight"),
        ("POST", "/replicas/{r}/score", b'{"score":-1}', 400, "invalid_value", "score"),
        ("POST", "/replicas/{r}/score", b'{"score":"big"}', 400, "invalid_body", "score"),
    ],
)
async def test_errors_name_the_field(method, path, body, status, code, param):
    async with FakeEngine() as engine, running(engine) as gateway, admin_of(gateway) as admin:
        answer = await admin.request(method, path.replace("{r}", f"127.0.0.1:{engine.port}"), content=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["message"].endswith(".")


async def test_the_rest_of_what_can_be_seen():
    async with FakeEngine() as engine, running(engine) as gateway, admin_of(gateway) as admin:
        assert (await admin.get("/queue")).json()["queued"] == 0
        assert (await admin.get("/config")).json()["config"]["scheduling"]["strategy"] == "entropy"
        assert (await admin.get("/health")).json() == {"status": "ok"}
        text = (await admin.get("/metrics")).text
        assert "exaserve_replica_state" in text
        msgspec.json.decode((await admin.get("/replicas")).content)


async def test_a_token_is_asked_for_on_every_path():
    async with FakeEngine() as engine, running(engine, token="s" * 20) as gateway:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s" * 20}):
            async with admin_of(gateway, **headers) as admin:
                for path in ("/replicas", "/metrics", "/nothing"):
                    assert (await admin.get(path)).status_code == 401
        async with admin_of(gateway, authorization="Bearer " + "s" * 20) as admin:
            assert (await admin.get("/replicas")).status_code == 200


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example:8900"}])
async def test_without_a_token_web_pages_are_refused(headers):
    async with FakeEngine() as engine, running(engine) as gateway, admin_of(gateway, **headers) as admin:
        answer = await admin.post("/policy", json={"policy": "random"})
        assert answer.status_code == 403
        assert gateway.scheduler.policy_name == "entropy"


async def test_beyond_loopback_a_token_is_needed_and_nothing_is_left_open():
    async with FakeEngine() as engine:
        with pytest.raises(ConfigError, match="needs a token"):
            async with running(engine, admin_host="0.0.0.0"):
                pass


def test_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.3.0.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "example.org"))
