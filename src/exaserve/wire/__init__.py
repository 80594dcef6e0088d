"""What node agents and gateways say to each other: frames, proof of the shared token, telemetry batches. No I/O."""

from exaserve.wire.batch import NO_CHANGE, Batch, decode_batch, encode_batch
from exaserve.wire.link import Kind, Link, WireError
from exaserve.wire.messages import Card, Figures, Picture, ReplicaState, Result, Verb, Watch, decode, encode

__all__ = [
    "NO_CHANGE",
    "Batch",
    "Card",
    "Figures",
    "Kind",
    "Link",
    "Picture",
    "ReplicaState",
    "Result",
    "Verb",
    "Watch",
    "WireError",
    "decode",
    "decode_batch",
    "encode",
    "encode_batch",
]
