# compiled
"""Who is a member: replicas' ledgers, the pools by model, the idle among them, and kinds of replicas."""

from __future__ import annotations

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.idle import IdleSet
from exaserve.scheduling.learning import PrefillModel
from exaserve.scheduling.ledger import EventPrices, ReplicaLedger
from exaserve.scheduling.pool import ModelPool
from exaserve.scheduling.prefix import PrefixIndex

__all__ = ["Membership"]

_IDLE_SETS_MAX = 64
"""Sets of idle replicas above which those that nobody stands in any more are forgotten when another one is made."""


class Membership:
    """Attributes:

    ledgers: every known replica's, up or down.
    pools: by the models they serve; one that nobody serves any more is gone.
    prefix: which of them hold which prompts' beginnings.
    """

    __slots__ = ("_config", "_idle", "_next_index", "_prices", "_speeds", "ledgers", "pools", "prefix")

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._prices = EventPrices(config)
        self.ledgers: dict[ReplicaId, ReplicaLedger] = {}
        self.pools: dict[str, ModelPool] = {}
        self.prefix = PrefixIndex(config.prefix_entries_max)
        self._idle: dict[tuple[tuple[str, ...], bool], IdleSet[ReplicaLedger]] = {}
        self._speeds: dict[tuple[str, tuple[str, ...], float], PrefillModel] = {}
        self._next_index = 0

    def add(self, spec: ReplicaSpec, now: float, rank: float, lean: float) -> None:
        """``rank``: how many gateways come before this one there; ``lean``: this one's leaning to it, both 0..1."""
        if spec.id in self.ledgers:
            raise ValueError(f"replica {spec.id!r} is already known")
        ledger = ReplicaLedger(spec, self._prices, now, self._take_index(), self._speed_of(spec), lean)
        ledger.turf.set_rank(rank)
        self.ledgers[spec.id] = ledger
        self.settle(ledger)
        for model in spec.models:
            self._join(model, ledger)

    def update(self, spec: ReplicaSpec) -> None:
        ledger = self.ledgers[spec.id]
        before = set(ledger.spec.models)
        ledger.set_spec(spec, self._speed_of(spec))
        for model in before - set(spec.models):
            self._leave(model, ledger)
        for model in spec.models:
            if model not in before:
                self._join(model, ledger)
        self.settle(ledger)
        self.changed(ledger)

    def remove(self, replica: ReplicaId) -> None:
        ledger = self.ledgers.pop(replica)
        ledger.standing.removed = True
        ledger.stand()
        ledger.stand_in(None)
        for model in ledger.spec.models:
            self._leave(model, ledger)
        if not self.ledgers:
            self._idle.clear()

    def restarted(self, ledger: ReplicaLedger) -> None:
        """Its report and its prefix cache are gone."""
        ledger.forget_report()
        for pool in self.pools.values():
            pool.by_index.pop(ledger.index, None)
            pool.rejections.forgive(ledger.id)
        ledger.index = self._take_index()
        for model in ledger.spec.models:
            self.pools[model].by_index[ledger.index] = ledger

    def changed(self, ledger: ReplicaLedger) -> None:
        """Its standing has changed."""
        ledger.stand()
        for model in ledger.spec.models:
            self.pools[model].changed()

    def settle(self, ledger: ReplicaLedger) -> None:
        """Have it stand, while it is idle, with those that serve the same models, home and away apart."""
        key = (ledger.spec.models, ledger.turf.home)
        idle = self._idle.get(key)
        if idle is None:
            if len(self._idle) >= _IDLE_SETS_MAX:
                used = {id(each.idle_set) for each in self.ledgers.values()}
                self._idle = {k: each for k, each in self._idle.items() if id(each) in used}
            idle = self._idle[key] = IdleSet(home=ledger.turf.home)
        ledger.stand_in(idle)
        ledger.refresh()

    def _speed_of(self, spec: ReplicaSpec) -> PrefillModel:
        """The shared rate of replicas that serve the same models with the same engine."""
        key = (spec.engine, spec.models, spec.prefill_tokens_per_s)
        if key not in self._speeds:
            config = self._config
            rate, span = spec.prefill_tokens_per_s, config.learn_span_calibrated
            if not rate:
                rate, span = config.prefill_tokens_per_s, config.learn_span
            self._speeds[key] = PrefillModel(rate, config.prior_busy_s, config.learn_window_s, span)
        return self._speeds[key]

    def _take_index(self) -> int:
        """A bit of its own in the prefix index; never reused while the index may still hold the old owner's bits."""
        if self._next_index > 4 * len(self.ledgers) + 64:
            self.prefix.clear()
            for index, ledger in enumerate(self.ledgers.values()):
                ledger.index = index
            for pool in self.pools.values():
                pool.by_index = {each.index: each for each in pool.members.values()}
            self._next_index = len(self.ledgers)
        self._next_index += 1
        return self._next_index - 1

    def _join(self, model: str, ledger: ReplicaLedger) -> None:
        pool = self.pools.get(model)
        if pool is None:
            pool = self.pools[model] = ModelPool(model, self._config)
        pool.add(ledger)

    def _leave(self, model: str, ledger: ReplicaLedger) -> None:
        pool = self.pools[model]
        pool.remove(ledger.id)
        if not pool.members:
            del self.pools[model]

    def validate(self) -> None:
        for ledger in self.ledgers.values():
            ledger.validate()
        for model, pool in self.pools.items():
            assert pool.members, model
            assert pool.inflight >= 0
            pool.rejections.validate()
            assert pool.eligible == [each for each in pool.members.values() if each.eligible]
        assert len(self._idle) <= _IDLE_SETS_MAX
        for idle in self._idle.values():
            idle.validate()
        self.prefix.validate()
