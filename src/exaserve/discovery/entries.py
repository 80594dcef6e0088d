"""What a registry says of a replica in names and texts: Consul's meta, Kubernetes' annotations, a file's keys."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["KEYS", "Defaults", "spec_of", "tags_as_mapping", "url_of"]

_NUMBERS = {
    "weight": float,
    "max_model_len": int,
    "max_num_seqs": int,
    "kv_tokens_max": int,
    "prefill_tokens_per_s": float,
    "decode_step_s": float,
}
_TEXTS = ("version", "node", "engine")
KEYS = ("models", *_TEXTS, *_NUMBERS)
"""Names understood: those of :class:`exaserve.domain.replica.ReplicaSpec`; ``models`` is a list with commas."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for every replica of a source unless the replica itself says otherwise."""

    models: tuple[str, ...] = ()
    engine: str = "auto"


def url_of(host: str, port: int) -> str:
    """ValueError for what is no address."""
    if not 0 < port < 65_536:
        raise ValueError(f"port: {port} is not from 1 to 65535")
    if ":" in host:
        return f"http://[{ipaddress.ip_address(host)}]:{port}"
    if not host or not host.isascii() or not all(c.isalnum() or c in "-._" for c in host):
        raise ValueError(f"address: {host!a} is not a host name or address")
    return f"http://{host}:{port}"


def tags_as_mapping(tags: Iterable[str]) -> dict[str, str]:
    """``key=value`` tags whose key is one of :data:`KEYS` (or ``model``); several models are joined."""
    found: dict[str, str] = {}
    for tag in tags:
        key, equals, value = tag.partition("=")
        key = "models" if key == "model" else key
        if equals and key in KEYS:
            found[key] = f"{found[key]},{value}" if key == "models" and "models" in found else value
    return found


def spec_of(
    replica: str, host: str, port: int, said: Mapping[str, str], defaults: Defaults, node: str = "", weight: float = 1.0
) -> ReplicaSpec:
    """The replica of one entry. ValueError names the key that is wrong; keys that are not ours are nobody's mistake."""
    models = tuple(each.strip() for each in said.get("models", said.get("model", "")).split(",") if each.strip())
    if not replica or not replica.isprintable():
        raise ValueError(f"id: {replica!a} is empty or holds control characters")
    numbers: dict[str, float] = {"weight": weight}
    for key, kind in _NUMBERS.items():
        text = said.get(key, "")
        if text:
            try:
                value = kind(text)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and 0 <= value < 1e12):
                raise ValueError(f"{key}: {text!a} is not a number of 0 or more")
            numbers[key] = value
    return ReplicaSpec(
        id=ReplicaId(replica),
        url=url_of(host, port),
        models=models or defaults.models,
        version=said.get("version", ""),
        node=said.get("node", "") or node,
        engine=said.get("engine", "") or defaults.engine,
        **numbers,  # type: ignore[arg-type]  # each by its own type, as the table says
    )
