"""The fields of a request's body that matter to the gateway, of every dialect.

In a file of its own because msgspec makes the class what it is at run time: this module is never compiled.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec

__all__ = ["ABSENT", "Body", "GuardedBody", "decode", "decode_guarded", "without_stated"]

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


class GuardedBody(Body, gc=False):
    """With the fields that only the gateway or a trusted peer may say to an engine, in JSON as they came."""

    priority: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT
    extra_key: msgspec.Raw = ABSENT
    kv_transfer_params: msgspec.Raw = ABSENT
    ec_transfer_params: msgspec.Raw = ABSENT
    bootstrap_host: msgspec.Raw = ABSENT
    bootstrap_port: msgspec.Raw = ABSENT
    bootstrap_room: msgspec.Raw = ABSENT
    data_parallel_rank: msgspec.Raw = ABSENT
    routed_dp_rank: msgspec.Raw = ABSENT
    disagg_prefill_dp_rank: msgspec.Raw = ABSENT
    disaggregated_params: msgspec.Raw = ABSENT

    def stated(self) -> bool:
        """Whether any of them is there. A body that names no model is looked at closely as well."""
        return not (
            self.priority is ABSENT
            and self.cache_salt is ABSENT
            and self.extra_key is ABSENT
            and self.kv_transfer_params is ABSENT
            and self.ec_transfer_params is ABSENT
            and self.bootstrap_host is ABSENT
            and self.bootstrap_port is ABSENT
            and self.bootstrap_room is ABSENT
            and self.data_parallel_rank is ABSENT
            and self.routed_dp_rank is ABSENT
            and self.disagg_prefill_dp_rank is ABSENT
            and self.disaggregated_params is ABSENT
        )


_SAYING = {"priority": "priority", "cache_salt": "cache_salt", "extra_key": "cache_salt"}
_STATED = frozenset(GuardedBody.__struct_fields__) - frozenset(Body.__struct_fields__)
decode_guarded = msgspec.json.Decoder(GuardedBody).decode
_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def without_stated(data: bytes, may_say: Collection[str]) -> bytes:
    """The JSON object ``data`` without what the client may not say, however it is spelt; each name is there once."""
    values: dict[str, Any]
    try:
        values = dict(_decode_values(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        values = json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    kept = {
        name: value
        for name, value in values.items()
        if name not in _STATED or _SAYING.get(name, "destination") in may_say
    }
    try:
        return msgspec.json.encode(kept) if all(type(each) is msgspec.Raw for each in kept.values()) else _plain(kept)
    except UnicodeEncodeError:
        return _plain(kept)


def _plain(values: dict[str, Any]) -> bytes:
    return json.dumps({n: json.loads(bytes(v)) if type(v) is msgspec.Raw else v for n, v in values.items()}).encode()
