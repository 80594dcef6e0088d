# compiled
"""What the scheduler must know of a request, found in one pass over its body. No I/O, and the body is never changed.

JSON bodies are decoded into a struct that names a dozen fields; everything else is skipped without building objects.
The text whose length and prefix count stays raw JSON: a conversation's next turn begins with the same bytes, and the
ratio of bytes to tokens is learned per model anyway.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

import msgspec

from exaserve.domain.errors import InvalidBody
from exaserve.domain.request import RequestFacts
from exaserve.gateway.http.body import ABSENT, Body, decode
from exaserve.gateway.http.message_head import header
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import Kind, Route
from exaserve.scheduling import block_hashes

__all__ = ["Estimator", "inspect"]

_LENIENT_BYTES_MAX = 1 << 20
"""Bodies up to this size that msgspec refuses are read once more as leniently as engines do (NaN, lone surrogates)."""
_INLINE_MEDIA = re.compile(rb'(?:data:[\w.+/-]{1,80};base64,|"data"\s*:\s*")[A-Za-z0-9+/=_\\-]{256,}')
_MEDIA_BYTES_MIN = 16_384
_MEDIA_STAND_IN = b"." * 4096
"""One image or audio clip counts like this much text: about 1,000 tokens, whatever its size in base64."""
_TOKEN_IDS = re.compile(rb"[\s\[]*\d")
_MODEL_CHARS_MAX = 512
_SESSION_CHARS_MAX = 256
_PARTS_MAX = 64
_COUNT_MAX = 128


class Estimator(Protocol):
    """What the scheduler has learned of a model's lengths."""

    def bytes_per_token(self, model: str) -> float: ...

    def expected_output(self, model: str, max_tokens: int | None) -> int: ...


def inspect(request: Request, route: Route, estimator: Estimator) -> RequestFacts:
    """Facts of a request whose body names its model.

    Raises:
        InvalidBody: no usable model name in it; the message says what is wrong.
    """
    if route.kind is Kind.RESOURCE and not request.body:
        return RequestFacts(model="", session=_header_session(request))
    data = request.body
    if data[:1] == b"-":  # no JSON begins so, and every multipart body does
        kind = header(request.head, b"content-type")
        if kind[:19].lower() == b"multipart/form-data":
            return _multipart(request, kind, route)
    body = _parse(data)
    model = body.model
    if type(model) is not str or not model or len(model) > _MODEL_CHARS_MAX:
        if model is None and route.kind is Kind.RESOURCE:
            return RequestFacts(model="", session=_header_session(request))
        raise InvalidBody(_model_trouble(model), param="model")
    text, token_ids = _prompt_text(body)
    size = len(text)
    if token_ids:
        prompt_tokens, prompt_bytes = token_ids, 0
    else:
        prompt_tokens, prompt_bytes = int(size / estimator.bytes_per_token(model)), size
    total = output = 0
    if route.generates:
        limit = _first_int(body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
        output = estimator.expected_output(model, limit)
        total = 0 if limit is None else prompt_tokens + limit
        if body.n is not None and type(body.n) is int and 1 < body.n <= _COUNT_MAX:
            output *= body.n
    # by position: naming the fields would cost a third of a microsecond
    return RequestFacts(
        model,
        prompt_tokens,
        output,
        total,
        body.stream is True,
        _header_session(request) if request.session else _session(body),
        block_hashes(text),
        prompt_bytes,
        _priority(request.priority) if request.priority else 0,
        "",
        route.name
        if route.kind is Kind.JSON
        else "",  # other paths hold ids, and what they name is kept by one replica
    )


def _parse(data: bytes) -> Body:
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise InvalidBody("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _parse_leniently(data, str(error))
    except RecursionError:
        raise InvalidBody("The request body is nested too deeply.") from None


def _parse_leniently(data: bytes, why: str) -> Body:
    """As engines read: Python's json takes NaN, lone surrogates and a byte order mark."""
    if len(data) <= _LENIENT_BYTES_MAX:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            pass
        else:
            if not isinstance(value, dict):
                raise InvalidBody("The request body must be a JSON object.")
            fields = {name: value[name] for name in Body.__struct_fields__ if name in value}
            for name, item in fields.items():
                if Body.__annotations__[name] == "msgspec.Raw":
                    fields[name] = msgspec.Raw(json.dumps(item, separators=(",", ":")).encode())
            return Body(**fields)
    if not data:
        raise InvalidBody("The request has no body; send a JSON object that names a model.")
    raise InvalidBody(f"The request body is not valid JSON: {why}.")


def _model_trouble(model: object) -> str:
    if model is None:
        return "The field 'model' is missing; GET /v1/models lists what is served."
    if isinstance(model, str):
        return f"The field 'model' must have 1 to {_MODEL_CHARS_MAX} characters."
    return "The field 'model' must be a string."


def _prompt_text(body: Body) -> tuple[bytes, int]:
    """Prompt text in the order in which templates render it, and the number of token ids where the prompt is ids."""
    messages = body.messages
    if messages is not ABSENT:
        text = bytes(messages)
        if body.system is ABSENT and body.tools is ABSENT and len(text) <= _MEDIA_BYTES_MIN:
            return text, 0
        head = b"".join(bytes(part) for part in (body.system, body.tools) if part is not ABSENT)
        text = head + text
    else:
        parts = (body.instructions, body.tools, body.prompt, body.input, body.query, body.documents)
        text = b"".join(bytes(part) for part in (*parts, body.text_1, body.text_2) if part is not ABSENT)
        if _TOKEN_IDS.match(text) is not None:
            return text, text.count(b",") + 1
    if len(text) > _MEDIA_BYTES_MIN and b"data" in text:
        text = _INLINE_MEDIA.sub(_MEDIA_STAND_IN, text)
    return text, 0


def _first_int(*values: object) -> int | None:
    for value in values:
        if type(value) is int and value >= 0:
            return value
    return None


def _header_session(request: Request) -> str | None:
    value = request.session
    return value[:_SESSION_CHARS_MAX].decode("latin-1") if value else None


def _session(body: Body) -> str | None:
    """The narrowest thing that stays the same over a conversation's turns; None where only the prefix can tell."""
    for value in (body.prompt_cache_key, body.conversation, body.user, body.safety_identifier):
        if value is not None:
            name = value.get("id") if type(value) is dict else value
            if type(name) is str and name:
                return name[:_SESSION_CHARS_MAX]
    if body.metadata is not ABSENT:
        found = re.search(rb'"user_id"\s*:\s*"([^"\\]{1,256})"', bytes(body.metadata)[:4096])
        if found is not None:
            return found[1].decode("utf-8", "replace")
    return None


def _priority(value: bytes) -> int:
    """``x-priority``, -100 to 100; anything else is 0."""
    if not value:
        return 0
    try:
        return max(-100, min(100, int(value)))
    except ValueError:
        return 0


def _multipart(request: Request, content_type: bytes, route: Route) -> RequestFacts:
    """Facts of a form upload (audio): its fields ``model`` and ``stream``, wherever they stand among the parts."""
    found = re.search(rb'boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))', content_type)
    if found is None:
        raise InvalidBody("A multipart body needs a boundary in its Content-Type.")
    fields = _form_fields(request.body, found[1] or found[2])
    model = fields.get("model")
    if not model or len(model) > _MODEL_CHARS_MAX:
        raise InvalidBody("The form has no usable field 'model'; GET /v1/models lists what is served.", param="model")
    return RequestFacts(
        model=model,
        prompt_tokens=len(request.body) // 1024,  # audio: compressed seconds, not text; any steady measure will do
        total_tokens_max=0,
        stream=fields.get("stream", "").lower() == "true",
        session=_header_session(request),
        priority=_priority(request.priority),
        route=route.name,
    )


def _form_fields(body: bytes, boundary: bytes) -> dict[str, str]:
    """Short text fields among the first 64 parts. ``bytes.find`` skips file contents at memory speed."""
    fields: dict[str, str] = {}
    mark = b"--" + boundary
    at = body.find(mark)
    for _ in range(_PARTS_MAX):
        if at < 0:
            break
        start = at + len(mark)
        head_end = body.find(b"\r\n\r\n", start, start + 4096)
        at = body.find(b"\r\n" + mark, max(start, head_end))
        if head_end < 0 or at < 0:
            break
        name = re.search(
            rb'(?i)content-disposition:[^\r\n]*;\s*name="?(model|stream)"?\s*(?:[;\r\n]|$)', body[start:head_end]
        )
        if name is not None and at - head_end - 4 <= _MODEL_CHARS_MAX:
            fields[name[1].decode()] = body[head_end + 4 : at].decode("utf-8", "replace").strip()
        at += 2
    return fields
