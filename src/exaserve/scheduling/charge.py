# compiled
"""One request on a replica's books, from its placement to its release."""

from __future__ import annotations

from typing import Final

__all__ = ["Charge"]


class Charge:
    """What a :class:`~exaserve.scheduling.ledger.ReplicaLedger` holds of a request.

    Attributes:
        placed_at: seconds, monotonic.
        tokens: prompt tokens believed not to be in the replica's prefix cache.
        work_s: seconds of prefill those tokens are believed to take there.
        kv_tokens: KV tokens charged (prompt and expected output).
        stream: whether a first byte will be seen before the last.
        foreign: another gateway placed it and told us.
        phase: where it stands, only ever forward. A plain answer shows no first token: once its prefill must be over it
            is ASSUMED to be decoded, until it ends.
    """

    __slots__ = ("foreign", "kv_tokens", "phase", "placed_at", "stream", "tokens", "work_s")

    PENDING: Final = 0
    ASSUMED: Final = 1
    DECODING: Final = 2
    RELEASED: Final = 3

    def __init__(
        self, placed_at: float, tokens: int, work_s: float, kv_tokens: int, stream: bool, foreign: bool
    ) -> None:
        self.placed_at = placed_at
        self.tokens = tokens
        self.work_s = work_s
        self.kv_tokens = kv_tokens
        self.stream = stream
        self.foreign = foreign
        self.phase = Charge.PENDING
