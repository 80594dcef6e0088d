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
    overlap: float,
    prompt_s: float,
    prefill_tokens: float,
    decode_seqs: float,
    kv_tokens: float,
    prefill_pairs: float,
) -> float:
    """Seconds; the terms are explained in :mod:`exaserve.perfmodel.roofline`.

    The first ten arguments are a profile's, in plain numbers: an engine asks for each of its steps, and where it is
    compiled this is compiled with it.
    """
    tokens = prefill_tokens + decode_seqs
    read_s = fixed_s - overhead_s
    if expert_s:
        read_s += expert_s * (1.0 - (1.0 - expert_share) ** tokens)
    compute_s = tokens / tokens_per_s
    step = overhead_s + per_seq_s * decode_seqs + per_kv_token_s * kv_tokens
    if prefill_tokens:
        step += prompt_s + prefill_pairs * per_pair_s
    if compute_s > read_s:
        return step + compute_s + overlap * read_s
    return step + read_s + overlap * compute_s
