# compiled
"""Which request targets exist and what they mean. What is not listed here never reaches a replica.

Engines serve management routes (load an adapter, sleep, update weights, run any method) on their inference port, and
what a target means depends on who reads it: uvicorn drops a fragment and resolves percent escapes, others fold slashes
or case. So nothing is passed on because it looks harmless. The path is looked up in a table of inference routes, and
the replica is sent the table's own spelling of it, not the client's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes

from exaserve.domain.errors import BadFraming, MethodNotAllowed, RouteNotFound

__all__ = ["Dialect", "Kind", "Route", "dialect_of", "is_guarded", "resolve"]


class Kind(Enum):
    """Who answers."""

    JSON = "json"
    """A replica; the body names the model (JSON, or a multipart form)."""
    RESOURCE = "resource"
    """A replica; the path names something a replica keeps, such as a stored response. The body is optional."""
    MODELS = "models"
    HEALTH = "health"
    READY = "ready"
    METRICS = "metrics"
    OPTIONS = "options"


class Dialect(Enum):
    """Whose error form the client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True)
class Route:
    """What a method and a path stand for.

    Attributes:
        name: the path as listed here, with ``{id}`` for what a client may choose: one of a few, so a metric's label.
        passed: the target as the replica gets it, query included.
        resource: the ``{id}`` of the path; for :data:`Kind.MODELS` the model asked for, or "".
        generates: tokens are generated, so output length counts.
    """

    kind: Kind
    name: str
    passed: bytes
    dialect: Dialect = Dialect.OPENAI
    generates: bool = False
    resource: str = ""


_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
_INFERENCE = _GENERATING | {
    "/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/completions/render",
    "/v1/messages/count_tokens",
    "/v1/embeddings", "/v1/rerank", "/v1/reranking", "/v1/score", "/v1/classify", "/v1/pooling", "/v1/moderations",
    "/v1/tokenize", "/v1/detokenize",
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech",
    "/v1/images/generations", "/v1/images/edits", "/v1/images/variations",
    # what engines serve outside /v1/ and clients use
    "/tokenize", "/detokenize", "/classify", "/pooling", "/score", "/rerank", "/reranking", "/v2/rerank", "/v2/embed",
}  # fmt: skip
"""Answered by a replica, by POST: the inference routes of vLLM 0.32, SGLang, TensorRT-LLM and llama.cpp."""
_STORED = re.compile(r"/v1/responses/(?P<id>[A-Za-z0-9_-]{1,256})(?P<part>/cancel|/input_items)?")
_STORED_METHODS = {"": "GET, HEAD, DELETE", "/cancel": "POST", "/input_items": "GET, HEAD"}
_OWN = {"/health": Kind.HEALTH, "/ready": Kind.READY, "/metrics": Kind.METRICS, "/v1/models": Kind.MODELS}
_READING = "GET, HEAD"
_KEPT = re.compile(
    r"/v1/(files|batches|uploads|fine_tuning|assistants|threads|vector_stores|conversations|containers)\b"
)
_KEY_NAMES = frozenset({b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"token"})
"""Names under which people put keys into a query."""
_TARGET_START = re.compile(rb"(?i)https?://[^/?]*")

_COMMON: dict[tuple[bytes, bytes], Route] = {}


def resolve(method: bytes, target: bytes) -> Route:
    """Finds the route.

    Raises:
        BadFraming: the target has a fragment, which no client sends to a server and engines drop.
        RouteNotFound: unknown, or not for clients.
        MethodNotAllowed: ``param`` holds the value of ``Allow``.
    """
    route = _COMMON.get((method, target))
    return route if route is not None else _resolve(method, target)


def is_guarded(method: bytes, target: bytes) -> bool:
    """Whether a key is asked for, where any is: load balancers and browsers' preflights have none."""
    if method == b"POST":
        return True
    path = _origin_form(target).partition(b"?")[0].rstrip(b"/")
    return method != b"OPTIONS" and path not in (b"/health", b"/ready")


def _resolve(method: bytes, target: bytes) -> Route:
    if b"#" in target:
        raise BadFraming("A request target has no fragment; send the path without '#'.")
    if method == b"OPTIONS":
        return Route(Kind.OPTIONS, "*", target)
    raw, mark, query = _origin_form(target).partition(b"?")
    path = raw.decode("latin-1")
    if len(path) > 1 and path[-1] == "/":
        path = path[:-1]  # an engine would answer with a redirect to its own address
    own = _OWN.get(path)
    if own is not None or path.startswith("/v1/models/"):
        _require(method, _READING)
        return Route(own or Kind.MODELS, "/v1/models/{id}" if own is None else path, target, resource=path[11:])
    query = _without_keys(query) if mark else b""
    if path in _INFERENCE:
        _require(method, "POST")
        return Route(Kind.JSON, path, path.encode() + query, _dialect(path), path in _GENERATING)
    stored = _STORED.fullmatch(path)
    if stored is None:
        raise RouteNotFound(_why_not(path))
    part = stored["part"] or ""
    _require(method, _STORED_METHODS[part])
    return Route(
        Kind.RESOURCE,
        "/v1/responses/{id}" + part,
        path.encode() + query,
        Dialect.RESPONSES,
        resource=stored["id"],
    )


def _without_keys(query: bytes) -> bytes:
    """``?`` and the query without keys in it: they are for the gateway at most, and engines log their targets."""
    kept = [part for part in query.split(b"&") if unquote_to_bytes(part.partition(b"=")[0]).lower() not in _KEY_NAMES]
    return b"?" + b"&".join(kept) if kept else b""


def dialect_of(target: bytes) -> Dialect:
    """Whose error form a client of that target expects, whether there is such a route or not."""
    path = _origin_form(target).partition(b"?")[0].decode("latin-1")
    return Dialect.RESPONSES if path.startswith("/v1/responses") else _dialect(path)


def _dialect(path: str) -> Dialect:
    if path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    return Dialect.RESPONSES if path == "/v1/responses" else Dialect.OPENAI


def _origin_form(target: bytes) -> bytes:
    """``/path`` of an absolute-form target (RFC 9112 3.2.2 wants servers to take it)."""
    start = _TARGET_START.match(target)
    if start is None:
        return target
    rest = target[start.end() :]
    return rest if rest[:1] == b"/" else b"/" + rest


def _why_not(path: str) -> str:
    kept = _KEPT.match(path)
    if kept is not None:
        return f"{kept[0]} is not served: it needs storage, which engines do not have. Send each request by itself."
    if path == "/v1/realtime":
        return "/v1/realtime is not served: WebSocket connections are not passed on."
    return f"There is no {path[:200]} here. Inference is under /v1/, such as /v1/chat/completions."


def _require(method: bytes, methods: str) -> None:
    if method.decode("latin-1") not in methods.split(", "):
        methods += ", OPTIONS"
        raise MethodNotAllowed(f"This path answers {methods}.", param=methods)


for _path in sorted(_GENERATING | {"/v1/embeddings"}):
    _COMMON[b"POST", _path.encode()] = _resolve(b"POST", _path.encode())
del _path
