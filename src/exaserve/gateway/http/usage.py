# compiled
"""Token counts from the end of an answer, without parsing the answer. Pure."""

from __future__ import annotations

import re

from exaserve.domain.request import Usage

__all__ = ["TAIL_BYTES", "find_usage"]

TAIL_BYTES = 4096
"""Bytes at the end of an answer that are searched. Engines put ``usage`` last, in an event of its own or at the end."""

_NEAR_BYTES = 512
"""Where it usually is; looking there first is quicker."""
_USUAL = re.compile(
    rb'"usage":\s*\{"prompt_tokens":\s*(\d{1,12}),\s*"total_tokens":\s*\d{1,12},\s*"completion_tokens":\s*(\d{1,12})'
)
"""As vLLM and SGLang write it: one match instead of three."""
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d{1,12})')


def find_usage(tail: bytes) -> Usage | None:
    """The last usage object in ``tail``, of any dialect; None where there is none with a prompt length.

    Inside JSON strings quotes are escaped, so generated text cannot pass for the key.
    """
    at = tail.rfind(b'"usage"', -_NEAR_BYTES)
    if at < 0:
        at = tail.rfind(b'"usage"', -TAIL_BYTES)
    if at < 0:
        return None
    usual = _USUAL.match(tail, at)
    if usual is not None and tail.find(b"cached_tokens", at) < 0:
        return Usage(int(usual[1]), int(usual[2]))
    prompt = _PROMPT.search(tail, at)
    if prompt is None:
        return None
    output = _OUTPUT.search(tail, at)
    cached = _CACHED.search(tail, at)
    return Usage(int(prompt[1]), int(output[1]) if output else 0, int(cached[1]) if cached else 0)
