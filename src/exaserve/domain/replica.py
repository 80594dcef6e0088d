"""Replicas: what is configured of one, and what one reports of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import msgspec

__all__ = ["ModelCard", "ReplicaId", "ReplicaSpec", "Report"]

ReplicaId = NewType("ReplicaId", str)


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One running engine instance at one address, as discovery or the cluster file gives it.

    Attributes:
        id: stable name, such as ``node3/r7`` or ``127.0.0.1:8001``; unique in the cluster.
        url: ``http://host:port`` with no path.
        models: names this replica answers for; empty until ``/v1/models`` has been asked.
        version: release the replica belongs to, as status shows it; traffic is not divided by it.
        node: machine it runs on, "" if unknown.
        engine: key of :data:`exaserve.engines.ENGINES`; "auto" finds it out from the replica's metrics.
        weight: share of traffic relative to equal replicas, 0 takes it out, 1 is normal.
        max_model_len: longest prompt + output in tokens, 0 if unknown.
        max_num_seqs: sequences the engine runs at once, 0 if unknown.
        kv_tokens_max: KV cache capacity in tokens, 0 if unknown (then taken from the report).
        prefill_tokens_per_s: calibrated prefill rate, 0 if unknown (then learned from first bytes).
        decode_step_s: calibrated time of one decode step at batch 1, 0 if unknown.
        kv_bytes_per_token: KV cache bytes one token takes on all ranks, 0 if unknown.
    """

    id: ReplicaId
    url: str
    models: tuple[str, ...] = ()
    version: str = ""
    node: str = ""
    engine: str = "auto"
    weight: float = 1.0
    max_model_len: int = 0
    max_num_seqs: int = 0
    kv_tokens_max: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0
    kv_bytes_per_token: float = 0.0


class ModelCard(msgspec.Struct, frozen=True):
    """What an engine lists of one model in ``/v1/models``. Engines of other makes leave out what they do not have.

    Attributes:
        max_model_len: longest prompt + output in tokens.
        root: what was loaded: a folder or a name on a hub.
        parent: of an adapter, the model that it adapts.
    """

    id: str
    max_model_len: int | None = None
    root: str | None = None
    parent: str | None = None


class Report(msgspec.Struct, frozen=True, gc=False):
    """One replica's telemetry at one instant. ``None`` means unknown, which is never zero.

    A struct, since thousands are made each second: a frozen dataclass of this size costs five times as much to make.

    Attributes:
        replica: whose.
        seq: grows with every report of this replica from this source; older ones are ignored.
        taken_at: when the figures were true, seconds on the *receiver's* monotonic clock
            (receive time minus the age that the source measured on its own clock).
        running / waiting: requests in the batch / queued in the engine.
        kv_use: share of KV blocks in use, 0..1.
        kv_tokens_max: KV capacity in tokens.
        *_total: counters since the engine started.
        free_mem_gb: free accelerator memory, GB.
        kv_age_ms: mean time since the first token of what the cache holds, ms.
        net_mb_s: network traffic, MB/s, mean over 5 s.
        asleep: vLLM's sleep mode.
        missing: names of signals this engine should have and did not give.
    """

    replica: ReplicaId
    seq: int
    taken_at: float
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    kv_tokens_max: int | None = None
    preemptions_total: float | None = None
    prefix_hits_total: float | None = None
    prefix_queries_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    free_mem_gb: float | None = None
    kv_age_ms: float | None = None
    net_mb_s: float | None = None
    asleep: bool | None = None
    missing: tuple[str, ...] = ()
