"""What is asked of a replica before and while it serves."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from random import Random

import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import until

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.fleet.probes import Probes
from exaserve.health import HealthConfig
from exaserve.observe import null_log
from exaserve.scheduling import Scheduler, SchedulerConfig
from exaserve.serving.fleet import Fleet

R = ReplicaId("r0")
CONFIG = HealthConfig(probe_interval_s=0.1, probe_timeout_s=60.0, probe_limit_s=60.0, probe_fast_s=0.05, open_s=0.05)
"""A probe that hangs does so for as long as a test lasts."""
HASTY = dataclasses.replace(CONFIG, probe_timeout_s=1.0, probe_limit_s=0.9)


class Probed:
    def __init__(
        self,
        *engines: FakeEngine,
        models: tuple[str, ...] = (),
        engine: str = "auto",
        api_key: str = "",
        config: HealthConfig = CONFIG,
    ) -> None:
        self.scheduler = Scheduler(SchedulerConfig(), Random(0))
        self.fleet = Fleet(self.scheduler, config, lambda: None)
        self.changes = 0
        self.probes = Probes(self.fleet, null_log(), self._changed, api_key=api_key)
        for index, one in enumerate(engines):
            spec = ReplicaSpec(ReplicaId(f"r{index}"), one.url, models=models, engine=engine)
            self.fleet.add(spec, time.monotonic())
        self.probes.start()

    def _changed(self) -> None:
        self.changes += 1

    def state(self, replica: ReplicaId = R) -> str:
        return self.fleet.view(replica).state

    async def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, self.fleet.view(R)
            await asyncio.sleep(0.005)


async def test_models_are_asked_for_and_then_a_real_completion():
    async with FakeEngine() as engine:
        probed = Probed(engine)
        await probed.until(lambda: probed.state() == "healthy")
        spec = probed.scheduler.states()[R].spec
        assert (spec.models, spec.max_model_len) == (("m",), 4096)
        assert probed.scheduler.ready_models() == ("m",)
        assert probed.changes == 1
        path, body = engine.bodies[1]
        assert path == "/v1/completions"
        assert json.loads(body) == {"model": "m", "prompt": "ping", "max_tokens": 1, "temperature": 0}
        await probed.until(lambda: engine.asked["/v1/completions"] >= 3)
        assert engine.asked["/v1/models"] == 1, "not with every probe"
        await probed.probes.stop()


async def test_all_replicas_are_probed_at_once():
    engines = [FakeEngine() for _ in range(24)]
    for engine in engines:
        await engine.start()
    engines[3].answers["/v1/completions"] = "hang"
    probed = Probed(*engines)
    await probed.until(lambda: sum(state.standing.available for state in probed.scheduler.states().values()) == 23)
    await probed.until(lambda: engines[3].asked["/v1/completions"])
    assert probed.state(ReplicaId("r3")) == "unknown", "its probe still hangs"
    await probed.probes.stop()
    for engine in engines:
        await engine.stop()


async def test_given_names_are_kept_and_only_the_context_is_learned():
    async with FakeEngine() as engine:
        probed = Probed(engine, models=("alias",))
        await probed.until(lambda: probed.state() == "healthy")
        spec = probed.scheduler.states()[R].spec
        assert (spec.models, spec.max_model_len) == (("alias",), 4096)
        await probed.probes.stop()


async def test_without_a_model_list_given_names_still_work():
    async with FakeEngine() as engine:
        del engine.answers["/v1/models"]
        probed = Probed(engine, models=("m",))
        await probed.until(lambda: probed.state() == "healthy")
        await probed.probes.stop()


@pytest.mark.parametrize(
    "answer", [(500, b"no"), (200, b"not json"), (200, b'{"data":[]}'), (200, b'{"data":3}'), "hang", "close"]
)
async def test_without_names_a_model_list_is_needed(answer):
    async with FakeEngine() as engine:
        engine.answers["/v1/models"] = answer
        probed = Probed(engine, config=HASTY)
        await probed.until(lambda: probed.fleet.view(R).strikes >= 1)
        assert probed.state() == "unknown"
        assert engine.asked["/v1/completions"] == 0
        await probed.probes.stop()


async def test_alive_but_not_generating_is_not_healthy():
    async with FakeEngine() as engine:
        probed = Probed(engine, config=HASTY)
        await probed.until(lambda: probed.state() == "healthy")
        engine.answers["/v1/completions"] = "hang"
        await probed.until(lambda: probed.state() == "ejected")
        engine.answers["/v1/completions"] = (200, b"{}")
        await probed.until(lambda: probed.state() == "ramping")
        await probed.probes.stop()


async def test_embedding_models_are_probed_by_embeddings():
    async with FakeEngine() as engine:
        engine.answers["/v1/completions"] = (400, b'{"error":"does not support completions"}')
        engine.answers["/v1/embeddings"] = (200, b"{}")
        probed = Probed(engine)
        await probed.until(lambda: probed.state() == "healthy")
        asked = engine.asked["/v1/completions"]
        await probed.until(lambda: engine.asked["/v1/embeddings"] >= 3)
        assert engine.asked["/v1/completions"] == asked, "remembers what works"
        await probed.probes.stop()


async def test_what_speaks_no_known_dialect_but_lists_the_model_is_asked_for_its_health():
    async with FakeEngine() as engine:
        engine.answers["/v1/completions"] = (404, b"")
        probed = Probed(engine)
        await probed.until(lambda: probed.state() == "healthy")
        assert engine.asked["/health"] >= 1
        await probed.probes.stop()


async def test_being_alive_is_not_enough_where_the_model_is_not_listed():
    async with FakeEngine() as engine:
        engine.answers["/v1/completions"] = (404, b'{"error":"no such model"}')
        probed = Probed(engine, models=("other",))
        await probed.until(lambda: probed.fleet.view(R).strikes >= 2)
        assert probed.state() == "unknown"
        assert engine.asked["/health"] == 0
        assert "no such model" in probed.fleet.view(R).reason or "not here" in probed.fleet.view(R).reason
        await probed.probes.stop()


async def test_a_removed_replica_gets_no_verdict():
    async with FakeEngine() as engine:
        engine.answers["/v1/completions"] = "hang"
        probed = Probed(engine, config=HASTY)
        await probed.until(lambda: engine.asked["/v1/completions"])
        probed.fleet.remove(R)
        await asyncio.sleep(1.5)
        assert engine.asked["/v1/completions"] == 1
        await probed.probes.stop()


async def test_stopping_ends_probes_under_way_without_a_verdict():
    async with FakeEngine() as engine:
        probed = Probed(engine)
        await probed.until(lambda: probed.state() == "healthy")
        engine.answers["/v1/completions"] = "hang"
        await probed.until(lambda: engine.open)
        await probed.probes.stop()
        assert probed.state() == "healthy"
        await until(lambda: engine.open == 0)


async def test_engines_key_goes_with_every_probe():
    async with FakeEngine() as engine:
        probed = Probed(engine, api_key="sk-secret")
        await probed.until(lambda: probed.state() == "healthy")
        assert engine.heads
        assert all(b"\r\nAuthorization: Bearer sk-secret\r\n" in head for head in engine.heads)
        await probed.probes.stop()


async def test_refused_key_says_what_to_do():
    async with FakeEngine() as engine:
        engine.answers["/v1/models"] = (401, b'{"error":"Unauthorized"}')
        probed = Probed(engine)
        await probed.until(lambda: engine.asked["/v1/models"] >= 2)
        await probed.until(lambda: "--engine-api-key-file" in probed.fleet.view(R).reason)
        assert not any(b"Authorization" in head for head in engine.heads)
        await probed.probes.stop()
