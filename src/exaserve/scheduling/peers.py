# compiled
"""What gateways know of each other's placements.

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

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome
from exaserve.scheduling.charge import Charge
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.membership import Membership
from exaserve.scheduling.placement import Placement
from exaserve.scheduling.turf import Turf

__all__ = ["TOLD_MAX", "Peers", "home_of"]

_DEAL_HASHES = 256
"""Pairs of gateway and replica that are weighed in one piece, 2 to 4 µs each."""
_FOREIGN_STEP = 0.02
"""Weight of one report in the running share of foreign requests: about the last 50 reports count."""
TOLD_MAX = 65_536
"""Placements of one peer that are remembered; above it the oldest is let go (the peer has forgotten to end it)."""


def home_of(replica: ReplicaId, gateways: Sequence[str]) -> str:
    """The gateway whose home ``replica`` is: the highest hash of the pair wins."""
    return max(gateways, key=lambda g: _weight(g, replica))


def _weight(gateway: str, replica: ReplicaId) -> bytes:
    return blake2b(f"{gateway}|{replica}".encode(), digest_size=8).digest()


class Peers:
    """Other gateways: their names, their placements here by the reference number they gave them, and what reports show
    of those that tell us nothing.

    Attributes:
        own / gateways: this gateway's name, and the names of all that place work on these replicas.
        untold: others place work here as well whose placements we do not know.
        foreign_share: running share of the replicas' requests that this gateway did not place, 0..1.
    """

    __slots__ = ("_config", "_members", "_told", "foreign_share", "gateways", "own", "untold")

    def __init__(self, config: SchedulerConfig, members: Membership) -> None:
        self._config = config
        self._members = members
        self._told: dict[str, dict[int, Placement]] = {}
        self.own = ""
        self.gateways: tuple[str, ...] = ()
        self.untold = False
        self.foreign_share = 0.0

    def __len__(self) -> int:
        return sum(len(told) for told in self._told.values())

    # -- homes -----------------------------------------------------------------------------------------------------

    def set_gateways(self, own: str, gateways: Sequence[str], *, untold: bool = False) -> None:
        """Name the gateways that place work on these replicas, this one (``own``) among them.

        Args:
            untold: others place work here too that do not tell us theirs, or too late: lean as if there were no peers.
        """
        for _ in self.dealing(own, gateways, untold=untold):
            pass

    def dealing(self, own: str, gateways: Sequence[str], *, untold: bool = False) -> Iterator[None]:
        """As :meth:`set_gateways` in pieces of about a millisecond, between which anything else may be done: with
        thousands of replicas the whole takes long enough to delay tokens."""
        self.own = own
        self.gateways = tuple(sorted({own, *gateways}))
        self.untold = untold
        ledgers = list(self._members.ledgers.values())
        piece = max(1, _DEAL_HASHES // len(self.gateways))
        for start in range(0, len(ledgers), piece):
            for ledger in ledgers[start : start + piece]:
                if not ledger.standing.removed:
                    ledger.turf.set_rank(self.rank(ledger.id))
                    self._members.settle(ledger)
            for pool in self._members.pools.values():
                pool.changed()
            yield

    def rank(self, replica: ReplicaId) -> float:
        """0 where ``replica`` is this gateway's home, up to 1 where it is everybody else's before."""
        others = len(self.gateways) - 1
        if others < 1:
            return 0.0
        own = _weight(self.own, replica)
        return sum(_weight(g, replica) > own for g in self.gateways) / others

    def away(self, turf: Turf) -> float:
        """The toll on a replica in mean prefill times: on a peer's home; or by chance, always the same, where reports
        show work of gateways that do not tell us theirs."""
        if not turf.home:
            return self._config.away_share * turf.toll
        told = self.gateways and not self.untold
        if told or self.foreign_share < self._config.foreign_share:
            return 0.0
        return turf.lean * self._config.lean_share

    def saw(self, foreign: int, own: int) -> None:
        """A report shows ``foreign`` requests beside ``own`` ones."""
        total = own + foreign
        if total:
            self.foreign_share += _FOREIGN_STEP * (foreign / total - self.foreign_share)

    # -- what they tell --------------------------------------------------------------------------------------------

    def placed(
        self, peer: str, ref: int, replica: ReplicaId, tokens: int, kv_tokens: int, stream: bool, placed_at: float
    ) -> None:
        """``peer`` has placed a request of ``tokens`` uncached prompt tokens; a reference already known is replaced.

        Unknown replicas are ignored. Times told are a little in the past. Nothing is dated before the replica's last
        sign of progress, from which the drain of its queue and its speed are reckoned.
        """
        ledger = self._members.ledgers.get(replica)
        if ledger is None:
            return
        placed_at = max(placed_at, ledger.drain_at)
        told = self._told.setdefault(peer, {})
        if ref in told:
            self.done(peer, ref, placed_at)
        elif len(told) >= TOLD_MAX:
            self.done(peer, next(iter(told)), placed_at)
        placement = Placement(
            ledger, "", placed_at, 0.0, tokens, ledger.prefill_s(tokens), 0, kv_tokens, stream, 0, "", foreign=True
        )
        ledger.charge(placement, placed_at)
        told[ref] = placement

    def first_token(self, peer: str, ref: int, now: float) -> None:
        placement = self._told.get(peer, {}).get(ref)
        if placement is not None:
            placement.ledger.first_token(placement, max(now, placement.ledger.drain_at))

    def done(self, peer: str, ref: int, now: float) -> None:
        placement = self._told.get(peer, {}).pop(ref, None)
        if placement is not None:
            placement.ledger.release(placement, max(now, placement.ledger.drain_at), Outcome.REJECTED)

    def count(self, peer: str) -> int:
        """Placements of ``peer`` now charged here."""
        return len(self._told.get(peer, ()))

    def lost(self, peer: str, now: float) -> None:
        """The connection to ``peer`` is gone: what it told is known no longer."""
        for placement in self._told.pop(peer, {}).values():
            placement.ledger.release(placement, now, Outcome.REJECTED)

    def validate(self) -> None:
        told = {id(ledger): 0 for ledger in self._members.ledgers.values()}
        for placements in self._told.values():
            assert len(placements) <= TOLD_MAX
            for placement in placements.values():
                assert placement.foreign
                assert placement.phase != Charge.RELEASED
                if id(placement.ledger) in told:
                    told[id(placement.ledger)] += 1
        assert all(ledger.told == told[id(ledger)] for ledger in self._members.ledgers.values())
