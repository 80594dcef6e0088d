"""The smallest real request to an engine: one token, in the first dialect that it does not refuse."""

from __future__ import annotations

import msgspec

__all__ = ["DIALECTS", "NEXT_DIALECT", "Listed", "ModelList", "completion_probe", "reason_of"]

DIALECTS = ("completions", "chat", "embeddings", "health")
"""In the order they are tried. ``health`` only says that the process lives."""
NEXT_DIALECT = frozenset({400, 404, 405, 422, 501})
"""Statuses that say "not in this way"."""


class Listed(msgspec.Struct):
    """One model."""

    id: str
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    """The part of ``/v1/models`` that matters."""

    data: list[Listed] = []


def completion_probe(dialect: str, model: str, health_path: str) -> tuple[str, str, bytes]:
    """``(method, path, body)`` of the smallest real request in ``dialect``."""
    if dialect == "health":
        return "GET", health_path, b""
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
