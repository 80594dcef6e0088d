# compiled
"""What the scheduler must know of a request, found in one pass over its body. No I/O, and the body is never changed.

JSON bodies are decoded into a struct that names a dozen fields; everything else is skipped without building objects.
The text whose length and prefix count stays raw JSON: a conversation's next turn begins with the same bytes, and the
ratio of bytes to tokens is learned per model anyway.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from exaserve.domain.errors import ClientError, InvalidBody, ResponseNotFound, UnsupportedEncoding
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.gateway.guard.grants import Grant
from exaserve.gateway.http.body import ABSENT, BOM, Body, Stated, decode, decode_guarded, without_stated
from exaserve.gateway.http.kept import KeptResponses
from exaserve.gateway.http.message_head import header
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import Kind, Route
from exaserve.scheduling import Scheduler, block_hashes
from exaserve.scheduling.prefix import BLOCK_ENDS

__all__ = ["inspect"]

_INLINE_MEDIA = re.compile(rb'(?:data:[\w.+/-]{1,80};base64,|"data"\s*:\s*")[A-Za-z0-9+/=_\\-]{256,}')
_MEDIA_HINT = re.compile(rb"data")
_MEDIA_BYTES_MIN = 16_384
_PREFIX_BYTES_MAX = BLOCK_ENDS[-1]
_MEDIA_STAND_IN = b"." * 4096
"""One image or audio clip counts like this much text: about 1,000 tokens, whatever its size in base64."""
_TOKEN_IDS = re.compile(rb"[\s\[]*\d")
_MODEL_CHARS_MAX = 512
_SESSION_CHARS_MAX = 256
_PARTS_MAX = 64
_COUNT_MAX = 128


def inspect(
    request: Request,
    route: Route,
    scheduler: Scheduler,
    kept: KeptResponses | None = None,
    grant: Grant | None = None,
) -> RequestFacts:
    """Facts of a request whose body names its model, or whose path or body names a response in ``kept``.

    Where it comes with a ``grant``, what only trusted peers may say is taken out of its body.

    Raises:
        InvalidBody: no usable model name in it; the message says what is wrong.
        ResponseNotFound: the response is not known to be of the grant's tenant.
    """
    if request.deadline and not request.deadline.isdigit():
        raise ClientError(
            "x-exaserve-deadline-ms must be a whole number of milliseconds.", param="x-exaserve-deadline-ms"
        )
    data = request.body
    if route.kind is Kind.RESOURCE:
        place = _place(route.resource, kept, grant)
        keeper, pool = (None, "") if place is None else place[:2]
        return RequestFacts(model=pool, session=_header_session(request), kept_by=keeper)
    if data[:1] != b"{":
        kind = header(request.head, b"content-type")
        if kind[:19].lower() == b"multipart/form-data":
            return _multipart(request, kind, route, scheduler)
    body = _parse(request, grant)
    model: Any = body.model
    if type(model) is not str or not model or len(model) > _MODEL_CHARS_MAX:
        model = _only_model(model, scheduler)
    text, size, token_ids = _prompt_text(body, len(data))
    if token_ids:
        prompt_tokens, prompt_bytes = token_ids, 0
    else:
        prompt_tokens, prompt_bytes = int(size / scheduler.bytes_per_token(model)), size
    total = output = 0
    if route.generates:
        limit = _first_int(body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
        output = scheduler.expected_output(model, limit)
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
        block_hashes(text) if grant is None else block_hashes(text, grant.seed),
        prompt_bytes,
        _priority(request.priority) if request.priority else 0,
        "",
        route.name,
        _keeper(body, kept, grant) if kept is not None and body.previous_response_id is not None else None,
    )


def _parse(request: Request, grant: Grant | None) -> Body:
    data = request.body
    try:
        return decode(data) if grant is None else decode_guarded(data)
    except Stated:
        assert grant is not None
        request.body = without_stated(data, grant.may_say)
        return _parse(request, None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        coding = header(request.head, b"content-encoding")
        if coding and coding.lower() != b"identity":
            name = coding.decode("latin-1")[:40]
            raise UnsupportedEncoding(f"Request bodies in {name!r} are not read here; send it unencoded.") from None
        body = _parse_leniently(data, error)
        if grant is not None:  # so that no reader finds more in it than this one has
            request.body = without_stated(data, grant.may_say)
        return body


def _parse_leniently(data: bytes, error: Exception) -> Body:
    """As engines read: Python's json takes NaN, lone surrogates and a byte order mark. Some 10 ms for each MiB."""
    try:
        value = json.loads(data.removeprefix(BOM))
    except RecursionError:
        raise InvalidBody("The request body is nested too deeply.") from None
    except ValueError:
        if not data:
            raise InvalidBody("The request has no body; send a JSON object that names a model.") from None
        raise InvalidBody(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidBody("The request body must be a JSON object.")
    fields = {name: value[name] for name in Body.__struct_fields__ if name in value}
    for name, item in fields.items():
        if Body.__annotations__[name] == "msgspec.Raw":
            fields[name] = msgspec.Raw(json.dumps(item, separators=(",", ":")).encode())
    return Body(**fields)


def _only_model(model: object, scheduler: Scheduler) -> str:
    """What a body without a model means where only one is served, as engines take it."""
    served = scheduler.models()
    if model is None and len(served) == 1:
        return served[0]
    raise InvalidBody(_model_trouble(model), param="model")


def _model_trouble(model: object) -> str:
    if model is None:
        return "The field 'model' is missing, and not just one model is served; GET /v1/models lists them."
    if isinstance(model, str):
        return f"The field 'model' must have 1 to {_MODEL_CHARS_MAX} characters."
    return "The field 'model' must be a string."


def _prompt_text(body: Body, body_bytes: int) -> tuple[bytes, int, int]:
    """Prompt text in the order in which templates render it: its beginning, its size, its token ids if it is ids."""
    messages = body.messages
    if messages is not ABSENT:
        if body_bytes <= _MEDIA_BYTES_MIN and body.system is ABSENT and body.tools is ABSENT:
            text = bytes(messages)  # the usual request: one small copy
            return text, len(text), 0
        view = memoryview(messages)
        size = len(view)
        if size > _MEDIA_BYTES_MIN and _MEDIA_HINT.search(view) is not None:
            text = _INLINE_MEDIA.sub(_MEDIA_STAND_IN, view)
            size = len(text)
        else:  # only its beginning is looked at, and a copy of 50 MiB would take a tenth of a second
            text = bytes(view[:_PREFIX_BYTES_MAX])
        if body.system is ABSENT and body.tools is ABSENT:
            return text, size, 0
        head = b"".join(bytes(part) for part in (body.system, body.tools) if part is not ABSENT)
        return head + text, len(head) + size, 0
    parts = (body.instructions, body.tools, body.prompt, body.input, body.query, body.documents)
    text = b"".join(bytes(part) for part in (*parts, body.text_1, body.text_2) if part is not ABSENT)
    if _TOKEN_IDS.match(text) is not None:
        return text, len(text), text.count(b",") + 1
    if len(text) > _MEDIA_BYTES_MIN and b"data" in text:
        text = _INLINE_MEDIA.sub(_MEDIA_STAND_IN, text)
    return text, len(text), 0


def _keeper(body: Body, kept: KeptResponses, grant: Grant | None) -> ReplicaId | None:
    place = _place(body.previous_response_id, kept, grant)
    return place[0] if place is not None else None


def _place(response: object, kept: KeptResponses | None, grant: Grant | None) -> tuple[ReplicaId, str, str] | None:
    """Where it is. With a grant, one that is not known to be of its tenant is not there."""
    place = kept.find(response) if kept is not None else None
    if grant is not None and (place is None or place[2] != grant.tenant):
        raise ResponseNotFound("There is no such response here.", param="response_id")
    return place


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


def _multipart(request: Request, content_type: bytes, route: Route, scheduler: Scheduler) -> RequestFacts:
    """Facts of a form upload (audio): its fields ``model`` and ``stream``, wherever they stand among the parts."""
    found = re.search(rb'(?i);\s*boundary\s*=\s*(?:"([^"]{1,70})"|([^\s;]{1,70}))', content_type)
    if found is None:
        raise InvalidBody("A multipart body needs a boundary in its Content-Type.")
    fields = _form_fields(request.body, found[1] or found[2])
    if fields is None:
        raise InvalidBody("The form has no parts: the boundary in its Content-Type is not in the body.")
    model = fields.get("model")
    if not model or len(model) > _MODEL_CHARS_MAX:
        model = _only_model(model or None, scheduler)
    return RequestFacts(
        model=model,
        prompt_tokens=len(request.body) // 1024,  # audio: compressed seconds, not text; any steady measure will do
        total_tokens_max=0,
        stream=fields.get("stream", "").lower() == "true",
        session=_header_session(request),
        priority=_priority(request.priority),
        route=route.name,
    )


def _form_fields(body: bytes, boundary: bytes) -> dict[str, str] | None:
    """Short text fields among the first 64 parts; None where there is no part. A preamble before them is skipped.

    ``bytes.find`` skips file contents at memory speed.
    """
    fields: dict[str, str] = {}
    mark = b"--" + boundary
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if at == 1:
        return None
    for _ in range(_PARTS_MAX):
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
