"""What a gateway keeps of each replica that an agent speaks of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.wire import AgentReplicaState
from exaserve.wire.messages import EXIT_CAUSES

__all__ = ["Row", "RowOwner", "grown_exits", "merged"]


class RowOwner(Protocol):
    """The connection that speaks for a replica."""

    node: str
    replaced: bool


class Row:
    """One replica.

    Attributes:
        announced: whether only an agent knows of it (else the cluster file does too).
        owner: the connection that speaks for it, None while its agent is lost.
        ready / state / reason / restarts / pid: as last told.
        told: what its agent last said of it.
        drained: whether we took it out of rotation because its agent drains it.
    """

    __slots__ = (
        "announced",
        "drained",
        "id",
        "index",
        "lost_at",
        "node",
        "owner",
        "pid",
        "ready",
        "reason",
        "restarts",
        "state",
        "told",
    )

    def __init__(self, replica: ReplicaId, node: str, *, announced: bool) -> None:
        self.id = replica
        self.node = node
        self.announced = announced
        self.owner: RowOwner | None = None
        self.told: AgentReplicaState | None = None
        self.index = 0
        self.ready = False
        self.state = ""
        self.reason = ""
        self.restarts = 0
        self.pid = 0
        self.drained = False
        self.lost_at = 0.0

    def as_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "state": self.state,
            "ready": self.ready,
            "reason": self.reason,
            "restarts": self.restarts,
            "pid": self.pid,
        }


def grown_exits(before: tuple[tuple[str, int], ...], now: tuple[tuple[str, int], ...]) -> Iterator[tuple[str, int]]:
    """By how much an agent's counts have grown; one that fell is of an agent that began anew."""
    known = dict(before)
    for cause, count in now:
        grown = count - known.get(cause, 0)
        if grown:
            yield cause if cause in EXIT_CAUSES else "other", grown if grown > 0 else count


def merged(known: ReplicaSpec | None, state: AgentReplicaState, node: str) -> ReplicaSpec:
    """The replica's description: the agent's word where it has one, else what the cluster file says."""
    base = known if known is not None else ReplicaSpec(id=ReplicaId(state.id), url=state.url)
    return replace(
        base,
        url=state.url,
        node=node,
        models=state.models or base.models,
        version=state.version or base.version,
        engine=base.engine if known is not None else state.engine,
        max_model_len=state.max_model_len or base.max_model_len,
        max_num_seqs=state.max_num_seqs or base.max_num_seqs,
        kv_tokens_max=state.kv_tokens_max or base.kv_tokens_max,
        prefill_tokens_per_s=state.prefill_tokens_per_s or base.prefill_tokens_per_s,
        decode_step_s=state.decode_step_s or base.decode_step_s,
    )
