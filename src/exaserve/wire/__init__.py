"""What node agents and gateways say to each other, and gateways among themselves: proof of a shared token, frames.

Pure but for :mod:`exaserve.wire.protocol`, which puts a link on an asyncio transport, and :mod:`exaserve.wire.tls`.
"""

from exaserve.wire.batch import NO_CHANGE, NodeBatch, decode_batch, encode_batch
from exaserve.wire.link import FrameKind, Hello, WireError, WireLink
from exaserve.wire.messages import (
    AgentReplicaState,
    AgentReport,
    Card,
    MachineFigures,
    Verb,
    VerbResult,
    Watch,
    decode,
    encode,
)

__all__ = [
    "NO_CHANGE",
    "AgentReplicaState",
    "AgentReport",
    "Card",
    "FrameKind",
    "Hello",
    "MachineFigures",
    "NodeBatch",
    "Verb",
    "VerbResult",
    "Watch",
    "WireError",
    "WireLink",
    "decode",
    "decode_batch",
    "encode",
    "encode_batch",
]
