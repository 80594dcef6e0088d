"""What is said rarely: replicas with their states, a machine's figures, verbs and their results. MessagePack, by
position."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from exaserve.wire.link import WireError

__all__ = [
    "CARDS_MAX",
    "EXIT_CAUSES",
    "VERBS",
    "AgentReplicaState",
    "AgentReport",
    "Card",
    "MachineFigures",
    "Verb",
    "VerbName",
    "VerbResult",
    "Watch",
    "decode",
    "encode",
]

VerbName = Literal["start", "stop", "drain", "resume", "restart", "logs"]
VERBS: tuple[VerbName, ...] = ("start", "stop", "drain", "resume", "restart", "logs")
"""All that a gateway may ask of an agent. Nothing else is ever executed."""
CARDS_MAX = 64
"""Accelerators of one machine that are told of."""
EXIT_CAUSES = (
    "damaged weights",
    "weights are not there",
    "wrong arguments",
    "program not found",
    "out of accelerator memory",
    "port in use",
    "NCCL",
    "accelerator lost",
    "engine process died",
    "other",
)
"""Why an engine ended, by its last words; "other" where they say none of these."""
WATCHES_MAX = 4096
_M = TypeVar("_M")


class AgentReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """One replica as its agent sees it.

    Attributes:
        index: its place in this connection's batches.
        id / url / models / version / engine: as in :class:`exaserve.domain.ReplicaSpec`.
        max_model_len / max_num_seqs / kv_tokens_max / prefill_tokens_per_s / decode_step_s: likewise.
        state: name of the life-cycle state, such as ``ready``.
        ready: whether it may take requests: it is in the state ``ready`` and its last probe was good.
        reason: what brought it there, in words.
        restarts: restarts after a failure since the agent began.
        missing: signals that the engine should give and does not.
        pid: of the engine, 0 without a process of its own.
        exits: ends that nobody had asked for since the agent began, by cause.
    """

    index: int
    id: str
    url: str
    models: tuple[str, ...] = ()
    version: str = ""
    engine: str = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 0
    kv_tokens_max: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0
    state: str = ""
    ready: bool = False
    reason: str = ""
    restarts: int = 0
    missing: tuple[str, ...] = ()
    pid: int = 0
    exits: tuple[tuple[str, int], ...] = ()


class AgentReport(msgspec.Struct, frozen=True, array_like=True):
    """Replicas of a node: all of them where ``full``, else those that changed."""

    full: bool
    replicas: tuple[AgentReplicaState, ...]
    gone: tuple[str, ...] = ()


class Card(msgspec.Struct, frozen=True, array_like=True):
    """One accelerator, rounded so that noise is not told; None where the machine does not say.

    Attributes:
        free_gb / total_gb: memory, GB (10^9 bytes).
        use: share of the last period in which a kernel ran, 0..1.
        celsius: of the chip.
        ecc_errors: uncorrected, since the last reboot.
        throttled: whether clocks are held down by heat or power.
    """

    free_gb: float | None = None
    total_gb: float | None = None
    use: float | None = None
    celsius: float | None = None
    ecc_errors: int | None = None
    throttled: bool | None = None


class Watch(msgspec.Struct, frozen=True, array_like=True):
    """Something that a watch finds wrong with a replica now, with its figures in words."""

    replica: str
    name: str
    detail: str


class MachineFigures(msgspec.Struct, frozen=True, array_like=True):
    """A node's own figures.

    Attributes:
        cards: in the machine's order.
        net_mb_s: network traffic, mean over 5 s.
        problem: why there are no cards, "" where that is no problem.
        watches: what is wrong now.
        slopes: growth of engines' memory, MB/h, by replica, where a slope is known.
    """

    cards: Annotated[tuple[Card, ...], msgspec.Meta(max_length=CARDS_MAX)] = ()
    net_mb_s: float | None = None
    problem: str = ""
    watches: Annotated[tuple[Watch, ...], msgspec.Meta(max_length=WATCHES_MAX)] = ()
    slopes: Annotated[dict[str, float], msgspec.Meta(max_length=WATCHES_MAX)] = {}


class Verb(msgspec.Struct, frozen=True, array_like=True):
    """A request of a gateway. ``replica`` "" means every replica of the node; ``lines_max`` is for ``logs``."""

    ref: int
    name: VerbName
    replica: str = ""
    lines_max: int = 100
    drain_s: float = -1.0


class VerbResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a verb: ``lines`` of a log, or one line for each replica on what is being done."""

    ref: int
    ok: bool
    message: str = ""
    lines: tuple[str, ...] = ()


def encode(message: AgentReport | MachineFigures | Verb | VerbResult) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(payload: bytes, kind: type[_M]) -> _M:
    """WireError where the payload is not such a message."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a {kind.__name__.lower()}: {error}") from None
