"""Through the whole gateway: one key's flood fills the queue only for itself."""

from __future__ import annotations

import asyncio

from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import client_of, running, until

from exaserve.scheduling import AdmissionConfig, SchedulerConfig

ASK = {"model": "m", "prompt": "x"}


async def test_another_key_gets_a_place_and_the_floods_newest_is_told_at_once() -> None:
    async with (
        FakeEngine(running=8, waiting=9) as engine,
        running(
            engine, scheduling=SchedulerConfig(queue_depth_max=4), admission=AdmissionConfig(queue_max=4)
        ) as gateway,
        client_of(gateway) as client,
    ):
        await until(lambda: gateway.state(engine).depth >= 4)

        def ask(key: str) -> asyncio.Task[int]:
            async def post() -> int:
                answer = await client.post("/v1/completions", json=ASK, headers={"Authorization": f"Bearer {key}"})
                return answer.status_code

            return asyncio.create_task(post())

        flood = [ask("flood") for _ in range(6)]
        await until(lambda: sum(task.done() for task in flood) == 2)
        assert {task.result() for task in flood if task.done()} == {429}
        other = ask("other")
        await until(lambda: sum(task.done() for task in flood) == 3)
        assert not other.done()
        assert {task.result() for task in flood if task.done()} == {429}
        for task in (*flood, other):
            task.cancel()
        await asyncio.gather(*flood, other, return_exceptions=True)
        await until(lambda: gateway.data_plane.inflight() == 0)
