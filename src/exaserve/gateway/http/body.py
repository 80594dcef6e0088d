"""The fields of a request's body that matter to the gateway, of every dialect.

In a file of its own because msgspec makes the class what it is at run time: this module is never compiled.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ABSENT", "Body", "decode"]

ABSENT = msgspec.Raw(b"")
"""What a field of raw JSON holds where the body has none."""


class Body(msgspec.Struct, gc=False):
    """The fields that matter, of every dialect. ``Any`` and ``Raw``: wrong types are the engine's to complain about."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    conversation: Any = None
    previous_response_id: Any = None
    metadata: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    query: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    text_1: msgspec.Raw = ABSENT
    text_2: msgspec.Raw = ABSENT


decode = msgspec.json.Decoder(Body).decode
"""The body's bytes as a :class:`Body`; raises what msgspec raises."""
