"""What a server costs a request before its engine sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from exaserve.emulator.server import Emulator
from exaserve.perfmodel import EngineProfile

Start = Callable[..., Awaitable[Emulator]]
PROFILE = EngineProfile(1e5, 0.001, 0.0, 0.0, 40_000, 1.0, max_model_len=2048, first_s=3600.0)


async def test_the_engine_sees_a_request_only_after_the_floor(start: Start) -> None:
    replica = (await start(profile=PROFILE)).replicas[0]
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
    async with httpx.AsyncClient(timeout=60.0) as client:
        asked = asyncio.ensure_future(client.post(f"{replica.url}/v1/completions", json=body))
        while not replica.answers:
            await asyncio.sleep(0.001)
        assert not replica.engine.waiting
        assert replica.engine.running_count == 0
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    while replica.answers:
        await asyncio.sleep(0.001)
    assert replica.engine.steps_total == 0, "a client that left meanwhile costs the engine nothing"


async def test_the_floor_runs_at_the_emulators_speed(start: Start) -> None:
    replica = (await start(profile=PROFILE, speed=1e6)).replicas[0]
    async with httpx.AsyncClient(timeout=60.0) as client:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
        assert (await client.post(f"{replica.url}/v1/completions", json=body)).status_code == 200
