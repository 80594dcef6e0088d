"""Tokens are four bytes; answers are exact, repeatable and safe inside JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from exaserve.emulator import text


@given(st.text())
def test_tokens_come_back_as_text(words: str) -> None:
    data = words.encode("utf-8", "surrogatepass")
    tokens = text.tokenize(data)
    assert len(tokens) == text.count(words)
    assert text.detokenize(tokens) == data.replace(b"\0", b"")


@given(st.integers(0, 2**32), st.integers(1, 20_000))
def test_an_answer_has_its_tokens_and_needs_no_escape(seed: int, tokens: int) -> None:
    answer = text.output(seed, tokens)
    assert len(answer) == 4 * tokens
    assert json.dumps(answer.decode()) == f'"{answer.decode()}"'
    assert text.output(seed, tokens + 5).startswith(answer)


def test_natural_lengths_have_the_mean_asked_for() -> None:
    lengths = [text.natural_length(seed * 7919, 200.0) for seed in range(4000)]
    assert 190 < sum(lengths) / len(lengths) < 210
    assert min(lengths) >= 1
    assert len(set(lengths)) > 200


@given(st.binary(max_size=600), st.binary(max_size=600))
def test_chains_agree_up_to_the_first_block_that_differs(one: bytes, other: bytes) -> None:
    a, b = text.chain(one, 4), text.chain(other, 4)
    assert len(a) == len(one) // 16
    same = 0
    while same < min(len(a), len(b)) and one[: 16 * (same + 1)] == other[: 16 * (same + 1)]:
        same += 1
    assert a[:same] == b[:same]
    assert all(x != y for x, y in zip(a[same:], b[same:], strict=False))


def test_segments_begin_at_token_boundaries() -> None:
    prompt = text.Prompt()
    prompt.header("user")
    prompt.text("abcde")
    prompt.image("http://x/y.png")
    data = prompt.data()
    assert len(data) % 4 == 0
    assert len(data) // 4 == text.count("<|user|>\n") + 2 + text.IMAGE_TOKENS
    assert len(text.Prompt().data()) == 4
