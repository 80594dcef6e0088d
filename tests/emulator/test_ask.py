"""Whatever a client sends is a job or a bad request, and every planned answer fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.emulator import ask, text

LIMITS = ask.ModelLimits(names=("tiny",), max_model_len=256, block_size=16, seed=0, output_tokens_mean=40.0)
READERS = (ask.read_chat, ask.read_completion, ask.read_responses, ask.read_messages)
KEYS = (
    "model", "messages", "prompt", "input", "system", "instructions", "max_tokens", "max_completion_tokens", "n",
    "max_output_tokens", "min_tokens", "stop", "stop_sequences", "stream", "stream_options", "tools", "tool_choice",
    "temperature", "top_p", "seed", "echo", "ignore_eos", "logprobs", "include_usage",
    "role", "content", "type", "text", "function", "name", "parameters", "properties", "required", "enum",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 400),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["tiny", "user", "assistant", "auto", "required", "any", "function", "object", "array", "text", ""]
    ),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)),
    max_leaves=15,
)


def check(error: ask.BadRequest) -> None:
    """A refusal that can be written as an answer."""
    assert 400 <= error.status < 500
    json.dumps(error.message)


@given(raw=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=10), which=st.sampled_from(READERS))
def test_any_object_is_a_job_or_a_bad_request(
    raw: dict[str, Any], which: Callable[[dict[str, Any], ask.ModelLimits], ask.GenerationJob]
) -> None:
    raw.setdefault("messages", [{"role": "user", "content": "x"}])
    raw.setdefault("prompt", "x")
    raw.setdefault("input", "x")
    try:
        job = which(raw, LIMITS)
        pieces = [(prompt, ask.plan(job, prompt, i, LIMITS)) for prompt in job.prompts for i in range(job.n)]
    except ask.BadRequest as error:
        check(error)
        return
    for prompt, piece in pieces:
        assert piece.tokens >= 1
        assert len(prompt) % text.TOKEN_BYTES == 0
        assert len(prompt) // text.TOKEN_BYTES + piece.tokens <= LIMITS.max_model_len
        assert len(piece.text) <= piece.tokens * text.TOKEN_BYTES
        assert not piece.whole or len(piece.text) == piece.tokens * text.TOKEN_BYTES
        if job.max_tokens is not None:
            assert piece.tokens <= job.max_tokens


@given(body=st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_bad_request(body: bytes) -> None:
    try:
        assert isinstance(ask.parse_object(body), dict)
    except ask.BadRequest as error:
        check(error)


def test_deep_json_is_refused_not_fatal() -> None:
    for body in (b'{"a":' * 100_000, b"[" * 100_000, b'{"a":' + b"[" * 100_000):
        with pytest.raises(ask.BadRequest):
            ask.parse_object(body)


@pytest.mark.parametrize("reason", ["a", "é", "日本"])
def test_stop_strings_of_any_alphabet_are_searched(reason: str) -> None:
    job = ask.GenerationJob("tiny", [], stop=[reason], ignore_eos=True, max_tokens=100)
    piece = ask.plan(job, b"abcd", 0, LIMITS)
    assert (piece.stop == reason) == (reason == "a")
