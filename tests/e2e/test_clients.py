"""The official clients, unchanged, through a real gateway process to emulated engines."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.e2e.harness import MODEL, GatewayProcess, emulator
from tests.programs import program

from exaserve.emulator.process import EmulatorProcess

pytestmark = pytest.mark.xdist_group("e2e-clients")

ASK: Any = [{"role": "user", "content": "Say something."}]
LONG = {"ignore_eos": True}


@pytest.fixture(scope="module")
def engines() -> Iterator[EmulatorProcess]:
    with emulator() as started:
        yield started


@pytest.fixture(scope="module")
def gateway(engines: EmulatorProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess(engines.urls) as process:
        yield process.ready()


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=20) as one:
        yield one


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=7)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7


def test_chat_streamed_with_usage(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert chunks[-1].usage.completion_tokens == 7


def test_completions(client):
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=3).choices[0].text
    parts = list(client.completions.create(model=MODEL, prompt="Once", max_tokens=3, stream=True))
    assert "".join(part.choices[0].text for part in parts if part.choices)


def test_tools_pass_through(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    plain, with_tools = (
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, **more)
        for more in ({}, {"tools": [tool]})
    )
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens, "the engine has read them"


def test_response_headers_name_the_replica_and_keep_the_request_id(client):
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=1, extra_headers={"x-request-id": "mine-7"}
    )
    assert raw.headers["x-request-id"] == "mine-7"
    assert raw.headers["x-exaserve-replica"].startswith("127.0.0.1:")


def test_a_model_nobody_serves_is_404_with_what_is_served(client):
    with pytest.raises(openai.NotFoundError, match=MODEL) as caught:
        client.chat.completions.create(model="none", messages=ASK)
    assert caught.value.code == "model_not_found"


def test_an_engines_own_refusal_passes_through(client):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x " * 300_000}])


def test_async_clients_at_once(gateway):
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:

            async def one(index: int) -> str:
                if index % 2:
                    stream: Any = await client.chat.completions.create(
                        model=MODEL, messages=ASK, max_tokens=5, stream=True
                    )
                    parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
                    return "".join(parts)
                answer = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5)
                return answer.choices[0].message.content or ""

            return await asyncio.gather(*(one(index) for index in range(40)))

    assert all(asyncio.run(ask_all()))


def test_anthropic(gateway):
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(model=MODEL, max_tokens=5, messages=ASK)
        assert message.content
        assert message.usage.output_tokens == 5
        with client.messages.stream(model=MODEL, max_tokens=5, messages=ASK) as stream:
            assert "".join(stream.text_stream)
        with pytest.raises(anthropic.NotFoundError, match="not served"):
            client.messages.create(model="none", max_tokens=5, messages=ASK)


def test_a_stream_that_breaks_raises_in_the_clients(engines, gateway, client):
    # Whole streams first: they show that this model's streams end with a mark.
    assert list(client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2, stream=True))
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as other:
        assert list(other.messages.create(model=MODEL, max_tokens=2, messages=ASK, stream=True))
    engines.fault("all", cut_after=3)
    try:
        with pytest.raises(openai.APIError, match=r"[Rr]eplica"):
            list(client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20, stream=True, extra_body=LONG))
        with (
            anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as other,
            pytest.raises(anthropic.APIError, match=r"[Rr]eplica"),
            other.messages.stream(model=MODEL, max_tokens=20, messages=ASK, extra_body=LONG) as stream,
        ):
            list(stream.text_stream)
    finally:
        engines.fault("all", clear=True)


def test_curl(gateway):
    body = json.dumps({"model": MODEL, "messages": ASK, "max_tokens": 3, "stream": True})
    command = [program("curl"), "-sSN", "--max-time", "20", f"{gateway.url}/v1/chat/completions", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [line for line in done.stdout.split("\n\n") if line]
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith("data: ") for event in events)
    sent = subprocess.run([*command, "-H", "Transfer-Encoding: chunked"], capture_output=True, text=True, check=True)
    assert "data: [DONE]" in sent.stdout


def test_everything_returned_to_zero(gateway):
    for name in ("exaserve_requests_in_flight", "exaserve_streams_open", "exaserve_queue_depth"):
        assert gateway.gauge(name) == 0
    assert gateway.gauge("exaserve_replica_inflight") == 0
    assert gateway.gauge("exaserve_replica_ledger_kv_tokens") == 0
    assert httpx.get(f"{gateway.url}/ready", trust_env=False).status_code == 200


def test_official_clients_know_what_a_refusal_means(engines):
    with GatewayProcess(engines.urls, "--auth", "keys") as process:
        process.ready()
        made = [
            httpx.post(f"{process.admin_url}/keys", json={"tenant": "t", "models": [models]}, trust_env=False)
            for models in ("*", "another")
        ]
        good, other = (answer.json()["secret"] for answer in made)
        openai_at: Any = {"base_url": f"{process.url}/v1", "max_retries": 0, "timeout": 20}
        anthropic_at: Any = {"base_url": process.url, "max_retries": 0, "timeout": 20}

        def chat(key: str) -> Any:
            with openai.OpenAI(api_key=key, **openai_at) as client:
                return client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2)

        def message(**credentials: Any) -> Any:
            with anthropic.Anthropic(**credentials, **anthropic_at) as client:
                return client.messages.create(model=MODEL, messages=ASK, max_tokens=2)

        assert chat(good).usage.completion_tokens == 2
        assert message(api_key=good).usage.output_tokens == 2
        assert message(auth_token=good).usage.output_tokens == 2
        for ask, library in ((chat, openai), (lambda key: message(api_key=key), anthropic)):
            with pytest.raises(library.AuthenticationError, match="not known"):
                ask("sk-exa-wrong")
            with pytest.raises(library.PermissionDeniedError, match=MODEL):
                ask(other)
        assert not any(secret in line for secret in (good, other, "sk-exa-wrong") for line in process.lines)
