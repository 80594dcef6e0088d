"""What a start-up is asked with beside model and cards: one set of options, for a memory sum and for a whole plan."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from exaserve.planning.engine import EngineVersion

__all__ = ["EngineOptions", "MeasuredMemory"]


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Figures of a real start-up that stand in for the model's, GiB per rank; None where not known.

    From vLLM 0.21 on the activation peak that a log prints has the CUDA graphs' estimate in it: given, it stands for
    both.
    """

    weights_gib: float | None = None
    non_torch_gib: float | None = None
    activation_gib: float | None = None
    kv_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine is started.

    Attributes:
        utilization: share of a card's memory it may use (``--gpu-memory-utilization``; SGLang's
            ``--mem-fraction-static``).
        max_model_len: longest prompt and output, tokens; 0 takes the model's own.
        max_num_seqs / max_num_batched_tokens: 0 takes the engine's default.
        kv_bytes: of one cached value, 2 or 1.
        block: tokens in one KV block.
        draft_layers: multi-token-prediction layers loaded for speculative decoding.
        images: whether start-up profiles the vision tower (a model with one that serves text only need not).
        eager: no CUDA graphs.
        graphs_counted: whether the engine may take its estimate of the CUDA graphs out of the cache's memory, where its
            version does that; False stands for ``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0``.
    """

    version: EngineVersion = field(default_factory=EngineVersion)
    utilization: float = 0.9
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    kv_bytes: float = 2.0
    block: int = 16
    draft_layers: int = 0
    images: bool = True
    eager: bool = False
    graphs_counted: bool = True
    measured: MeasuredMemory = field(default_factory=MeasuredMemory)

    def options(self) -> dict[str, Any]:
        """These fields by name, for another value that has them too."""
        return {each.name: getattr(self, each.name) for each in fields(EngineOptions)}
