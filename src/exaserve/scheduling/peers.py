# compiled
"""What gateways know of each other's placements (X2).

Gateways share nothing but discovery, yet each places work on the same replicas. Reports show the others' work late:
a prompt that another gateway placed 5 ms ago is in no report, and a short request sent behind it waits for seconds.
Two cures, both soft state that may be lost at any time:

- **Told placements.** A gateway tells its peers of each placement, first token and end; here they are charged to the
  same ledger, in the same queue, as our own. A peer that is lost takes its placements with it.
- **Homes.** Each replica is the home of one gateway (rendezvous hashing over the gateways' names, so that all agree and
  a change of one moves only its own). Other gateways pay a small toll for it, so that two of them, deciding within the
  time a message needs, choose different idle replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.placement import Placement

__all__ = ["TOLD_MAX", "Peers", "home_of"]

TOLD_MAX = 65_536
"""Placements of one peer that are remembered; above it the oldest is let go (the peer has forgotten to end it)."""


def home_of(replica: ReplicaId, gateways: Sequence[str]) -> str:
    """The gateway whose home ``replica`` is: the highest hash of the pair wins."""
    return max(gateways, key=lambda g: _weight(g, replica))


def _weight(gateway: str, replica: ReplicaId) -> bytes:
    return blake2b(f"{gateway}|{replica}".encode(), digest_size=8).digest()


class Peers:
    """Other gateways' placements, by peer and by the reference number the peer gave them."""

    __slots__ = ("_told", "gateways", "own", "untold")

    def __init__(self) -> None:
        self.own = ""
        self.gateways: tuple[str, ...] = ()
        self.untold = False
        """Others place work here as well whose placements we do not know."""
        self._told: dict[str, dict[int, Placement]] = {}

    def __len__(self) -> int:
        return sum(len(told) for told in self._told.values())

    def rank(self, replica: ReplicaId) -> float:
        """0 where ``replica`` is this gateway's home, up to 1 where it is everybody else's before."""
        others = len(self.gateways) - 1
        if others < 1:
            return 0.0
        own = _weight(self.own, replica)
        return sum(_weight(g, replica) > own for g in self.gateways) / others

    def placed(
        self, peer: str, ref: int, state: ReplicaState, tokens: int, kv_tokens: int, stream: bool, placed_at: float
    ) -> None:
        """``peer`` has placed a request; a reference already known is replaced.

        Times told are a little in the past. Nothing is dated before the replica's last sign of progress, from which the
        drain of its queue and its speed are reckoned.
        """
        placed_at = max(placed_at, state.drain_at)
        told = self._told.setdefault(peer, {})
        if ref in told:
            self.done(peer, ref, placed_at)
        elif len(told) >= TOLD_MAX:
            self.done(peer, next(iter(told)), placed_at)
        placement = Placement(
            state, "", placed_at, 0.0, tokens, state.prefill_s(tokens), 0, kv_tokens, stream, 0, foreign=True
        )
        state.charge(placement, placed_at)
        told[ref] = placement

    def first_token(self, peer: str, ref: int, now: float) -> None:
        placement = self._told.get(peer, {}).get(ref)
        if placement is not None:
            placement.state.first_token(placement, max(now, placement.state.drain_at))

    def done(self, peer: str, ref: int, now: float) -> None:
        placement = self._told.get(peer, {}).pop(ref, None)
        if placement is not None:
            placement.state.release(placement, max(now, placement.state.drain_at), Outcome.REJECTED)

    def count(self, peer: str) -> int:
        """Placements of ``peer`` now charged here."""
        return len(self._told.get(peer, ()))

    def lost(self, peer: str, now: float) -> None:
        """The connection to ``peer`` is gone: what it told is known no longer."""
        for placement in self._told.pop(peer, {}).values():
            placement.state.release(placement, now, Outcome.REJECTED)

    def placements(self) -> Iterable[Placement]:
        for told in self._told.values():
            yield from told.values()

    def validate(self) -> None:
        for told in self._told.values():
            assert len(told) <= TOLD_MAX
            assert all(p.foreign and p.phase != Placement.RELEASED for p in told.values())
