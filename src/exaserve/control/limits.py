# compiled
"""Limits: what a request reserves when it is admitted, and what becomes of it when it has ended. Pure.

A request is charged to every meter that concerns it or to none: its key's, its tenant's, and those of rules. It
reserves its estimated prompt and the output that is expected of it, and is settled at its end to what the engine
counted. What failed costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf

from exaserve.control.meters import (
    CONCURRENT,
    INPUT,
    MONEY_PERIOD,
    OUTPUT,
    REQUESTS,
    TOKENS,
    TOKENS_PERIOD,
    Meter,
)
from exaserve.control.records import Allowance, LimitRule, Price

__all__ = ["LimitBook", "Reservation", "Shortage"]

_FIELDS = (
    ("requests_per_minute", REQUESTS, ""),
    ("tokens_per_minute", TOKENS, ""),
    ("input_tokens_per_minute", INPUT, ""),
    ("output_tokens_per_minute", OUTPUT, ""),
    ("concurrent_requests", CONCURRENT, ""),
    ("tokens_per_day", TOKENS_PERIOD, "day"),
    ("tokens_per_month", TOKENS_PERIOD, "month"),
    ("money_per_month", MONEY_PERIOD, "month"),
)
_METERS_MAX = 200_000
_MILLION = 1e6


class Reservation:
    """What one request has reserved, until it is settled."""

    __slots__ = ("input_tokens", "limits", "meters", "model", "output_tokens", "second", "turn")

    def __init__(
        self,
        limits: LimitBook,
        meters: tuple[Meter, ...],
        model: str,
        input_tokens: int,
        output_tokens: int,
        second: int,
        turn: int,
    ) -> None:
        self.limits = limits
        self.meters = meters
        self.model = model
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.second = second
        self.turn = turn


class Shortage:
    """Why a request is not admitted.

    Attributes:
        meter: the bound that it does not fit in; of several the one that takes the longest.
        asked: how much it would have used of that.
        wait_s: when it fits, seconds; 0 where that cannot be said.
        never: it is larger than the whole bound.
    """

    __slots__ = ("asked", "meter", "never", "wait_s")

    def __init__(self, meter: Meter, asked: float, wait_s: float, never: bool) -> None:
        self.meter = meter
        self.asked = asked
        self.wait_s = wait_s
        self.never = never


class LimitBook:
    """All meters of one gateway.

    Args:
        rules: the cluster file's.
        prices: by model's name or pattern.

    Attributes:
        gateways: how many share the bounds now, this one included.
        share: what part of each bound is theirs: below 1 while some of them are lost.
        meters: by name.
        epoch: meters were forgotten, so that those who keep some have to ask for them again.
        sharing: whether any are connected; changed: meters of which they have not been told all.
        on_change: told when there is such a meter and was none before.
        refused: by kind of bound.
    """

    def __init__(self, rules: Sequence[LimitRule] = (), prices: Mapping[str, Price] | None = None) -> None:
        self._rules: tuple[LimitRule, ...] = ()
        self._prices: dict[str, Price] = {}
        self._priced: dict[str, Price | None] = {}
        self.set_rules(rules, prices or {})
        self.meters: dict[str, Meter] = {}
        self.gateways = 1
        self.share = 1.0
        self.refused: dict[int, int] = {}
        self.sharing = False
        self.epoch = 0
        self.changed: dict[Meter, None] = {}
        self.on_change: Callable[[], object] = int
        self._turn = 0

    def set_rules(self, rules: Sequence[LimitRule], prices: Mapping[str, Price]) -> None:
        """Other rules and prices hold for requests that come from now on; what was used stays counted."""
        self._rules = tuple(rules)
        self._prices = dict(prices)
        self._priced = {}

    def roll(self, period: str) -> None:
        """Another ``day`` or ``month`` has begun."""
        self._turn += 1
        for meter in self.meters.values():
            if meter.period == period:
                meter.roll()

    def share_with(self, others: int, expected: int) -> None:
        """``others`` gateways are connected of ``expected``."""
        self.gateways = others + 1
        self.share = min(1.0, (others + 1) / (max(expected, others) + 1))
        self.sharing = others > 0
        if not self.sharing:
            self.changed.clear()
        for meter in self.meters.values():
            if not self.sharing:
                meter.changes = None
                meter.unheard = 0.0
            elif meter.changes is None and meter.kind < TOKENS_PERIOD:
                meter.changes = {}

    def hear(self, name: str, second: int, amount: float, now: int) -> int:
        """A peer used ``amount`` more of a bound in that second; returns in which it is counted here."""
        meter = self.meters.get(name)
        if meter is None:
            meter = self._named(name)
            if meter is None:
                return second
        meter.advance(now)
        second = min(second, now)  # its clock is ahead of ours
        meter.hear(amount, second)
        return second

    def hear_period(self, name: str, node: str, amount: float) -> None:
        """What another gateway, or with "" this one before its restart, has used of a day or month by now."""
        meter = self.meters.get(name) or self._named(name)
        if meter is not None and meter.period:
            if node:
                meter.hear_node(node, amount)
            else:
                meter.used = max(meter.used, amount)

    def period_use(self) -> list[tuple[str, str, str, float]]:
        """Name, period, node and settled use of every bound of a day or month; the node "" is this gateway."""
        found = []
        for meter in self.meters.values():
            if meter.period:
                if meter.used:
                    found.append((meter.name, meter.period, "", meter.used))
                found += [(meter.name, meter.period, node, amount) for node, amount in meter.nodes.items()]
        return found

    def _named(self, name: str) -> Meter | None:
        """A bound that is not in use here yet: how large it is will be known when it is."""
        field = name.rpartition(":")[2]
        for known, kind, period in _FIELDS:
            if known == field and len(self.meters) < _METERS_MAX:
                return self._add(name, kind, inf, period)
        return None

    def _add(self, name: str, kind: int, limit: float, period: str) -> Meter:
        meter = self.meters[name] = Meter(name, kind, limit, period)
        if self.sharing and kind < TOKENS_PERIOD:
            meter.changes = {}
        return meter

    # ---- which meters -------------------------------------------------------------------------------------------
    def meters_for(
        self, key: str, key_allowance: Allowance, tenant: str, tenant_allowance: Allowance | None, model: str
    ) -> tuple[Meter, ...]:
        """Every meter that a request of ``key`` for ``model`` is charged to."""
        found = self._of(f"key={key}", key_allowance)
        if tenant_allowance is not None:
            found += self._of(f"tenant={tenant}", tenant_allowance)
        for rule in self._rules:
            parts = []
            for field, pattern, value in (
                ("key", rule.key, key),
                ("tenant", rule.tenant, tenant),
                ("model", rule.model, model),
            ):
                if pattern is not None:
                    if not fnmatchcase(value, pattern):
                        break
                    parts.append(f"{field}={value}")
            else:
                found += self._of("rule:" + ",".join(parts), rule)
        return tuple(dict.fromkeys(found))

    def _of(self, scope: str, allowance: Allowance) -> list[Meter]:
        found = []
        for field, kind, period in _FIELDS:
            limit = getattr(allowance, field)
            if limit is not None:
                name = f"{scope}:{field}"
                meter = self.meters.get(name)
                if meter is None:
                    if len(self.meters) >= _METERS_MAX:
                        self._drop_idle()
                    meter = self._add(name, kind, float(limit), period)
                meter.limit = float(limit)
                found.append(meter)
        return found

    def _drop_idle(self) -> None:
        self.epoch += 1
        for name in [n for n, m in self.meters.items() if not (m.used or m.heard or m.pending)]:
            del self.meters[name]

    def cost(self, model: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float | None:
        """By the prices, in their currency; None where the model has none."""
        if model not in self._priced:
            if len(self._priced) >= _METERS_MAX:
                self._priced.clear()
            exact = self._prices.get(model)
            found = [price for pattern, price in self._prices.items() if fnmatchcase(model, pattern)]
            self._priced[model] = exact or (found[0] if found else None)
        price = self._priced[model]
        if price is None:
            return None
        cached = price.input if price.cached_input is None else price.cached_input
        fresh = max(input_tokens - cached_tokens, 0)
        return (fresh * price.input + cached_tokens * cached + output_tokens * price.output) / _MILLION

    def _amount(self, meter: Meter, model: str, input_tokens: int, output_tokens: int, cached_tokens: int) -> float:
        kind = meter.kind
        if kind in (REQUESTS, CONCURRENT):
            return 1.0
        if kind == INPUT:
            return float(input_tokens)
        if kind == OUTPUT:
            return float(output_tokens)
        if kind == MONEY_PERIOD:
            return self.cost(model, input_tokens, output_tokens, cached_tokens) or 0.0
        return float(input_tokens + output_tokens)

    # ---- charging -----------------------------------------------------------------------------------------------
    def charge(
        self, meters: tuple[Meter, ...], model: str, input_tokens: int, output_tokens: int, now: float
    ) -> Reservation | Shortage:
        """Reserves with every meter, or with none. ``now``: seconds, of a clock that all gateways share."""
        second = int(now)
        amounts = [self._amount(meter, model, input_tokens, output_tokens, 0) for meter in meters]
        share, gateways = self.share, self.gateways
        short = False
        for at in range(len(meters)):
            meters[at].advance(second)
            short = short or not meters[at].fits(amounts[at], share, gateways)
        if short:
            return self._short(meters, amounts, second)
        for at in range(len(meters)):
            meter = meters[at]
            if meter.kind >= TOKENS_PERIOD:
                meter.pending += amounts[at]
            else:
                self._add_to(meter, amounts[at], 0 if meter.kind == CONCURRENT else second)
        return Reservation(self, meters, model, input_tokens, output_tokens, second, self._turn)

    def _short(self, meters: tuple[Meter, ...], amounts: list[float], second: int) -> Shortage:
        """The bound that has no room for it; of several the one that takes the longest."""
        worst: Shortage | None = None
        for meter, amount in zip(meters, amounts, strict=True):
            if meter.fits(amount, self.share, self.gateways):
                continue
            never = amount > meter.limit
            wait_s = meter.reset_s(second, amount, self.share)
            if worst is None or never or wait_s > worst.wait_s:
                worst = Shortage(meter, amount, wait_s, never)
        assert worst is not None
        self.refused[worst.meter.kind] = self.refused.get(worst.meter.kind, 0) + 1
        return worst

    def settle(
        self, charge: Reservation, input_tokens: int, output_tokens: int, cached_tokens: int, *, counts: bool
    ) -> None:
        """The request has ended and used this much; ``counts`` is whether it counts as a request at all."""
        for meter in charge.meters:
            kind = meter.kind
            if kind == CONCURRENT:
                self._add_to(meter, -1.0, 0)
            elif kind == REQUESTS:
                if not counts:
                    self._add_to(meter, -1.0, charge.second)
            else:
                reserved = self._amount(meter, charge.model, charge.input_tokens, charge.output_tokens, 0)
                actual = self._amount(meter, charge.model, input_tokens, output_tokens, cached_tokens)
                if kind >= TOKENS_PERIOD:
                    meter.pending = max(meter.pending - reserved, 0.0)
                    if charge.turn == self._turn:
                        meter.used += actual
                elif actual != reserved:
                    self._add_to(meter, actual - reserved, charge.second)

    def _add_to(self, meter: Meter, amount: float, second: int) -> None:
        meter.add(amount, second)
        if self.sharing:
            if not self.changed:
                self.on_change()
            self.changed[meter] = None

    def validate(self) -> None:
        for meter in self.meters.values():
            meter.validate()
