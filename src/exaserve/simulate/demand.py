"""Every request of a simulated run, as columns: when it is due, and how long its prompt and its answer are.

Two sources give the same distribution: a bench :class:`~exaserve.workload.LoadPlan` (the very requests that
``exaserve bench`` sends under this seed), and columns drawn by numpy, thirty times as fast, for millions of requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exaserve.workload import HEAD_TOKENS, Arrivals, LoadPlan, Mix, OutputLengths, Sessions, make_plan

__all__ = ["PLANNED_MAX", "SimDemand", "demand", "demand_from_plan", "prefix_hashes"]

PLANNED_MAX = 200_000
"""Expected requests up to which a run has the plan that bench would send; above, numpy draws another one."""


@dataclass(frozen=True, slots=True)
class SimDemand:
    """Columns of equal length, ordered by time.

    Attributes:
        scenarios: names; ``scenario`` holds indices into them.
        at: due, seconds from the start.
        prompt / output: tokens.
        session: number of the session, -1 without one; ``shared`` leading tokens are common to its scenario.
        parts: (head, tokens) of each prompt's leading parts that others may begin with too, where a trace says so.
        duration_s: end of the arrivals.
    """

    scenarios: tuple[str, ...]
    at: NDArray[np.float64]
    scenario: NDArray[np.uint8]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    session: NDArray[np.int32]
    shared: NDArray[np.int32]
    duration_s: float
    seed: int
    parts: tuple[tuple[tuple[int, int], ...], ...] = ()

    def __len__(self) -> int:
        return len(self.at)


def demand(
    mix: Mix,
    rate_per_s: float,
    duration_s: float,
    seed: int,
    sessions: Sessions | None = None,
    factors: Sequence[tuple[float, float]] = (),
) -> SimDemand:
    """Poisson arrivals of ``mix``.

    Args:
        rate_per_s: requests per second at factor 1.
        factors: ``(from second, factor on the rate)``, ascending; the factor is 1 before the first.
    """
    knots, totals = _integral(factors, duration_s)
    arrivals = Arrivals(rate_per_s, max(float(totals[-1]), 1e-9))
    if rate_per_s * arrivals.duration_s <= PLANNED_MAX or sessions is not None:
        drawn = demand_from_plan(make_plan(mix, arrivals, seed, sessions))
    else:
        drawn = _drawn(mix, arrivals, seed)
    at = np.interp(drawn.at, totals, knots) if factors else drawn.at
    return SimDemand(
        drawn.scenarios,
        at,
        drawn.scenario,
        drawn.prompt,
        drawn.output,
        drawn.session,
        drawn.shared,
        duration_s,
        seed,
    )


def _integral(
    factors: Sequence[tuple[float, float]], duration_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Instants, and the integral of the factor up to each: at factor 1 both are the same clock."""
    knots, totals, factor = [0.0], [0.0], 1.0
    for since, following in [*factors, (duration_s, 1.0)]:
        at = min(since, duration_s)
        totals.append(totals[-1] + factor * (at - knots[-1]))
        knots.append(at)
        factor = following
    return np.array(knots), np.array(totals)


def demand_from_plan(plan: LoadPlan) -> SimDemand:
    """The requests of a plan, those of a trace for example. Turns that wait for an answer are due as if it took no
    time."""
    requests = plan.requests
    names = plan.scenarios
    number = {name: index for index, name in enumerate(names)}
    return SimDemand(
        tuple(names),
        np.array([r.scheduled_s for r in requests], dtype=np.float64),
        np.array([number[r.scenario] for r in requests], dtype=np.uint8),
        np.array([r.prompt_tokens for r in requests], dtype=np.int32),
        np.array([r.output_tokens for r in requests], dtype=np.int32),
        np.array([-1 if r.session is None else r.session for r in requests], dtype=np.int32),
        np.array([r.shared_tokens for r in requests], dtype=np.int32),
        plan.duration_s,
        plan.seed,
        tuple(r.parts for r in requests) if any(r.parts for r in requests) else (),
    )


def prefix_hashes(parts: Sequence[tuple[int, int]], block_tokens: int) -> tuple[int, ...]:
    """One number for each whole block of a prompt's leading parts: equal where all text up to its end is equal.

    Args:
        parts: (head, tokens); equal heads stand for equal text.
    """
    out: list[int] = []
    before, filled, key = 0, 0, 0
    for head, tokens in parts:
        offset = 0
        while tokens - offset >= block_tokens - filled:
            key = hash((key, head, offset, filled))
            offset += block_tokens - filled
            filled = 0
            before = key = hash((before, key))
            out.append(key)
        if offset < tokens:
            key = hash((key, head, offset, filled))
            filled += tokens - offset
    return tuple(out)


def _drawn(mix: Mix, arrivals: Arrivals, seed: int) -> SimDemand:
    when, which, length = (np.random.default_rng([seed, stream]) for stream in range(3))
    mean = arrivals.rate_per_s * arrivals.duration_s
    count = int(mean + 6.0 * math.sqrt(mean) + 10.0)
    at = np.cumsum(when.exponential(1.0 / arrivals.rate_per_s, count))
    while at[-1] < arrivals.duration_s:
        at = np.concatenate([at, at[-1] + np.cumsum(when.exponential(1.0 / arrivals.rate_per_s, count))])
    at = at[at < arrivals.duration_s]
    scenario = which.choice(len(mix.parts), len(at), p=mix.shares()).astype(np.uint8)
    prompt = np.array([s.prompt_tokens for s in mix.scenarios], dtype=np.int32)[scenario]
    output = np.empty(len(at), dtype=np.int32)
    asked = np.random.default_rng([seed, 3])
    for index, each in enumerate(mix.scenarios):
        mine = scenario == index
        output[mine] = _lengths(each.output, int(mine.sum()), length)
        if each.prompt is not None:
            prompt[mine] = np.maximum(_lengths(each.prompt, int(mine.sum()), asked), HEAD_TOKENS + 1)
    nobody = np.full(len(at), -1, dtype=np.int32)
    return SimDemand(
        tuple(s.name for s in mix.scenarios),
        at,
        scenario,
        prompt,
        output,
        nobody,
        np.zeros(len(at), dtype=np.int32),
        arrivals.duration_s,
        seed,
    )


def _lengths(kind: OutputLengths, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """As :meth:`OutputLengths.draw`, many at once."""
    if kind.kind == "fixed" or kind.mean == 1.0:
        values = np.full(count, kind.mean)
    elif kind.kind == "geometric":
        values = rng.geometric(1.0 / kind.mean, count).astype(np.float64)
    else:
        values = rng.lognormal(math.log(kind.mean) - kind.sigma**2 / 2.0, kind.sigma, count)
    clipped: NDArray[np.float64] = np.clip(np.rint(values), kind.tokens_min, kind.tokens_max)
    return clipped
