"""How long peers are waited for, and how much is kept for them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PeeringBounds"]


@dataclass(frozen=True, slots=True)
class PeeringBounds:
    """One set for all connections of a gateway.

    Attributes:
        heartbeat_s: between two signs of life to a peer that nothing is told.
        silence_max_s: silence after which a peer is gone: with the check each ``tick_s``, within 2 s of its last sign
            of life.
        tick_s: between two looks at all connections.
        handshake_s: a connection that has not proved itself after so long is closed.
        connect_s: TCP connect to a peer.
        backoff_s: pauses between attempts to reach a peer, the last of them again and again; each is spread by half:
            gateways started together do not dial in step.
        unreachable_after_s: a peer that takes no connection for so long is told of: gateways of a cluster do not start
            in the same instant.
        homes_pause_s: homes are dealt out anew this long after a peer came or went, once for several that come
            together.
        connections_max: connections to the peer port, known or not.
        buffer_bytes_max: bytes waiting for one slow peer (1 MiB is about 50,000 events); above it events are left out
            and the snapshot sent later.
    """

    heartbeat_s: float = 0.4
    silence_max_s: float = 1.5
    tick_s: float = 0.2
    handshake_s: float = 2.0
    connect_s: float = 2.0
    backoff_s: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    unreachable_after_s: float = 5.0
    homes_pause_s: float = 0.05
    connections_max: int = 256
    buffer_bytes_max: int = 1_048_576
