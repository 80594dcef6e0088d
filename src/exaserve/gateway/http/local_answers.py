# compiled
"""Bytes that the gateway says itself: answers, errors in the client's dialect, CORS, broken streams' ends. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from exaserve.domain.errors import ExaServeError, MethodNotAllowed
from exaserve.domain.replica import ModelCard
from exaserve.gateway.http.message_head import header
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import Dialect

__all__ = [
    "CONTINUE",
    "Cors",
    "answer",
    "chunk",
    "error_answer",
    "error_event",
    "json_answer",
    "models_body",
    "preflight",
    "status_line",
    "why_lost",
]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON = b"application/json"
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Cors:
    """Which web pages may read answers. ``*`` in ``origins`` lets all."""

    __slots__ = ("_any", "_origins")

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = b"*" in self._origins

    def lines(self, origin: bytes) -> bytes:
        """Header lines for an answer to ``origin`` (b"" where the request had none)."""
        if self._any:
            allowed = b"*"
        elif origin in self._origins:
            allowed = origin + b"\r\nVary: Origin"
        else:
            return b""
        return (
            b"Access-Control-Allow-Origin: " + allowed + b"\r\n"
            b"Access-Control-Expose-Headers: x-request-id, x-exaserve-replica, Retry-After, retry-after-ms, "
            b"x-should-retry, "
            b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
            b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens\r\n"
        )


def answer(
    request: Request,
    status: int,
    body: bytes,
    *,
    content_type: bytes = _JSON,
    extra: bytes = b"",
    keep_alive: bool = True,
    cors: Cors | None = None,
) -> bytes:
    """A whole answer. ``extra`` holds complete header lines; a HEAD request gets the head alone."""
    parts = [status_line(status)]
    if status != 204:
        parts.append(b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body)))
    if extra:
        parts.append(extra)
    if cors is not None and request.origin:
        parts.append(cors.lines(request.origin))
    if not keep_alive:
        parts.append(b"Connection: close\r\n")
    parts.append(b"\r\n")
    if request.method != b"HEAD":
        parts.append(body)
    return b"".join(parts)


def json_answer(request: Request, status: int, value: object, *, keep_alive: bool, cors: Cors | None) -> bytes:
    return answer(request, status, json.dumps(value).encode(), keep_alive=keep_alive, cors=cors)


def _error_value(error: ExaServeError, dialect: Dialect) -> dict[str, Any]:
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    param = None if isinstance(error, MethodNotAllowed) else error.param
    return {"error": {"message": error.message, "type": error.type, "param": param, "code": error.code}}


def error_answer(
    request: Request,
    error: ExaServeError,
    dialect: Dialect,
    *,
    keep_alive: bool,
    cors: Cors | None,
    extra: bytes = b"",
) -> bytes:
    """``error`` in the dialect's form, with ``Retry-After``, ``Allow`` and ``WWW-Authenticate`` where they belong."""
    if error.retry_after_s is not None:
        extra += b"Retry-After: %d\r\n" % error.retry_after_s
        if error.retry_after_ms:
            extra += b"retry-after-ms: %d\r\n" % error.retry_after_ms
    if error.should_retry is not None:
        extra += b"x-should-retry: true\r\n" if error.should_retry else b"x-should-retry: false\r\n"
    if error.status == 401:
        extra += b"WWW-Authenticate: Bearer\r\n"
    elif isinstance(error, MethodNotAllowed) and error.param:
        extra += b"Allow: " + error.param.encode() + b"\r\n"
    # json escapes everything beyond ASCII, lone surrogates too, so what a client sent can be quoted back.
    body = json.dumps(_error_value(error, dialect)).encode()
    return answer(request, error.status, body, extra=extra, keep_alive=keep_alive, cors=cors)


def error_event(error: ExaServeError, dialect: Dialect) -> bytes:
    """The one server-sent event that tells of a stream that broke. No ``[DONE]`` follows: that would call it whole."""
    value = _error_value(error, dialect)
    if dialect is Dialect.OPENAI:
        return b"data: " + json.dumps(value).encode() + b"\n\n"
    if dialect is Dialect.RESPONSES:
        # the event's own fields, and the object in which OpenAI's client looks for errors of any stream
        value = {"type": "error", "code": error.code, "message": error.message, "param": None} | value
    return b"event: error\ndata: " + json.dumps(value).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """``data`` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def preflight(request: Request, cors: Cors, *, keep_alive: bool) -> bytes:
    """Answer to OPTIONS, whether a browser's preflight or a plain question."""
    wanted = header(request.head, b"access-control-request-headers") or b"*"
    extra = b"Allow: " + _METHODS + b"\r\n"
    if request.origin:
        extra += (
            b"Access-Control-Allow-Methods: " + _METHODS + b"\r\nAccess-Control-Allow-Headers: " + wanted + b"\r\n"
            b"Access-Control-Max-Age: 86400\r\n"
        )
    return answer(request, 204, b"", extra=extra, keep_alive=keep_alive, cors=cors)


def models_body(models: Sequence[str], cards: Mapping[str, ModelCard]) -> dict[str, Any]:
    """OpenAI's list form, with what engines say of their models beside: ``max_model_len``, ``root``, ``parent``."""
    data = []
    for name in models:
        shown: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "exaserve"}
        card = cards.get(name)
        if card is not None:
            known = {"max_model_len": card.max_model_len, "root": card.root, "parent": card.parent}
            shown |= {key: value for key, value in known.items() if value is not None}
        data.append(shown)
    return {"object": "list", "data": data}


def why_lost(exc: Exception | None) -> str:
    """Why a connection was lost, in words for a client: without the system's number."""
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror.lower()
    return str(exc) if exc is not None else "end of stream"
