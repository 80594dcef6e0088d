"""How long an engine's step takes, from first principles: prefill by compute, decode by memory traffic.

One step of continuous batching reads every weight once and, for each decoding sequence, its whole KV cache; prefill
tokens of the same step share that pass over the weights. So, with w the time to read the weights, c the time to
compute the step's tokens, a the attention over the prompts' own context, and k the time to read the decoding
sequences' caches::

    step = overhead + max(w, c) + a + k

Batch-1 decode is then w + k and a long prefill is c + a, the two ends of the roofline, and chunked prefill piggybacks
on decode for free until c exceeds w, as it does in practice.

The efficiency factors below are assumptions about what an engine reaches of the vendor's figures; no accelerator was
measured for them, and a cluster's real step times may differ by tens of per cent. They give shapes and orders of
magnitude. A measured :class:`EngineProfile` (``exaserve calibrate``) replaces them where one exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest
from exaserve.models.catalogue import find_shape
from exaserve.models.shape import ModelShape
from exaserve.perfmodel.hardware import Hardware
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.step import step_s

__all__ = [
    "PRECISIONS",
    "EngineProfile",
    "engine_profile",
    "kv_bytes_per_token",
    "profile",
]

GIB = 1 << 30

PREFILL_EFFICIENCY = 0.55
"""Share of dense matrix FLOP/s that prefill of thousands of tokens reaches."""

ATTENTION_EFFICIENCY = 0.35
"""Share of 16-bit FLOP/s that prefill attention reaches (softmax and masking take the rest)."""

BANDWIDTH_EFFICIENCY = 0.75
"""Share of memory bandwidth that decode reaches."""

STEP_OVERHEAD_S = 0.0008
"""Scheduling, sampling and launch per step that the device waits for, seconds (CUDA graphs on, asynchronous
scheduling).
"""

SEQUENCE_OVERHEAD_S = 6e-6
"""Sampling, detokenisation and block-table work per sequence and step, seconds."""

NON_TORCH_GIB = 0.25
"""CUDA context and libraries, GiB per rank; :data:`NCCL_GIB` more where ranks communicate."""

NCCL_GIB = 0.60
ALLREDUCE_LATENCY_S = {"nvlink": 8e-6, "xgmi": 12e-6, "pcie": 30e-6, "none": 0.0}
"""One small all-reduce, seconds; each layer has two."""

STAGE_HOP_S = 50e-6
"""Handing activations to the next pipeline stage, seconds."""

PIPELINE_EFFICIENCY = 0.85
"""Share of the stages' time that is busy when chunks are pipelined (bubbles and uneven stages take the rest)."""

PRECISIONS: dict[str, tuple[float, str]] = {
    # name: (bytes per weight with scales, format whose matrix rate applies)
    "bf16": (2.0, "bf16"),
    "fp16": (2.0, "bf16"),
    "fp8": (1.03, "fp8"),
    "int8": (1.03, "int8"),
    "int4": (0.56, "bf16"),
    "awq": (0.56, "bf16"),
    "gptq": (0.56, "bf16"),
    "mxfp4": (0.59, "fp4"),
    "nvfp4": (0.60, "fp4"),
}
_KV_BYTES = {"auto": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What an engine on given hardware does, in a handful of numbers that the planner, emulator, simulator and
    entropy share.

    Attributes:
        prefill_tokens_per_s: prompt tokens per second, attention apart.
        decode_fixed_s: one decode step of an empty context, seconds: weights read once, and overhead.
        decode_per_seq_s: added per sequence in the batch, seconds.
        decode_per_kv_token_s: added per token of context of the decoding sequences, seconds.
        kv_tokens_max: KV cache capacity, tokens.
        kv_bytes_per_token: KV cache per token over all ranks of the replica, bytes.
        max_num_seqs: sequences in the batch at most.
        token_budget: tokens (prompt and decode) per step at most.
        max_model_len: longest prompt + output, tokens.
        block_size: tokens per KV block.
        prefill_per_pair_s: seconds per (prompt token, context token) pair that attention looks at.
        overhead_s: part of ``decode_fixed_s`` that is not reading weights, seconds.
        expert_s: time to read all routed experts, seconds (mixture of experts; not in ``decode_fixed_s``).
        expert_share: share of the experts that one token takes.
        load_s: from start to ready, seconds: weights read, graphs captured.
    """

    prefill_tokens_per_s: float
    decode_fixed_s: float
    decode_per_seq_s: float
    decode_per_kv_token_s: float
    kv_tokens_max: int
    kv_bytes_per_token: float
    max_num_seqs: int = 256
    token_budget: int = 8192
    max_model_len: int = 8192
    block_size: int = 16
    prefill_per_pair_s: float = 0.0
    overhead_s: float = 0.0
    expert_s: float = 0.0
    expert_share: float = 0.0
    load_s: float = 30.0

    def step_s(self, prefill_tokens: int, decode_seqs: int, kv_tokens: int, prefill_pairs: float = 0.0) -> float:
        """Duration of one step, seconds.

        Args:
            prefill_tokens: prompt tokens computed in this step.
            decode_seqs: sequences that get one token each.
            kv_tokens: sum of the decoding sequences' context lengths.
            prefill_pairs: sum over prompt tokens of the context each looks at (token count squared / 2 for a whole
                prompt).
        """
        return step_s(
            self.decode_fixed_s,
            self.overhead_s,
            self.decode_per_seq_s,
            self.decode_per_kv_token_s,
            self.expert_s,
            self.expert_share,
            self.prefill_tokens_per_s,
            self.prefill_per_pair_s,
            prefill_tokens,
            decode_seqs,
            kv_tokens,
            prefill_pairs,
        )

    def prefill_s(self, tokens: int) -> float:
        """Seconds to prefill a prompt of ``tokens`` alone, chunked by the token budget."""
        steps = max(1, -(-tokens // self.token_budget))
        compute = max(tokens / self.prefill_tokens_per_s, steps * (self.decode_fixed_s - self.overhead_s))
        return steps * self.overhead_s + compute + 0.5 * tokens * tokens * self.prefill_per_pair_s

    def validate(self) -> None:
        """Asserts that every figure is usable."""
        assert self.prefill_tokens_per_s > 0
        assert self.decode_fixed_s >= self.overhead_s >= 0
        assert min(self.decode_per_seq_s, self.decode_per_kv_token_s, self.prefill_per_pair_s, self.expert_s) >= 0
        assert 1 <= self.max_num_seqs <= self.token_budget
        assert self.block_size >= 1
        assert self.block_size <= self.max_model_len <= self.kv_tokens_max


def kv_bytes_per_token(model: ModelShape, tp: int = 1, kv_precision: str = "auto", layers: int | None = None) -> float:
    """KV cache of one token on one rank, bytes. Heads that do not divide are replicated; MLA is the same on every rank.

    Sliding-window layers are counted in full, as engines without a hybrid cache manager hold them; so the result is an
    upper bound there.
    """
    count = model.layers if layers is None else layers
    width = _KV_BYTES[kv_precision]
    if model.mla_values:
        return model.mla_values * count * width
    return 2.0 * count * max(1, math.ceil(model.kv_heads / tp)) * model.head_dim * width


def _rate_flops(hardware: Hardware, precision: str) -> float:
    """Dense matrix operations per second for weights of a precision; falls back to the next wider format."""
    fmt = PRECISIONS[precision][1]
    rate = {"bf16": hardware.bf16_tflops, "fp8": hardware.fp8_tflops, "int8": hardware.int8_tflops}.get(fmt, 0.0)
    if fmt == "fp4":
        rate = hardware.fp4_tflops or hardware.fp8_tflops
    return (rate or hardware.bf16_tflops) * 1e12


def _kv_capacity(
    hw: Hardware, model: ModelShape, weight_bytes: float, tp: int, pp: int, budget: int, seqs: int, util: float, kv: str
) -> int:
    """KV cache capacity in tokens, by the identity that engines' own logs follow, for the fullest rank.

    ``kv_bytes = memory x utilisation - weights - non_torch - activation_peak`` per rank. The activation peak is
    estimated: the widest layer's input, output and intermediate for a full budget of tokens, and the logits of a full
    batch.
    """
    layers = math.ceil(model.layers / pp)
    weights = model.params_b * 1e9 * weight_bytes / tp * layers / model.layers
    activation = budget * (6 * model.hidden + 8 * model.hidden / tp) * 2.0 + seqs * model.vocab * 8.0
    non_torch = (NON_TORCH_GIB + (NCCL_GIB if tp * pp > 1 else 0.0)) * GIB
    free = hw.memory_gib * GIB * util - weights - non_torch - activation
    if free <= 0:
        need = (weights + non_torch + activation) / GIB
        raise ConfigError(
            f"{model.name} does not fit on {tp * pp} x {hw.name}: each rank needs {need:.1f} GiB before any KV cache "
            f"and may use {hw.memory_gib * util:.1f} GiB. Raise the tensor or pipeline parallel size, "
            "or use a narrower precision."
        )
    return int(free / kv_bytes_per_token(model, tp, kv, layers))


def _check(model: ModelShape, precision: str, kv_precision: str, tp: int, pp: int, utilization: float) -> None:
    if precision not in PRECISIONS:
        raise ConfigError(f"Unknown precision {precision!r}. {nearest(precision, PRECISIONS)}", param="precision")
    if kv_precision not in _KV_BYTES:
        hint = nearest(kv_precision, _KV_BYTES)
        raise ConfigError(f"Unknown kv_precision {kv_precision!r}. {hint}", param="kv_precision")
    if tp < 1 or pp < 1:
        raise ConfigError(f"Tensor and pipeline parallel sizes must be at least 1, not {tp} and {pp}.")
    if model.heads % tp:
        raise ConfigError(f"Tensor parallel size {tp} does not divide {model.name}'s {model.heads} attention heads.")
    if pp > model.layers:
        raise ConfigError(f"Pipeline parallel size {pp} exceeds {model.name}'s {model.layers} layers.")
    if not 0.0 < utilization <= 1.0:
        raise ConfigError(f"Memory utilisation must be in (0, 1], not {utilization}.")


def profile(
    hardware: str,
    model: str,
    precision: str = "auto",
    tp: int = 1,
    pp: int = 1,
    *,
    kv_precision: str = "auto",
    utilization: float = 0.9,
    max_model_len: int | None = None,
    max_num_seqs: int = 256,
    token_budget: int = 8192,
    block_size: int = 16,
) -> EngineProfile:
    """The predicted profile of one replica: ``model`` at ``precision`` over ``tp`` x ``pp`` accelerators of one kind.

    Args:
        precision: key of :data:`PRECISIONS`, or "auto" for the precision of the published weights.
        utilization: share of device memory that the engine may use.
        max_model_len: None takes the model's own context, cut to what the KV cache holds.
        max_num_seqs / token_budget / block_size: the engine's batch limits.

    Raises:
        ConfigError: unknown name (with the nearest valid one), a split that the model does not allow, weights that do
            not fit, or a context that the KV cache cannot hold.
    """
    hw, shape = find_hardware(hardware), find_shape(model)
    precision = shape.native if precision == "auto" else precision.lower()
    _check(shape, precision, kv_precision, tp, pp, utilization)
    if not 1 <= max_num_seqs <= token_budget:
        raise ConfigError(f"max_num_seqs ({max_num_seqs}) must be between 1 and the token budget ({token_budget}).")
    weight_bytes = PRECISIONS[precision][0]
    tokens = _kv_capacity(hw, shape, weight_bytes, tp, pp, token_budget, max_num_seqs, utilization, kv_precision)
    tokens = min(tokens, 16_000_000) // block_size * block_size
    length = min(shape.context, tokens) if max_model_len is None else max_model_len
    if not block_size <= length <= tokens:
        raise ConfigError(
            f"max_model_len {length} is outside what the KV cache holds: {block_size} to {tokens} tokens. "
            "Lower it, or give the replica more memory."
        )

    return engine_profile(
        hw,
        shape,
        precision,
        tp,
        pp,
        kv_precision=kv_precision,
        kv_tokens=tokens,
        max_model_len=length,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        block_size=block_size,
    )


def engine_profile(
    hw: Hardware,
    shape: ModelShape,
    precision: str,
    tp: int,
    pp: int,
    *,
    kv_precision: str,
    kv_tokens: int,
    max_model_len: int,
    max_num_seqs: int,
    token_budget: int,
    block_size: int,
) -> EngineProfile:
    """Step times of a replica whose cache size is already known (from a log, or an exact plan): nothing is checked."""
    weight_bytes = PRECISIONS[precision][0]
    bandwidth = hw.bandwidth_gb_s * 1e9 * BANDWIDTH_EFFICIENCY
    expert_b = shape.params_b - shape.active_b
    share = shape.experts_per_token / shape.experts if shape.experts else 0.0
    routed_b = expert_b / (1.0 - share) if shape.experts else 0.0
    always_s = (shape.params_b - routed_b) * 1e9 * weight_bytes / tp / bandwidth
    # Two all-reduces per layer; each moves 2 (tp - 1) / tp of the activations over the link.
    reduce_s = 2 * shape.layers * ALLREDUCE_LATENCY_S[hw.link] if tp > 1 else 0.0
    moved = 2 * shape.layers * shape.hidden * 2.0 * 2.0 * (tp - 1) / tp
    reduce_per_token_s = moved / (hw.link_gb_s * 1e9) if tp > 1 else 0.0
    overhead_s = (STEP_OVERHEAD_S if hw.name != "null" else 0.0) + reduce_s + STAGE_HOP_S * (pp - 1)
    token_s = 2.0 * shape.active_b * 1e9 / (_rate_flops(hw, precision) * PREFILL_EFFICIENCY * tp) + reduce_per_token_s
    # Stages work on different chunks (prefill) or micro-batches (decode) at once; a token still crosses all of them.
    stages = pp * PIPELINE_EFFICIENCY if pp > 1 else 1.0
    pair_s = 4.0 * shape.layers * shape.heads * shape.head_dim / (hw.bf16_tflops * 1e12 * ATTENTION_EFFICIENCY * tp)
    full_layers = shape.layers - shape.sliding_layers
    rank_bytes = kv_bytes_per_token(shape, tp, kv_precision, full_layers)
    return EngineProfile(
        prefill_tokens_per_s=stages / token_s,
        decode_fixed_s=always_s + overhead_s,
        decode_per_seq_s=((SEQUENCE_OVERHEAD_S if hw.name != "null" else 0.0) + token_s) / stages,
        decode_per_kv_token_s=rank_bytes / bandwidth / stages,
        kv_tokens_max=kv_tokens,
        kv_bytes_per_token=kv_bytes_per_token(shape, tp, kv_precision) * tp,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        max_model_len=max_model_len,
        block_size=block_size,
        prefill_per_pair_s=pair_s * full_layers / shape.layers / stages,
        overhead_s=overhead_s,
        expert_s=routed_b * 1e9 * weight_bytes / tp / bandwidth,
        expert_share=share,
        load_s=20.0 + shape.params_b * weight_bytes / 2.0,
    )
