# compiled
"""Which request targets exist, what they mean, and what must not pass."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from exaserve.domain.errors import MethodNotAllowed, RouteNotFound

__all__ = ["Dialect", "Kind", "Route", "resolve"]


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
        name: path without its query, text; for :data:`Kind.MODELS` the model asked for, or "".
        generates: tokens are generated, so output length counts.
        passed: the target as the replica gets it, query included.
    """

    kind: Kind
    name: str
    passed: bytes
    dialect: Dialect = Dialect.OPENAI
    generates: bool = False


_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
_POST_ONLY = _GENERATING - {"/v1/responses"} | {
    "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/audio/transcriptions", "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/tokenize", "/v1/detokenize", "/v1/classify", "/v1/pooling", "/v1/messages/count_tokens", "/v1/moderations",
    "/v1/images/generations", "/v1/images/edits",
}  # fmt: skip
_BESIDE_V1 = frozenset(
    {"/tokenize", "/detokenize", "/classify", "/pooling", "/score", "/rerank", "/v2/rerank", "/v2/embed"}
)
"""What engines serve outside ``/v1/`` and clients use. Everything else there manages the engine and stays closed."""
_FORBIDDEN = ("/load_lora_adapter", "/unload_lora_adapter")
"""Engines take these on their public port; they change a replica and are the operator's."""
_OWN = {"/health": Kind.HEALTH, "/ready": Kind.READY, "/metrics": Kind.METRICS, "/v1/models": Kind.MODELS}
_READING = frozenset({b"GET", b"HEAD"})
_PROXIED = frozenset({b"GET", b"HEAD", b"POST", b"DELETE"})
_PATH_MAX = 2048

_COMMON: dict[tuple[bytes, bytes], Route] = {}


def resolve(method: bytes, target: bytes) -> Route:
    """Finds the route.

    Raises:
        RouteNotFound: unknown, or not for clients.
        MethodNotAllowed: ``param`` holds the value of ``Allow``.
    """
    route = _COMMON.get((method, target))
    return route if route is not None else _resolve(method, target)


def _resolve(method: bytes, target: bytes) -> Route:
    if method == b"OPTIONS":
        return Route(Kind.OPTIONS, "*", target)
    target = _origin_form(target)
    raw, _, _query = target.partition(b"?")
    path = raw.decode("latin-1")
    own = _OWN.get(path)
    if own is not None or path.startswith("/v1/models/"):
        _require(method in _READING, "GET, HEAD, OPTIONS")
        return Route(own or Kind.MODELS, path[11:] if own is None else "", target)
    if not _may_pass(path):
        raise RouteNotFound(f"There is no {path[:200]} here. Inference is under /v1/, such as /v1/chat/completions.")
    if path in _POST_ONLY or path in _BESIDE_V1:
        _require(method == b"POST", "POST, OPTIONS")
    _require(method in _PROXIED, "GET, HEAD, POST, DELETE, OPTIONS")
    dialect = Dialect.OPENAI
    if path.startswith("/v1/messages"):
        dialect = Dialect.ANTHROPIC
    elif path.startswith("/v1/responses"):
        dialect = Dialect.RESPONSES
    resource = method != b"POST" or path.startswith("/v1/responses/")
    return Route(Kind.RESOURCE if resource else Kind.JSON, path, target, dialect, path in _GENERATING)


def _origin_form(target: bytes) -> bytes:
    """``/path`` of an absolute-form target (RFC 9112 3.2.2 wants servers to take it)."""
    if target[:7].lower() == b"http://" or target[:8].lower() == b"https://":
        start = target.find(b"/", 8)
        return target[start:] if start > 0 else b"/"
    return target


def _may_pass(path: str) -> bool:
    """Whether a replica may see ``path``.

    Percent escapes, empty and dot segments are refused: an engine would resolve them, and what it then saw could be a
    management route that this table closes.
    """
    if path in _BESIDE_V1:
        return True
    if not path.startswith("/v1/") or len(path) > _PATH_MAX or path == "/v1/":
        return False
    if "%" in path or "//" in path or "\\" in path or "/." in path or ";" in path:
        return False
    return not path.rstrip("/").lower().endswith(_FORBIDDEN)


def _require(allowed: bool, methods: str) -> None:
    if not allowed:
        raise MethodNotAllowed(f"This path answers {methods}.", param=methods)


for _path in sorted(_GENERATING | {"/v1/embeddings"}):
    _COMMON[b"POST", _path.encode()] = _resolve(b"POST", _path.encode())
del _path
