"""How long an engine's step takes: prefill by compute, decode by memory traffic, and a time per layer for all the rest.

One step of continuous batching reads every weight once and, for each decoding sequence, its whole KV cache; prefill
tokens of the same step share that pass over the weights. So, with w the time to read the weights (of the experts only
those that the step's tokens hit), c the time to compute the step's tokens, a the attention over the prompts' own
context, k the time to read the decoding sequences' caches, and h the part that is not hidden (``overlap``)::

    step = overhead + max(w, c) + h min(w, c) + a + k

``overhead`` is a time per layer: launches, norms, routing, all-reduces. Small matrices, such as those of many ranks,
reach less of the bandwidth because each costs a time of its own; that is in it too. What an engine reaches of the
vendor's figures comes from measurements (:mod:`exaserve.perfmodel.constants`). A measured
:class:`~exaserve.perfmodel.profile.EngineProfile` (``exaserve calibrate``) replaces all of it where one exists.
"""

from __future__ import annotations

import math
from dataclasses import replace

from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest
from exaserve.models.architecture import Architecture
from exaserve.models.catalogue import model_from_name
from exaserve.models.formats import named_format
from exaserve.perfmodel.constants import Factors, factors, parts, setup_of
from exaserve.perfmodel.fitted import FITTED
from exaserve.perfmodel.hardware import Hardware
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.profile import EngineProfile
from exaserve.perfmodel.work import KV_BYTES, Work, work_of

__all__ = ["cache_tokens", "engine_profile", "profile", "step_times"]

GIB = 1 << 30

NON_TORCH_GIB = 0.25
"""CUDA context and libraries, GiB per rank; :data:`NCCL_GIB` more where ranks communicate."""

NCCL_GIB = 0.60

STAGE_HOP_S = 50e-6
"""Handing activations to the next pipeline stage, seconds."""

PIPELINE_EFFICIENCY = 0.85
"""Share of the stages' time that is busy when chunks are pipelined (bubbles and uneven stages take the rest)."""

KV_TOKENS_MAX = 16_000_000


def _rates(card: Hardware, kernel: str) -> float:
    """Operations per second of a format's matrix kernels; a format that the card lacks runs as the next wider one."""
    eight = card.int8_tflops if kernel == "int8" else card.fp8_tflops
    narrow = {"fp8": eight, "fp8-block": eight, "int8": eight, "nvfp4": card.fp4_tflops, "mxfp4": card.fp4_tflops}
    return (narrow.get(kernel, 0.0) or card.bf16_tflops) * 1e12


def step_times(
    card: Hardware, w: Work, f: Factors, tp: int, pp: int, dp: int = 1, drafts: int = 0, *, streamed: bool = True
) -> EngineProfile:
    """The step times of a replica; its limits are still those of an engine at its defaults.

    Args:
        dp: ranks that each hold attention for requests of their own, while experts see the tokens of all.
        drafts: tokens drafted each step by a layer of the model's own (multi-token prediction).
        streamed: whether a server sends every token on its own.
    """
    if card.name == "null":
        return EngineProfile(1e12, 0.0, 0.0, 0.0, KV_TOKENS_MAX, 1.0)
    bandwidth = card.bandwidth_gb_s * 1e9
    rate, plain_rate = _rates(card, w.kernel), card.bf16_tflops * 1e12
    always_s = w.plain_bytes / (bandwidth * f.bandwidth) + w.coded_bytes / (bandwidth * f.coded_bandwidth)
    overhead_s = w.layers * (f.layer_s + 2.0 * f.reduce_s) + w.moe_layers * f.moe_s
    overhead_s += w.mla_layers * f.mla_s + w.state_layers * f.state_s + STAGE_HOP_S * (pp - 1)
    token_s = w.coded_flops / (rate * f.matrix) + w.plain_flops / (plain_rate * f.plain_matrix)
    token_s += dp * w.expert_flops / (rate * f.experts_matrix)
    moved = f.passes * w.activation_bytes + f.expert_passes * w.dispatch_bytes
    token_s += moved / (bandwidth * f.bandwidth)
    if tp > 1:
        # An all-reduce moves 2 (tp - 1) / tp of the activations over each rank's link.
        token_s += w.reduce_bytes * 2.0 * (tp - 1) / tp / (card.link_gb_s * 1e9 * f.link)
    if dp > 1:
        token_s += w.dispatch_bytes * (dp - 1) / dp / (card.link_gb_s * 1e9 * f.link)
    seq_s = (
        f.sequence_s
        + (f.stream_s if streamed else 0.0)
        + w.head_flops / (plain_rate * f.plain_matrix)
        + w.window_bytes / (bandwidth * f.attention)
    )
    # Tokens of all attention ranks hit the experts, each as many as real routing makes of it.
    share = 1.0 - (1.0 - w.expert_share) ** (f.experts_skew * dp * (1 + drafts))
    # Attention ranks wait for the slowest of them before each layer of experts.
    wait = f.ranks_wait if dp > 1 else 1.0
    token_s *= wait
    a = f.accepted / wait
    if drafts:
        overhead_s *= 1.0 + 1.5 * drafts / w.layers
        seq_s += f.overlap * ((1 + drafts) / a - 1.0) * token_s * a
    # Stages work on different chunks (prefill) or micro-batches (decode) at once; a token still crosses all of them.
    stages = pp * PIPELINE_EFFICIENCY if pp > 1 else 1.0
    return EngineProfile(
        prefill_tokens_per_s=stages / token_s,
        decode_fixed_s=(always_s + overhead_s) / a,
        decode_per_seq_s=seq_s / a / stages,
        decode_per_kv_token_s=w.kv_bytes / (bandwidth * f.attention) / a / stages,
        kv_tokens_max=KV_TOKENS_MAX,
        kv_bytes_per_token=w.cache_bytes * tp,
        prefill_per_pair_s=w.pair_flops / (plain_rate * f.attention_matrix) / stages,
        overhead_s=overhead_s / a,
        expert_s=w.expert_bytes / (bandwidth * f.experts) / a,
        expert_share=share,
        overlap=f.overlap,
        prompt_s=f.admit_s + w.layers * f.prompt_s + w.moe_layers * f.prompt_moe_s,
        first_s=f.first_s,
    )


def weight_gib(w: Work, pp: int) -> float:
    """Weights of the fullest rank, GiB."""
    return w.weight_bytes * math.ceil(w.layers / pp) / w.layers / GIB


def cache_tokens(
    card: Hardware, arch: Architecture, w: Work, tp: int, pp: int, budget: int, seqs: int, utilization: float
) -> int:
    """KV cache capacity in tokens, by the identity that engines' own logs follow, for the fullest rank; below 1 where
    the weights do not fit.

    ``kv_bytes = memory x utilisation - weights - non_torch - activation_peak`` per rank. The activation peak is
    estimated: the widest layer's input, output and intermediate for a full budget of tokens, and the logits of a full
    batch. :func:`exaserve.planning.memory.plan_memory` has the exact sum.
    """
    facts = arch.facts
    stage = math.ceil(w.layers / pp) / w.layers
    embed = 2.0 * facts.vocab * facts.hidden / tp if arch.lm_head else 0.0
    weights = weight_gib(w, pp) * GIB + embed
    activation = budget * (6 * facts.hidden + 8 * facts.hidden / tp) * 2.0 + seqs * facts.vocab * 8.0
    non_torch = (NON_TORCH_GIB + (NCCL_GIB if tp * pp > 1 else 0.0)) * GIB
    free = card.memory_gib * GIB * utilization - weights - non_torch - activation
    return int(free / ((w.cache_bytes or 1.0) * stage))


def engine_profile(
    card: Hardware,
    arch: Architecture,
    tp: int,
    pp: int,
    *,
    whole_experts: bool = False,
    engine: str = "vllm",
    version: tuple[int, ...] = (),
    kv_precision: str,
    kv_tokens: int,
    max_model_len: int,
    max_num_seqs: int,
    token_budget: int,
    block_size: int,
) -> EngineProfile:
    """Step times of a replica whose cache size is already known (from a log, or an exact plan): nothing is checked.

    Args:
        whole_experts: experts are spread whole over the ranks of a stage (expert parallel).
        engine: one of :data:`~exaserve.perfmodel.constants.ENGINE_RELEASES`. version: its numbers, () for the newest.
    """
    work = work_of(arch, tp, tp if whole_experts else 1, KV_BYTES[kv_precision])
    setup = setup_of(card, arch, tp, whole_experts=whole_experts, engine=engine, version=version)
    return replace(
        step_times(card, work, factors(parts(setup), FITTED), tp, pp),
        kv_tokens_max=kv_tokens,
        kv_bytes_per_token=work.cache_bytes * tp,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        max_model_len=max_model_len,
        block_size=block_size,
        load_s=20.0 + work.weight_bytes * tp / 2e9,
    )


def _check(arch: Architecture, kv_precision: str, tp: int, pp: int, utilization: float) -> None:
    if kv_precision not in KV_BYTES:
        raise ConfigError(
            f"Unknown kv_precision {kv_precision!r}. {nearest(kv_precision, KV_BYTES)}", param="kv_precision"
        )
    if tp < 1 or pp < 1:
        raise ConfigError(f"Tensor and pipeline parallel sizes must be at least 1, not {tp} and {pp}.")
    if arch.facts.heads % tp:
        raise ConfigError(
            f"Tensor parallel size {tp} does not divide {arch.name}'s {arch.facts.heads} attention heads."
        )
    if pp > len(arch.layers):
        raise ConfigError(f"Pipeline parallel size {pp} exceeds {arch.name}'s {len(arch.layers)} layers.")
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
    engine: str = "vllm",
    version: tuple[int, ...] = (),
) -> EngineProfile:
    """The predicted profile of one replica: ``model`` at ``precision`` over ``tp`` x ``pp`` accelerators of one kind.

    Args:
        precision: a name of :data:`exaserve.models.formats.FORMATS`, or "auto" for that of the published weights.
        utilization: share of device memory that the engine may use.
        max_model_len: None takes the model's own context, cut to what the KV cache holds.
        max_num_seqs / token_budget / block_size: the engine's batch limits.
        engine / version: whose constants hold; () is the newest release.

    Raises:
        ConfigError: unknown name (with the nearest valid one), a split that the model does not allow, weights that do
            not fit, or a context that the KV cache cannot hold.
    """
    card = find_hardware(hardware)
    if precision not in ("", "auto"):
        try:
            named_format(precision)
        except ConfigError as error:
            raise ConfigError(error.message, param="precision") from None
    arch = model_from_name(model, precision)
    _check(arch, kv_precision, tp, pp, utilization)
    if not 1 <= max_num_seqs <= token_budget:
        raise ConfigError(f"max_num_seqs ({max_num_seqs}) must be between 1 and the token budget ({token_budget}).")
    work = work_of(arch, tp, 1, KV_BYTES[kv_precision])
    tokens = cache_tokens(card, arch, work, tp, pp, token_budget, max_num_seqs, utilization)
    tokens = min(tokens, KV_TOKENS_MAX) // block_size * block_size
    if tokens < block_size:
        need = weight_gib(work, pp)
        raise ConfigError(
            f"{arch.name} does not fit on {tp * pp} x {card.name}: each rank holds {need:.1f} GiB of weights and may "
            f"use {card.memory_gib * utilization:.1f} GiB for them, its working memory and the KV cache. Raise the "
            "tensor or pipeline parallel size, or use a narrower precision."
        )
    length = min(arch.facts.context, tokens) if max_model_len is None else max_model_len
    if not block_size <= length <= tokens:
        raise ConfigError(
            f"max_model_len {length} is outside what the KV cache holds: {block_size} to {tokens} tokens. "
            "Lower it, or give the replica more memory."
        )
    return engine_profile(
        card,
        arch,
        tp,
        pp,
        engine=engine,
        version=version,
        kv_precision=kv_precision,
        kv_tokens=tokens,
        max_model_len=length,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        block_size=block_size,
    )
