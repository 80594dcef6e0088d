# compiled
"""Entropy: predicted seconds of work a replica has before it can serve a request, and that the request adds (A1).

``entropy = (prefill + stall + decode + network) x penalty + memory + failures + away`` with

- prefill: seconds for the prompts queued ahead, minus what has drained, + for this prompt's tokens not in the prefix
  cache, by the replica's measured speed;
- stall: what this prefill costs others, as multiples of itself: ``stall_weight`` for each ``running`` sequence whose
  tokens wait for it, ``join_weight`` where prompts without a first token share its steps, and ``away_weight`` on other
  gateways' homes;
- decode: what joining that batch costs this request and the batch;
- memory: 0 while predicted KV stays under the watermark, quadratic above, infinite where it cannot fit;
- network: KV or activations that must cross nodes, over the rate that is free (where the spec gives them);
- penalty: 1 / (weight x slow-start share), and suspicion (A4);
- away: with several gateways, each replica is the home of one; a small toll on the others' (X2).

:func:`terms` is the definition. The ``entropy`` policy inlines it for speed; a test holds the two together.
"""

from __future__ import annotations

import math

from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaState

__all__ = ["cost", "literal_score", "memory_s", "terms"]


def memory_s(state: ReplicaState, kv_need: float) -> float:
    """Cost of the KV cache in seconds, for a request that will hold ``kv_need`` tokens at its end."""
    if not state.kv_max:
        return 0.0
    after = state.kv_predicted + kv_need
    if after <= state.kv_limit:
        return 0.0
    if kv_need > state.kv_max:
        return math.inf
    over = (after - state.kv_limit) / max(state.kv_max - state.kv_limit, 1.0)
    return state.config.memory_steep_s * over * over


def network_s(state: ReplicaState, tokens: float) -> float:
    """Seconds for what the prompt must send between nodes, over the bandwidth that is free now (A1)."""
    spec = state.spec
    if not spec.net_bytes_per_token or not spec.net_mb_s_max:
        return 0.0
    used = state.last_report.net_mb_s if state.report_fresh and state.last_report else None
    free = max(spec.net_mb_s_max - (used or 0.0), 0.05 * spec.net_mb_s_max)
    return tokens * spec.net_bytes_per_token / (free * 1e6)


def terms(state: ReplicaState, facts: RequestFacts, cached_tokens: float, now: float) -> dict[str, float]:
    """Every term of the cost, in seconds, before the penalty; plus the penalty itself."""
    tokens = max(facts.prompt_tokens - cached_tokens, 1.0)
    return {
        "queued_s": state.backlog_s(now),
        "prefill_s": state.prefill_s(tokens),
        "decode_s": state.decode_s,
        "stall_s": state.prefill_s(tokens) * (state.stall - 1.0),
        "memory_s": memory_s(state, facts.prompt_tokens + facts.output_tokens),
        "network_s": network_s(state, tokens),
        "failure_s": state.failure_cost_s,
        "away_s": state.away_s,
        "penalty": state.penalty,
    }


def cost(state: ReplicaState, facts: RequestFacts, cached_tokens: float, now: float) -> float:
    """The entropy in seconds; an operator's forced score replaces it (A3)."""
    if state.forced is not None:
        return state.forced
    t = terms(state, facts, cached_tokens, now)
    work = t["queued_s"] + t["prefill_s"] + t["stall_s"] + t["decode_s"] + t["network_s"]
    return work * t["penalty"] + t["memory_s"] + t["failure_s"] + t["away_s"]


def literal_score(state: ReplicaState) -> tuple[float, bool]:
    """The text's recipe (A1): weighted sum over the last report. Also whether all its signals were known.

    KV is taken in GB where the report says how much memory is free, else as the share in use.
    """
    report, config = state.last_report, state.config
    if report is None or not state.report_fresh:
        return 0.0, False
    known = report.kv_use is not None and report.kv_age_ms is not None and report.net_mb_s is not None
    kv = (report.kv_use or 0.0) * (state.kv_max or 1.0) * state.spec.kv_bytes_per_token / 1e9
    if not state.spec.kv_bytes_per_token:
        kv = report.kv_use or 0.0
    age_s = (report.kv_age_ms or 0.0) / 1000.0
    score = config.literal_kv_gb * kv + config.literal_age_s * age_s + config.literal_net_mb * (report.net_mb_s or 0.0)
    return score, known
