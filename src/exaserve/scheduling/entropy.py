# compiled
"""Entropy: predicted seconds of work a replica has before it can serve a request, and that the request adds.

``entropy = (prefill + stall + decode) x penalty + memory + failures + away`` with

- prefill: seconds for the prompts queued ahead, minus what has drained, + for this prompt's tokens not in the prefix
  cache, by the replica's measured speed;
- stall: what this prefill costs others, as multiples of itself: ``stall_weight`` for each ``running`` sequence whose
  tokens wait for it, ``join_weight`` where prompts without a first token share its steps, and ``away_weight`` on other
  gateways' homes;
- decode: what joining that batch costs this request and the batch;
- memory: 0 while predicted KV stays under the watermark, quadratic above, infinite where it cannot fit;
- penalty: 1 / (weight x slow-start share), and suspicion;
- away: with several gateways, each replica is the home of one; a small toll on the others'.

:func:`terms` is the definition. The ``entropy`` policy inlines it for speed; a test holds the two together.
"""

from __future__ import annotations

import math

from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaLedger

__all__ = ["cost", "literal_score", "memory_s", "terms"]


def memory_s(ledger: ReplicaLedger, kv_need: float) -> float:
    """Cost of the KV cache in seconds, for a request that will hold ``kv_need`` tokens at its end."""
    if not ledger.kv.max:
        return 0.0
    after = ledger.kv.predicted + kv_need
    if after <= ledger.kv.limit:
        return 0.0
    if kv_need > ledger.kv.max:
        return math.inf
    over = (after - ledger.kv.limit) / max(ledger.kv.max - ledger.kv.limit, 1.0)
    return ledger.prices.config.memory_steep_s * over * over


def terms(ledger: ReplicaLedger, facts: RequestFacts, cached_tokens: float, now: float) -> dict[str, float]:
    """Every term of the cost, in seconds, before the penalty; plus the penalty itself."""
    tokens = max(facts.prompt_tokens - cached_tokens, 1.0)
    return {
        "queued_s": ledger.backlog_s(now),
        "prefill_s": ledger.prefill_s(tokens),
        "decode_s": ledger.decode_s,
        "stall_s": ledger.prefill_s(tokens) * (ledger.stall - 1.0),
        "memory_s": memory_s(ledger, facts.prompt_tokens + facts.output_tokens),
        "failure_s": ledger.failure_cost_s,
        "away_s": ledger.turf.away_s,
        "penalty": ledger.penalty,
    }


def cost(ledger: ReplicaLedger, facts: RequestFacts, cached_tokens: float, now: float) -> float:
    """The entropy in seconds; an operator's forced score replaces it."""
    if ledger.standing.forced is not None:
        return ledger.standing.forced
    t = terms(ledger, facts, cached_tokens, now)
    work = t["queued_s"] + t["prefill_s"] + t["stall_s"] + t["decode_s"]
    return work * t["penalty"] + t["memory_s"] + t["failure_s"] + t["away_s"]


def literal_score(ledger: ReplicaLedger) -> tuple[float, bool]:
    """The text's recipe: weighted sum over the last report. Also whether all its signals were known.

    Memory counts as KV in use, in GB where the bytes of a token are known and else as the share, less the accelerator
    memory that is free beside it, in GB, where it is reported.
    """
    report, config = ledger.seen.report, ledger.prices.config
    if report is None or not ledger.seen.fresh:
        return 0.0, False
    known = report.kv_use is not None and report.kv_age_ms is not None and report.net_mb_s is not None
    kv = (report.kv_use or 0.0) * (ledger.kv.max or 1.0) * ledger.spec.kv_bytes_per_token / 1e9
    if not ledger.spec.kv_bytes_per_token:
        kv = report.kv_use or 0.0
    kv -= report.free_mem_gb or 0.0
    age_s = (report.kv_age_ms or 0.0) / 1000.0
    score = config.literal_kv_gb * kv + config.literal_age_s * age_s + config.literal_net_mb * (report.net_mb_s or 0.0)
    return score, known
