"""From an engine's step time to rates and waiting times.

A replica in steady state. At rate r (requests/s), with p prompt and o output tokens and a step of s seconds, a step
decodes r·o·s sequences and prefills r·p·s tokens, and both lengthen it: ``s = step(r·p·s, r·o·s, …)``, a fixed point
that exists up to a saturation rate. Little's law gives the batch and the cache in use; either may be full first.

Waiting. k replicas behind a scheduler that knows their work are close to M/G/k. With Erlang's C(k, rho), mean service
``E = 1 / saturation rate`` and its squared coefficient of variation v (Allen and Cunneen)::

    P(wait > t) = C · exp(-t · 2 k (1 - rho) / (E (1 + v)))

so P99 = ln(100 C) / (2 k (1 - rho) / (E (1 + v))), 0 where C < 1 %. A request then waits for the step under way, and
for its own prefill's steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from exaserve.perfmodel import EngineProfile
from exaserve.planning.demand import RequestClass, TrafficDemand

__all__ = [
    "KV_WATERMARK",
    "ClassLatency",
    "Limit",
    "Steady",
    "Waiting",
    "erlang_c",
    "held_rate",
    "replicas_for",
    "saturation",
    "steady",
    "waiting",
]

KV_WATERMARK = 0.85
"""Share of the cache that is planned to be in use at most: above it replicas get no new requests."""

STEP_MAX_S = 2.0
REPLICAS_MAX = 100_000
RATE_MAX_S = 1e7
_ROUNDS = 40
_NEAR = 1e-4
"""Relative width at which the search for a rate ends."""

Limit = str
"""What a replica runs out of first: compute, batch, cache, or the time allowed per token."""


@dataclass(frozen=True, slots=True)
class Steady:
    """A replica at a steady rate: step time (s, also the mean time per output token), sequences, cache in use."""

    rate_s: float
    step_s: float
    batch: float
    kv_tokens: float
    prefill_tokens: float


@dataclass(frozen=True, slots=True)
class ClassLatency:
    """One class at that load, seconds: P99 and median to the first token, mean of the whole request."""

    name: str
    ttft_p50_s: float
    ttft_p99_s: float
    request_s: float
    target_s: float

    @property
    def holds(self) -> bool:
        return self.ttft_p99_s <= self.target_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """k replicas under a demand.

    Attributes:
        utilisation: rate over the rate at which queues grow without end.
        wait_p99_s: before a replica begins with a request.
        per_class: see :class:`ClassLatency`.
    """

    replicas: int
    utilisation: float
    state: Steady
    wait_p99_s: float
    per_class: tuple[ClassLatency, ...]

    def holds(self, tpot_s: float) -> bool:
        return self.state.step_s <= tpot_s and all(c.holds for c in self.per_class)


def _step(p: EngineProfile, d: TrafficDemand, rate: float, s: float) -> float:
    """Mean step where the last one took ``s``: some compute prompts, which come one at a time, the others none."""
    batch, prefill = rate * d.output * s, rate * d.prompt * s
    if prefill < 1e-9 and batch < 1e-9:
        return p.decode_fixed_s
    share = min(1.0, prefill / max(1.0, min(d.prompt, p.token_budget)))
    with_prompt = p.step_s(prefill / share, batch, batch * d.context, rate * s * d.pairs / share) if share else 0.0
    if share == 1.0:
        return with_prompt
    return share * with_prompt + (1.0 - share) * p.step_s(0.0, batch, batch * d.context)


def steady(p: EngineProfile, d: TrafficDemand, rate_s: float) -> Steady | None:
    """The state at ``rate_s`` per replica; None where work comes faster than it is done."""
    low, high = 0.0, STEP_MAX_S
    if _step(p, d, rate_s, high) > high:
        return None
    s = p.decode_fixed_s
    for _ in range(_ROUNDS):
        value = _step(p, d, rate_s, s)
        if value > s:
            low = s
        else:
            high = s
        if abs(value - s) < 1e-6 * s + 1e-9:
            break
        # Nearly linear: step along the secant, kept inside the bracket.
        slope = (_step(p, d, rate_s, s * 1.01 + 1e-9) - value) / (s * 0.01 + 1e-9)
        better = (value - slope * s) / (1.0 - slope) if slope < 1.0 else high
        s = better if low < better < high else (low + high) / 2
    return Steady(rate_s, s, rate_s * d.output * s, rate_s * d.output * s * d.context, rate_s * d.prompt * s)


def _allowed(p: EngineProfile, d: TrafficDemand, rate_s: float, tpot_s: float) -> dict[Limit, float]:
    """The longest step, seconds, with which each limit still holds at a rate: Little's law says what is in the batch
    and in the cache."""
    per_step = rate_s * d.output
    cached = p.kv_tokens_max * KV_WATERMARK / d.context
    return {
        "compute": STEP_MAX_S,
        "token time": tpot_s,
        "batch": p.max_num_seqs / per_step,
        "cache": cached / per_step,
    }


def saturation(p: EngineProfile, d: TrafficDemand, tpot_s: float = math.inf) -> tuple[float, Limit]:
    """Highest rate one replica carries, requests/s, and what limits it; 0 where even one request breaks a limit.

    A steady step is shorter than the longest one allowed just where a step of that length does its work in less.
    """

    def excess(rate_s: float) -> tuple[float, Limit]:
        """By how much the tightest limit is exceeded, as a share of it; below 0 it holds."""
        allowed = _allowed(p, d, rate_s, tpot_s)
        limit = min(allowed, key=allowed.__getitem__)
        return _step(p, d, rate_s, allowed[limit]) / allowed[limit] - 1.0, limit

    low, high = 1e-6, 1.0
    under, limit = excess(low)
    if under > 0.0:
        return 0.0, limit
    over, limit = excess(high)
    while over <= 0.0:
        if high >= RATE_MAX_S:
            return high, ""
        low, under, high = high, over, high * 4
        over, limit = excess(high)
    for turn in range(_ROUNDS):
        if high - low < _NEAR * high:
            break
        # Between the ends where a line through them crosses, a little inside so that both close in; now and then half.
        middle = low + (high - low) * (0.5 if turn % 4 == 3 else under / (under - over))
        inside = 0.3 * _NEAR * high
        middle = min(max(middle, low + inside), high - inside)
        value, found = excess(middle)
        if value > 0.0:
            high, over, limit = middle, value, found
        else:
            low, under = middle, value
    return low, limit


def held_rate(
    p: EngineProfile,
    d: TrafficDemand,
    replicas: int,
    tpot_s: float,
    rate_max: float,
    saturated_s: float,
    first_factor: float = 1.0,
) -> float:
    """Highest rate of this mix that ``replicas`` carry within every target, requests/s in total; 0 where none is.

    ``rate_max`` and ``saturated_s`` are one replica's, within and without the target per token; ``first_factor`` is as
    :func:`waiting` has it.
    """

    def holds(rate_s: float) -> bool:
        found = waiting(p, d.at(rate_s), replicas, saturated_s, first_factor)
        return found is not None and found.holds(tpot_s)

    low, high = 0.0, rate_max * replicas
    if high <= 0 or holds(high):
        return high
    for _ in range(20):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def erlang_c(servers: int, utilisation: float) -> float:
    """Probability that all of ``servers`` are busy when a request comes."""
    if utilisation >= 1.0:
        return 1.0
    load = servers * utilisation
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    return blocking / (1.0 - utilisation * (1.0 - blocking))


def waiting(
    p: EngineProfile, d: TrafficDemand, replicas: int, saturated_s: float, first_factor: float = 1.0
) -> Waiting | None:
    """Latencies of ``replicas`` under ``d``, None where they cannot carry it.

    ``saturated_s`` is one's saturation without a per-token limit: queues grow towards that, not towards a target.
    ``first_factor``: times as long as its steps say, a request's own prompt takes to its first token.
    """
    if saturated_s <= 0:
        return None
    per_replica = d.rate_s / replicas
    utilisation = per_replica / saturated_s
    if utilisation >= 1.0:
        return None
    state = steady(p, d, per_replica)
    if state is None:
        return None
    works = [
        p.prefill_s(c.prompt_tokens, state.batch, state.kv_tokens)
        + c.output_tokens * state.step_s / max(1.0, state.batch)
        for c in d.classes
    ]
    mean = d.mean(works)
    variation = d.mean([w * w for w in works]) / (mean * mean) - 1.0 if mean else 0.0
    service = 1.0 / saturated_s
    busy = erlang_c(min(replicas, 2000), utilisation)
    pace = 2.0 * replicas * (1.0 - utilisation) / (service * (1.0 + variation))
    wait99 = max(0.0, math.log(100.0 * busy) / pace) if busy > 0.01 else 0.0
    wait50 = max(0.0, math.log(2.0 * busy) / pace) if busy > 0.5 else 0.0
    latencies = []
    for c in d.classes:
        own = first_factor * (p.first_s + p.prefill_s(c.prompt_tokens, state.batch, state.kv_tokens))
        first = wait50 + state.step_s / 2 + own
        latencies.append(
            ClassLatency(
                c.name,
                first,
                wait99 + state.step_s + own,
                first + (c.output_tokens - 1) * state.step_s,
                c.ttft_p99_s,
            )
        )
    return Waiting(replicas, utilisation, state, wait99, tuple(latencies))


def replicas_for(
    p: EngineProfile,
    d: TrafficDemand,
    tpot_s: float,
    rate_max: float,
    limit: Limit,
    saturated_s: float,
    first_factor: float = 1.0,
) -> tuple[Waiting | None, Limit]:
    """The fewest replicas that hold every target, and what limits one; (None, reason) where no number does.

    ``rate_max`` and ``limit`` are what :func:`saturation` says of one within ``tpot_s``, ``saturated_s`` without;
    ``first_factor`` is as :func:`waiting` has it.
    """
    if rate_max <= 0:
        return None, limit
    low = max(1, math.ceil(d.rate_s / rate_max * 1.0001))
    high = low
    while True:
        found = waiting(p, d, high, saturated_s, first_factor)
        if found is not None and found.holds(tpot_s):
            break
        if high > REPLICAS_MAX or high > 64 * low + 64:
            return None, _why_never(found, d)
        high = math.ceil(high * 1.5) if high > 2 else high + 1
    best = found
    while low < high:
        middle = (low + high) // 2
        found = waiting(p, d, middle, saturated_s, first_factor)
        if found is not None and found.holds(tpot_s):
            high, best = middle, found
        else:
            low = middle + 1
    return best, limit


def _why_never(found: Waiting | None, d: TrafficDemand) -> Limit:
    if found is None:
        return "compute"
    slow: list[RequestClass] = [c for c, latency in zip(d.classes, found.per_class, strict=True) if not latency.holds]
    if not slow:
        return "token time"
    worst = next(x for x in found.per_class if x.name == slow[0].name)
    return (
        f"first token of {worst.name}: {worst.ttft_p99_s:.2f} s even on idle replicas, {worst.target_s:.2f} s allowed"
    )
