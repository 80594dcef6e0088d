"""The smallest real request to an engine: one token, in the first dialect that it does not refuse; and what it lists.

Gateways, agents and the local cluster ask in the same way, each over a connection of its own making.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from types import MappingProxyType

import msgspec

from exaserve.domain.replica import ModelCard
from exaserve.engines.fetch import Fetched
from exaserve.engines.registry import health_path

__all__ = ["DIALECTS", "NEXT_DIALECT", "ROUTES", "Ask", "ask_completion", "ask_models", "completion_probe", "reason_of"]

DIALECTS = ("completions", "chat", "embeddings", "health")
"""In the order they are tried. ``health`` only says that the process lives."""
ROUTES = MappingProxyType(
    {"/v1/completions": "completions", "/v1/chat/completions": "chat", "/v1/embeddings": "embeddings"}
)
"""The dialect that asks for each route of which there is a smallest request."""
MODELS_MAX = 1024
"""Models of one engine that are taken note of: an agent's picture has room for no more."""
NEXT_DIALECT = frozenset({400, 404, 405, 422, 501})
"""Statuses that say "not in this way"."""

Ask = Callable[[str, str, bytes], Awaitable[Fetched]]
"""Sends ``(method, path, body)`` and returns how it ended; never raises for what the other side does."""


class _ModelList(msgspec.Struct):
    """The part of ``/v1/models`` that matters."""

    data: list[ModelCard] = []


def completion_probe(dialect: str, model: str, alive_path: str) -> tuple[str, str, bytes]:
    """``(method, path, body)`` of the smallest real request in ``dialect``."""
    if dialect == "health":
        return "GET", alive_path, b""
    if dialect == "embeddings":
        return "POST", "/v1/embeddings", msgspec.json.encode({"model": model, "input": "ping"})
    body: dict[str, object] = {"model": model, "max_tokens": 1, "temperature": 0}
    if dialect == "chat":
        body["messages"] = [{"role": "user", "content": "ping"}]
        return "POST", "/v1/chat/completions", msgspec.json.encode(body)
    body["prompt"] = "ping"
    return "POST", "/v1/completions", msgspec.json.encode(body)


def reason_of(status: int | None, body: bytes) -> str:
    """The engine's own words where it refused, shortened; "" where it did not."""
    if status is None or status < 400:
        return ""
    said = " ".join(body[:200].decode("utf-8", "replace").split())
    return f"{said} (does the engine want a key? see --engine-api-key-file)" if status in (401, 403) else said


async def ask_completion(
    ask: Ask, model: str, engine: str, first: int = 0, *, alive_is_enough: bool = True
) -> tuple[Fetched, int | None]:
    """A completion in the dialect that worked last (``first``), else in the next that is not refused.

    Args:
        engine: key of ENGINES, or any other name.
        alive_is_enough: whether an engine that takes no dialect for this model passes by answering at its health path.

    Returns:
        How it ended, and the index of the dialect that worked, None where none did.
    """
    result = Fetched(None, b"", "no dialect is understood", 0.0, 0.0)
    for index in range(first, len(DIALECTS)):
        if DIALECTS[index] == "health" and not alive_is_enough:
            break
        result = await ask(*completion_probe(DIALECTS[index], model, health_path(engine)))
        if result.status is not None and 200 <= result.status < 300:
            return result, index
        if result.status not in NEXT_DIALECT:
            break
    return result, None


async def ask_models(ask: Ask) -> tuple[Fetched, tuple[ModelCard, ...] | None]:
    """``/v1/models``: how it ended, and what it lists, None where that cannot be read."""
    result = await ask("GET", "/v1/models", b"")
    if result.status != 200:
        return result, None
    try:
        return result, tuple(msgspec.json.decode(result.body, type=_ModelList).data[:MODELS_MAX])
    except msgspec.DecodeError as error:
        return dataclasses.replace(result, status=None, error=f"/v1/models: {error}"), None
