"""What engines do to their place in a whole gateway: restarts with another model, figures that stop."""

from __future__ import annotations

import httpx
from tests.engines.shapes import vllm_now
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import ONE_PROBE, running, until

from exaserve.domain.replica import ReplicaId

OTHER = b'{"object":"list","data":[{"id":"other","object":"model","max_model_len":8192,"root":"/models/other"}]}'


async def test_a_restarted_engine_with_another_model_gets_no_request_for_the_old_one():
    """It is taken out as soon as its counters fall, and takes traffic again for what it lists then."""
    async with (
        FakeEngine() as stays,
        FakeEngine() as restarts,
        running(stays, restarts, health=ONE_PROBE) as gateway,
        httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30) as client,
    ):
        await until(lambda: gateway.state(stays).eligible and gateway.state(restarts).eligible)
        replica = ReplicaId(f"127.0.0.1:{restarts.port}")
        await until(lambda: gateway.state(restarts).seen.at > gateway.fleet.view(replica).since)
        restarts.answers["/v1/models"] = (200, OTHER)
        restarts.answers["/metrics"] = (200, vllm_now().replace("} 800.0", "} 0.0").encode())
        await until(lambda: gateway.scheduler.ready_models() == ("m", "other"))
        asked = restarts.asked["/v1/completions"]
        for _ in range(12):
            answered = await client.post("/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 1})
            assert answered.headers["x-exaserve-replica"] == f"127.0.0.1:{stays.port}"
        assert restarts.asked["/v1/completions"] == asked
        listed = {each["id"]: each for each in (await client.get("/v1/models")).json()["data"]}
        assert (listed["other"]["max_model_len"], listed["other"]["root"]) == (8192, "/models/other")
        assert listed["m"]["max_model_len"] == 4096
        assert "parent" not in listed["m"], "what the engine does not say is left out"
        assert (await client.get("/v1/models/other")).json() == listed["other"]
        assert any("replica_restarted" in line and "counters fell" in line for line in gateway.lines)
        gateway.fleet.validate()


async def test_another_engine_at_the_address_is_recognised_after_a_restart():
    async with FakeEngine() as engine, running(engine) as gateway:
        replica = ReplicaId(f"127.0.0.1:{engine.port}")
        await until(lambda: gateway.telemetry.view(replica).engine == "vllm")
        await engine.stop()
        await until(lambda: "refused" in gateway.telemetry.view(replica).error)
        engine.answers["/metrics"] = (200, b"# TYPE tgi_queue_size gauge\ntgi_queue_size 1\n")
        await engine.start()
        await until(lambda: gateway.telemetry.view(replica).engine == "tgi")
        await until(lambda: gateway.state(engine).eligible)
        assert any("replica_restarted" in line for line in gateway.lines)


async def test_a_replica_whose_figures_stop_gets_nothing_new_and_is_given_back_when_it_answers():
    async with FakeEngine() as one, FakeEngine() as two, FakeEngine() as three, running(one, two, three) as gateway:
        engines = (one, two, three)
        await until(lambda: all(gateway.state(engine).seen.fresh for engine in engines))
        await until(lambda: all(gateway.state(engine).eligible for engine in engines))
        one.answers["/metrics"] = one.answers["/v1/completions"] = "hang"
        await until(lambda: any("replica_withheld" in line and "silent" in line for line in gateway.lines))
        assert not gateway.state(one).eligible
        assert "silent" in (gateway.state(one).standing.why_not() or "")
        assert gateway.state(two).eligible
        assert gateway.state(three).eligible
        gateway.fleet.validate()
