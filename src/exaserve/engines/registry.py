"""All engines by name. A new one is a file beside this one, and a line here."""

from __future__ import annotations

from exaserve.engines.base import Engine
from exaserve.engines.emulated import EMULATOR, NULL
from exaserve.engines.llamacpp import LLAMACPP
from exaserve.engines.sglang import SGLANG
from exaserve.engines.tgi import TGI
from exaserve.engines.trtllm import TRTLLM
from exaserve.engines.vllm import VLLM

__all__ = ["ENGINES", "health_path", "metrics_paths"]

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        VLLM,
        SGLANG,
        TRTLLM,
        LLAMACPP,
        TGI,
        EMULATOR,
        NULL,
    )
}
"""In the order in which "auto" tries them: adapters repeat TGI's names beside vLLM's, whose own are better."""


def metrics_paths(engine: str) -> tuple[str, ...]:
    """Where the exposition of ``engine`` may be; of an unknown one, wherever any engine has it."""
    if engine in ENGINES:
        return ENGINES[engine].metrics_paths
    return tuple(dict.fromkeys(path for each in ENGINES.values() for path in each.metrics_paths))


def health_path(engine: str) -> str:
    return ENGINES[engine].health_path if engine in ENGINES else "/health"
