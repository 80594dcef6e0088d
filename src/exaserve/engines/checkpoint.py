"""What a checkpoint says of its own precision, as far as that can be read here without loading or asking anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["own_quantization"]

_CONFIG_BYTES_MAX = 4 * 1024 * 1024
_NAMED = re.compile(
    r"(?<![a-z0-9])(fp8|fp4|nvfp4|mxfp4|mxfp8|int8|int4|awq|gptq|w\d+a\d+|bnb|gguf)(?![a-z])", re.IGNORECASE
)
"""Words by which publishers name quantised checkpoints."""


def own_quantization(model: str, hub: Path) -> str:
    """How the checkpoint is quantised as published, "" where it is not or nobody can tell from here.

    Engines read this themselves and refuse a flag that says something else (vLLM: "does not match the quantization
    method specified").

    Args:
        model: a folder, or a name on the Hugging Face hub.
        hub: folder of the hub's cache on this machine.
    """
    folder = Path(model)
    if not (folder / "config.json").is_file():
        folder = _cached(model, hub)
    config = _read(folder / "config.json")
    if config:
        return _method(config) or _method_of_modelopt(_read(folder / "hf_quant_config.json"))
    named = _NAMED.search(model.rstrip("/").rpartition("/")[2])
    return named[1].lower() if named is not None else ""


def _cached(model: str, hub: Path) -> Path:
    """The newest snapshot of a model in the hub's cache; a folder that does not exist where there is none."""
    repository = hub / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        revision = "none"
    return repository / "snapshots" / revision


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is none that can be read."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_CONFIG_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _method(config: dict[str, Any]) -> str:
    """Models that also see or hear keep it with their text part."""
    for place in (config, config.get("text_config")):
        if isinstance(place, dict):
            for key in ("quantization_config", "compression_config"):
                settings = place.get(key)
                if isinstance(settings, dict):
                    return str(settings.get("quant_method") or "compressed-tensors")
    return ""


def _method_of_modelopt(config: dict[str, Any]) -> str:
    settings = config.get("quantization")
    return "modelopt" if isinstance(settings, dict) and settings.get("quant_algo") else ""
