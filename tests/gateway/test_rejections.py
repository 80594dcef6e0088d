"""Through the whole gateway: a replica that rejects what its peers accept."""

from __future__ import annotations

import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import client_of, running, until

from exaserve.scheduling import SchedulerConfig

pytestmark = pytest.mark.may_block
"""The process's own figures are read from files where metrics are shown."""

NO_SECOND_TRY = SchedulerConfig(reject_shun_s=3600.0, reject_shun_max_s=3600.0)
"""A shunned replica's time is never over within a test, however slow the machine is."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("policy", ["entropy", "least_connections"])
async def test_one_without_a_chat_template_gets_no_more_chats(policy: str) -> None:
    async with (
        FakeEngine() as one,
        FakeEngine() as two,
        FakeEngine() as bad,
        running(one, two, bad, scheduling=NO_SECOND_TRY) as gateway,
        client_of(gateway) as client,
    ):
        for engine in (one, two):
            engine.answers["/v1/chat/completions"] = (200, b'{"choices":[]}')
        bad.answers["/v1/chat/completions"] = (400, b'{"error":{"message":"no chat template"}}')
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        gateway.scheduler.set_policy(policy)
        rejected = sent = 0
        while not gateway.scheduler.shunned():  # what the policy makes of the replicas' speeds says when
            sent += 1
            assert sent <= 500
            rejected += (await client.post("/v1/chat/completions", json=CHAT)).status_code == 400
        assert rejected == 3
        statuses = {(await client.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(60)}
        assert statuses == {200}
        shown = gateway.metrics.render().decode()
        assert 'exaserve_replicas_shunned{model="m",route="/v1/chat/completions"} 1' in shown
        before = bad.asked["/v1/completions"]
        for _ in range(30):
            answer = await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
            assert answer.status_code == 200
        assert bad.asked["/v1/completions"] > before, "other requests it still gets"


async def test_what_all_reject_is_passed_on_from_all() -> None:
    async with FakeEngine() as one, FakeEngine() as two, running(one, two) as gateway, client_of(gateway) as client:
        for engine in (one, two):
            engine.answers["/v1/chat/completions"] = (422, b'{"error":{"message":"bad tools"}}')
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        gateway.scheduler.set_policy("round_robin")  # both are asked, however fast each seems to be
        statuses = {(await client.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(40)}
        assert statuses == {422}
        assert gateway.scheduler.shunned() == {}
        assert [engine.asked["/v1/chat/completions"] for engine in (one, two)] == [20, 20]


async def test_a_probe_of_that_kind_finds_the_mended_one_without_a_clients_request() -> None:
    async with (
        FakeEngine() as good,
        FakeEngine() as bad,
        running(good, bad, scheduling=NO_SECOND_TRY) as gateway,
        client_of(gateway) as client,
    ):
        good.answers["/v1/chat/completions"] = (200, b'{"choices":[]}')
        bad.answers["/v1/chat/completions"] = (400, b'{"error":{"message":"no chat template"}}')
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        gateway.scheduler.set_policy("least_connections")
        sent = 0
        while not gateway.scheduler.shunned():
            sent += 1
            assert sent <= 500
            await client.post("/v1/chat/completions", json=CHAT)
        asked = bad.asked["/v1/chat/completions"]
        await until(lambda: bad.asked["/v1/chat/completions"] >= asked + 3)
        assert gateway.scheduler.shunned(), "still rejected"
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert gateway.state(bad).standing.available
        bad.answers["/v1/chat/completions"] = (200, b'{"choices":[]}')
        await until(lambda: not gateway.scheduler.shunned())
        assert any("replica_accepts_again" in line for line in gateway.lines)
        statuses = [(await client.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(10)]
        assert statuses == [200] * 10
