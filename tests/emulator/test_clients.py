"""The official clients, directly against an emulated engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from exaserve.emulator.server import Emulator

Start = Callable[..., Awaitable[Emulator]]

MESSAGES: Any = [{"role": "user", "content": "what is the weather"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


async def test_openai_async(start: Start) -> None:
    emulator = await start()
    async with openai.AsyncOpenAI(base_url=emulator.urls[0] + "/v1", api_key="x", max_retries=0) as client:
        whole: Any = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8)
        stream: Any = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert [m.id async for m in client.models.list()] == ["tiny"]
        completion: Any = await client.completions.create(model="tiny", prompt="once", max_tokens=3, n=2)
        assert len(completion.choices) == 2
        vectors: Any = await client.embeddings.create(model="tiny", input=["one", "two"], dimensions=16)
        assert [len(v.embedding) for v in vectors.data] == [16, 16]
        assert sum(x * x for x in vectors.data[0].embedding) == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 10_000}])


async def test_openai_sync(start: Start) -> None:
    emulator = await start()

    def talk() -> str:
        with openai.OpenAI(base_url=emulator.urls[0] + "/v1", api_key="x", max_retries=0) as client:
            stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert len(await asyncio.to_thread(talk)) == 20


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_openai_tools(start: Start, choice: Any) -> None:
    emulator = await start()
    async with openai.AsyncOpenAI(base_url=emulator.urls[0] + "/v1", api_key="x", max_retries=0) as client:
        whole: Any = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice=choice
        )
        call = whole.choices[0].message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "get_weather",
            {"city": "text", "unit": "C"},
        )
        stream: Any = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice=choice, stream=True
        )
        deltas = [c.choices[0].delta.tool_calls[0] async for c in stream if c.choices[0].delta.tool_calls]
        assert deltas[0].function.name == "get_weather"
        assert "".join(d.function.arguments for d in deltas) == call.function.arguments
        free: Any = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS, max_tokens=4)
        assert free.choices[0].message.content
        # The call and its result come back as history.
        history: Any = [
            *MESSAGES,
            whole.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        again: Any = await client.chat.completions.create(model="tiny", messages=history, tools=TOOLS, max_tokens=4)
        assert again.usage.prompt_tokens > whole.usage.prompt_tokens


async def test_openai_responses(start: Start) -> None:
    emulator = await start()
    async with openai.AsyncOpenAI(base_url=emulator.urls[0] + "/v1", api_key="x", max_retries=0) as client:
        whole: Any = await client.responses.create(
            model="tiny", input="hello", instructions="be kind", max_output_tokens=6
        )
        assert (whole.status, whole.usage.output_tokens) == ("incomplete", 6)
        async with client.responses.stream(model="tiny", input="hello", max_output_tokens=6) as stream:
            kinds = [event.type async for event in stream]
        assert kinds[0] == "response.created"
        assert kinds.count("response.output_text.delta") == 6
        tools: Any = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}]
        called: Any = await client.responses.create(model="tiny", input=MESSAGES, tools=tools, tool_choice="required")
        assert called.output[0].name == "get_weather"


async def test_anthropic(start: Start) -> None:
    emulator = await start()
    async with anthropic.AsyncAnthropic(base_url=emulator.urls[0], api_key="x", max_retries=0) as client:
        whole: Any = await client.messages.create(model="tiny", max_tokens=6, system="be kind", messages=MESSAGES)
        assert (whole.stop_reason, whole.usage.output_tokens, len(whole.content[0].text)) == ("max_tokens", 6, 24)
        async with client.messages.stream(model="tiny", max_tokens=6, system="be kind", messages=MESSAGES) as stream:
            said = "".join([text async for text in stream.text_stream])
            final: Any = await stream.get_final_message()
        assert (said, final.stop_reason) == (whole.content[0].text, "max_tokens")
        assert final.usage.output_tokens == 6
        count: Any = await client.messages.count_tokens(model="tiny", messages=MESSAGES)
        assert count.input_tokens > 0
        tool: Any = {"name": "get_weather", "input_schema": PARAMETERS}
        choices: Any = ({"type": "any"}, {"type": "tool", "name": "get_weather"})
        for choice in choices:
            called: Any = await client.messages.create(
                model="tiny", max_tokens=50, messages=MESSAGES, tools=[tool], tool_choice=choice
            )
            assert called.stop_reason == "tool_use"
            assert called.content[0].input == {"city": "text", "unit": "C"}
            async with client.messages.stream(
                model="tiny", max_tokens=50, messages=MESSAGES, tools=[tool], tool_choice=choice
            ) as stream:
                final = await stream.get_final_message()
                assert final.content[0].input == called.content[0].input
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="other", max_tokens=5, messages=MESSAGES)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(
                model="tiny", max_tokens=5, messages=[{"role": "user", "content": "x" * 10_000}]
            )
