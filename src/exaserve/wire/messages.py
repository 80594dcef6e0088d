"""What is said rarely: replicas with their states, verbs and their results. MessagePack, by position."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from exaserve.wire.link import WireError

__all__ = ["VERBS", "Picture", "ReplicaState", "Result", "Verb", "VerbName", "decode", "encode"]

VerbName = Literal["start", "stop", "drain", "resume", "restart", "logs"]
VERBS: tuple[VerbName, ...] = ("start", "stop", "drain", "resume", "restart", "logs")
"""All that a gateway may ask of an agent. Nothing else is ever executed."""
_M = TypeVar("_M")


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """One replica as its agent sees it.

    Attributes:
        index: its place in this connection's batches.
        id / url / models / version / engine: as in :class:`exaserve.domain.ReplicaSpec`.
        max_model_len / max_num_seqs / kv_tokens_max / prefill_tokens_per_s / decode_step_s: likewise.
        state: name of the life-cycle state, such as ``ready``.
        ready: whether it may take requests: it is in the state ``ready`` and its last probe was good.
        reason: what brought it there, in words.
        since_s: seconds it has been in that state, by the agent's clock.
        restarts: restarts after a failure since the agent began.
        missing: signals that the engine should give and does not.
        loras: adapters now loaded.
        pid: of the engine, 0 without a process of its own.
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
    since_s: float = 0.0
    restarts: int = 0
    missing: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    pid: int = 0


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """Replicas of a node: all of them where ``full``, else those that changed.

    ``node`` holds figures of the machine for people (accelerators, network rates), by name.
    """

    full: bool
    replicas: tuple[ReplicaState, ...]
    gone: tuple[str, ...] = ()


class Verb(msgspec.Struct, frozen=True, array_like=True):
    """A request of a gateway. ``replica`` "" means every replica of the node; ``lines_max`` is for ``logs``."""

    ref: int
    name: VerbName
    replica: str = ""
    lines_max: int = 100
    drain_s: float = -1.0


class Result(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a verb: ``lines`` of a log, or one line for each replica on what is being done."""

    ref: int
    ok: bool
    message: str = ""
    lines: tuple[str, ...] = ()


def encode(message: Picture | Verb | Result) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(payload: bytes, kind: type[_M]) -> _M:
    """WireError where the payload is not such a message."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a {kind.__name__.lower()}: {error}") from None
