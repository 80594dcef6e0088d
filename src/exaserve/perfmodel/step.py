# compiled
"""What one step of continuous batching takes: the formula that profiles and engines share. PURE."""

from __future__ import annotations

__all__ = ["step_s"]


def step_s(
    fixed_s: float,
    overhead_s: float,
    per_seq_s: float,
    per_kv_token_s: float,
    expert_s: float,
    expert_share: float,
    tokens_per_s: float,
    per_pair_s: float,
    prefill_tokens: int,
    decode_seqs: int,
    kv_tokens: int,
    prefill_pairs: float,
) -> float:
    """Seconds; the terms are explained in :mod:`exaserve.perfmodel.roofline`.

    The first eight arguments are a profile's, in plain numbers: an engine asks for each of its steps, and where it is
    compiled this is compiled with it.
    """
    weights_s = fixed_s
    if expert_s:
        weights_s += expert_s * (1.0 - (1.0 - expert_share) ** (prefill_tokens + decode_seqs))
    step = weights_s + per_seq_s * decode_seqs + per_kv_token_s * kv_tokens
    if prefill_tokens:
        compute_s = prefill_tokens / tokens_per_s
        weights_s -= overhead_s
        if compute_s > weights_s:
            step += compute_s - weights_s
        step += prefill_pairs * per_pair_s
    return step
