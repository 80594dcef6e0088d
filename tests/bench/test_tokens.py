"""Prompts of exact length for tokenizers of different habits."""

from __future__ import annotations

import random

import pytest

from exaserve.bench.tokens import find_words, measure_lengths
from exaserve.domain.errors import ConfigError
from exaserve.workload import BodyRenderer, PlannedRequest


def whole_words(text: str) -> int:
    return len(text.split())


def bytewise(text: str) -> int:
    """A token per byte, as of a tokenizer that has learnt nothing."""
    return len(text.encode())


def first_word_differs(text: str) -> int:
    """A word is one token after a space, and a token per letter at the beginning."""
    words = text.split(" ")
    return len(words[0]) + len(words) - 1


def learnt_a_little(text: str) -> int:
    """Words with an "e" are one token, others two, with the space before them; the first one always three."""
    words = text.split(" ")
    return 3 + sum(1 if "e" in word else 2 for word in words[1:])


@pytest.mark.parametrize("count", [whole_words, bytewise, first_word_differs, learnt_a_little])
def test_every_prompt_has_its_length(count):
    found = measure_lengths(count, [64, 327, 1000], "/v1/chat/completions", lambda text: count(text) + 7)
    assert (found.overhead_tokens, found.error_tokens) == (7, 0)
    assert "exact" in found.how
    renderer = BodyRenderer("m", words=found.words, overhead_tokens=7)
    rng = random.Random(1)
    for tokens in (40, 41, 42, 43, 327, 4218):
        texts = {renderer.text(PlannedRequest(0, "A", 0.0, tokens, 1, rng.randrange(1 << 60))) for _ in range(20)}
        assert len(texts) == 20
        assert {count(text) + 7 for text in texts} == {tokens}


def test_a_template_that_is_not_known_is_said():
    found = measure_lengths(whole_words, [100], "/v1/chat/completions")
    assert "comes on top" in found.how
    assert measure_lengths(whole_words, [100], "/v1/completions").how == "by /tokenize, exact"


def test_a_tokenizer_without_rule_is_refused():
    rng = random.Random(1)
    with pytest.raises(ConfigError, match="too few words"):
        find_words(lambda text: rng.randrange(10_000))
