"""A local cluster waits for a real answer, in whatever way the engine gives one."""

from __future__ import annotations

import httpx
from tests.gateway.fake_engine import FakeEngine

from exaserve.local.cluster import _completes


async def test_an_engine_for_chat_alone_is_up_when_it_chats():
    async with FakeEngine() as engine, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        engine.answers["/v1/chat/completions"] = engine.answers.pop("/v1/completions")
        assert await _completes(client, engine.url, ("m",)) == ""
        assert await _completes(client, engine.url, ()) == "", "the first model that it lists"


async def test_what_is_wrong_is_said():
    async with FakeEngine() as engine, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        engine.answers["/v1/completions"] = (503, b"loading")
        assert await _completes(client, engine.url, ("m",)) == "status 503: loading"
        del engine.answers["/v1/completions"]
        assert (await _completes(client, engine.url, ("m",))).startswith("status 404")
        assert await _completes(client, engine.url, ("m",), alive_is_enough=True) == ""
        engine.answers["/v1/models"] = (200, b'{"data":[]}')
        assert "lists no model" in await _completes(client, engine.url, ())
        await engine.stop()
        assert "ConnectError" in await _completes(client, engine.url, ("m",))
