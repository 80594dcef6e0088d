"""The fields of a request's body that matter to the gateway, of every dialect.

In a file of its own because msgspec makes the class what it is at run time: this module is never compiled.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec

__all__ = ["ABSENT", "BOM", "Body", "GuardedBody", "Stated", "decode", "decode_guarded", "without_stated"]

BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which Python's readers of JSON skip."""
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


class Stated(Exception):
    """A body has a field that only the gateway or a trusted peer may say to an engine."""


class _Withheld:
    """The type of such a field: nothing is ever made of it."""


_NOT_THERE = _Withheld()


class GuardedBody(Body, gc=False):
    """With those fields, so that reading one is noticed, whatever its spelling and value. It costs no other body."""

    priority: _Withheld = _NOT_THERE
    cache_salt: _Withheld = _NOT_THERE
    extra_key: _Withheld = _NOT_THERE
    kv_transfer_params: _Withheld = _NOT_THERE
    ec_transfer_params: _Withheld = _NOT_THERE
    bootstrap_host: _Withheld = _NOT_THERE
    bootstrap_port: _Withheld = _NOT_THERE
    bootstrap_room: _Withheld = _NOT_THERE
    data_parallel_rank: _Withheld = _NOT_THERE
    routed_dp_rank: _Withheld = _NOT_THERE
    disagg_prefill_dp_rank: _Withheld = _NOT_THERE
    disaggregated_params: _Withheld = _NOT_THERE


def _noticed(_kind: type, _value: object) -> Any:
    raise Stated


_SAYING = {"priority": "priority", "cache_salt": "cache_salt", "extra_key": "cache_salt"}
_STATED = frozenset(GuardedBody.__struct_fields__) - frozenset(Body.__struct_fields__)
decode_guarded = msgspec.json.Decoder(GuardedBody, dec_hook=_noticed).decode
"""As ``decode``; raises :class:`Stated` where the body has a field that is not everyone's to say."""
_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def without_stated(data: bytes, may_say: Collection[str]) -> bytes:
    """The JSON object ``data`` without what the client may not say, however it is spelt; each name is there once."""
    values: dict[str, Any]
    try:
        values = dict(_decode_values(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        values = json.loads(data.removeprefix(BOM))
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
