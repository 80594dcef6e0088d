"""A replica as the admin API shows it."""

from __future__ import annotations

import math
from typing import Any

from exaserve.gateway.fleet.gauges import entropy_terms
from exaserve.gateway.fleet.telemetry import TelemetryView
from exaserve.scheduling import ReplicaLedger
from exaserve.serving.fleet import Fleet

__all__ = ["finite", "replica_row"]


def finite(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if value is not None and math.isinf(value) else value


def replica_row(
    fleet: Fleet,
    polling: TelemetryView,
    word: dict[str, object] | None,
    state: ReplicaLedger,
    requests: int,
    now: float,
) -> dict[str, Any]:
    """One row of ``GET /replicas``; ``word`` is its agent's, ``requests`` those finished so far."""
    spec = state.spec
    health = fleet.view(state.id, now)
    report = state.seen.report if state.seen.fresh else None
    return {
        "id": state.id,
        "url": state.url,
        "node": spec.node,
        "version": spec.version,
        "models": spec.models,
        "engine": polling.engine or spec.engine,
        "state": health.state,
        "state_for_s": now - health.since,
        "reason": health.reason,
        "agent": word,
        "eligible": state.eligible,
        "why_not": state.standing.why_not(),
        "draining": state.standing.draining,
        "weight": state.standing.weight,
        "forced_score": finite(state.standing.forced),
        "share": state.standing.ramp if state.standing.available else 0.0,
        "suspect": state.id in fleet.suspects,
        "ejections": health.ejections,
        "consecutive_failures": health.consecutive_failures,
        "last_failure": health.last_failure,
        "probe_latency_s": health.probe_latency_s,
        "inflight": state.inflight,
        "requests_total": requests,
        "ledger": {
            "told": state.told,
            "pending": len(state.pending),
            "pending_s": state.pending_s,
            "decoding": state.decoding,
            "kv_tokens": state.kv.own,
            "placed_total": state.placed_total,
        },
        "running": report.running if report else None,
        "waiting": report.waiting if report else None,
        "kv_use": report.kv_use if report else None,
        "prefix_hits_total": report.prefix_hits_total if report else None,
        "prefix_queries_total": report.prefix_queries_total if report else None,
        "kv_tokens_max": int(state.kv.max) or None,
        "report_age_s": state.report_age(now),
        "signals_missing": polling.missing,
        "telemetry_error": polling.error,
        "prefill_tokens_per_s": 1.0 / state.per_token_s,
        "entropy": {term: finite(value) for term, value in entropy_terms(state, now).items()},
    }
