"""How far off a plan's speeds may be, and the step times that it sizes with at a stated confidence.

Predicted times are off by factors that cross-validation over public measurements has shown of configurations like the
one that is planned (:mod:`exaserve.perfmodel.confidence`). A plan is sized with times so much longer that the stated
share of such measurements is no slower. What is shown beside it is the prediction itself, with the interval that the
middle 80 % of such measurements lie in: the figures of a replica at either end of it, under the same demand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import EngineProfile
from exaserve.perfmodel.confidence import GROUPS_MIN, LEVELS, Interval, interval, likes
from exaserve.perfmodel.constants import SpeedSetup, generation, setup_of
from exaserve.perfmodel.fitted import ERRORS
from exaserve.planning.demand import TrafficDemand
from exaserve.planning.memory import MemoryRequest
from exaserve.planning.queueing import saturation, waiting

__all__ = [
    "CONFIDENCE",
    "SHOWN",
    "Band",
    "Certainty",
    "Predicted",
    "certainty_like",
    "certainty_of",
    "check_confidence",
    "load_bands",
    "predicted",
]

CONFIDENCE = 0.8
"""Share of measurements like the plan's that are no slower than what it is sized with, unless another is asked for."""

SHOWN = 0.8
"""Share of them that a printed interval holds."""

CONFIDENCE_LEAST, CONFIDENCE_MOST = 0.5, LEVELS[-1]
"""At the least the prediction itself; and no quantile is known above the most."""


def check_confidence(confidence: float) -> None:
    """Raises ConfigError where a plan cannot be sized so."""
    if not CONFIDENCE_LEAST <= confidence <= CONFIDENCE_MOST:
        percent = 1.0 < confidence <= 100.0
        hint = f" Give a share: {confidence:g} % is {confidence / 100:g}." if percent else ""
        raise ConfigError(
            f"--confidence {confidence:g} must be from {CONFIDENCE_LEAST:g} (the prediction itself) to "
            f"{CONFIDENCE_MOST:g} (more would need more measurements).{hint}",
            param="confidence",
        )


@dataclass(frozen=True, slots=True)
class Band:
    """A figure as predicted, and the ends of its interval (of a time: ``high`` is the slow end)."""

    predicted: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Certainty:
    """What is known of the errors of one replica's predicted times.

    Attributes:
        mixture: whether the model has routed experts. confidence: asked for.
        token / first: measured over predicted time per token, and to a first token: their interval holds
            :data:`SHOWN`, their ``bound`` the confidence.
    """

    setup: SpeedSetup
    mixture: bool
    confidence: float
    token: Interval
    first: Interval

    @property
    def token_factor(self) -> float:
        """What all steps are multiplied with for sizing; never below 1, so that a few quick runs promise nothing.

        Measured times per token have the prompts of others in them, as a replica under load has: so one factor holds
        for all steps. Those to a first token are of a request that is alone, and stretch its own wait only.
        """
        return 1.0 if self.confidence <= CONFIDENCE_LEAST else max(1.0, self.token.bound)

    @property
    def first_factor(self) -> float:
        """What a request's own part of its first token is multiplied with besides."""
        return 1.0 if self.confidence <= CONFIDENCE_LEAST else max(1.0, self.first.bound / self.token_factor)

    def sized(self, p: EngineProfile) -> EngineProfile:
        """The step times to size with."""
        return p.slower(self.token_factor)

    @property
    def about(self) -> str:
        """What was planned, as its likes are named."""
        return likes(self.setup, self.mixture)[0]

    @property
    def says(self) -> tuple[str, ...]:
        """Lines for people: where the intervals of time per token and first token are from."""
        return _says(self, "time per token", self.token), _says(self, "first token", self.first)

    @property
    def measured(self) -> str:
        """How much was measured of such models on this card."""
        card, _, kind, _ = self.about.split(", ")
        found = ERRORS["token"].get(f"{card}, {kind}")
        many = f"{found.rows:,} rows of {found.groups} configurations" if found else "too few rows to tell apart"
        return f"measured cards like this ({card}, {_plural(kind)}): {many}"


def _plural(kind: str) -> str:
    return "mixtures" if kind == "mixture" else "dense models"


def _says(c: Certainty, what: str, i: Interval) -> str:
    names = likes(c.setup, c.mixture)
    card, kernel, kind, _ = c.about.split(", ")
    wide = {
        names[2]: f"{_plural(kind)} in {kernel} on any {generation(c.setup.card)} card",
        names[3]: f"{_plural(kind)} on this card in any format",
        names[4]: f"{_plural(kind)} on any {generation(c.setup.card)} card",
        names[5]: f"all {_plural(kind)}",
    }.get(i.like, "everything measured")
    head = f"{what}: "
    if i.like in names[:2]:
        wide = f"like this ({i.like})"
    else:
        head += f"fewer than {GROUPS_MIN} configurations of {card}, {kernel}, {kind} were measured, so of {wide}: "
        wide = ""
    return (
        f"{head}{SHOWN:.0%} of measurements lie within {i.low - 1.0:+.0%} to {i.high - 1.0:+.0%} of the prediction "
        f"({i.rows:,} of {i.groups} configurations{' ' if wide else ''}{wide})"
    )


def certainty_of(r: MemoryRequest, confidence: float = CONFIDENCE) -> Certainty:
    """The errors of a replica that is started so."""
    version, p = r.version, r.placement
    setup = setup_of(r.hardware, r.arch, p.tp, whole_experts=p.ep, engine=version.name, version=version.numbers)
    return certainty_like(setup, bool(r.arch.facts.experts), confidence)


def certainty_like(setup: SpeedSetup, mixture: bool, confidence: float = CONFIDENCE) -> Certainty:
    """The errors of replicas of such a setup; ``mixture``: their model has routed experts."""
    found = []
    for target in ("token", "first"):
        names = likes(setup, mixture)
        shown = interval(ERRORS, target, names, SHOWN)
        if confidence != SHOWN:
            shown = replace(shown, bound=interval(ERRORS, target, names, confidence).bound)
        found.append(shown)
    return Certainty(setup, mixture, confidence, found[0], found[1])


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a plan says as predicted, where it is sized for slower steps.

    Attributes:
        alone_token_s / alone_first_s: of one request of mean lengths that has a replica to itself.
        rate_s: requests/s that one replica carries within the target per token.
        token_s: mean per output token under the demand. first_s: P99 to the first token there, by class. Infinite where
            queues grow without end; None and empty where nothing runs.
    """

    alone_token_s: Band
    alone_first_s: Band
    rate_s: Band
    token_s: Band | None = None
    first_s: tuple[Band, ...] = ()


def predicted(c: Certainty, p: EngineProfile, d: TrafficDemand, tpot_s: float, replicas: int) -> Predicted:
    """The figures of ``replicas`` with step times ``p``, and at both ends of the interval."""
    token_s, first_s = p.step_s(0.0, 1.0, d.context), p.first_token_s(d.prompt)
    slow_rate, fast_rate = (saturation(p.slower(x), d, tpot_s)[0] for x in (c.token.high, c.token.low))
    alone = Predicted(
        Band(token_s, token_s * c.token.low, token_s * c.token.high),
        Band(first_s, first_s * c.first.low, first_s * c.first.high),
        Band(saturation(p, d, tpot_s)[0], slow_rate, fast_rate),
    )
    if not replicas:
        return alone
    under_load, *firsts = load_bands(c, p, d, replicas)
    return replace(alone, token_s=under_load, first_s=tuple(firsts))


def load_bands(c: Certainty, p: EngineProfile, d: TrafficDemand, replicas: int) -> list[Band]:
    """Seconds per output token of ``replicas`` under a demand, then P99 to the first token of each class."""
    loads = []
    for token, first in ((1.0, 1.0), (c.token.low, c.first.low), (c.token.high, c.first.high)):
        each = p.slower(token)
        loads.append(waiting(each, d, replicas, saturation(each, d)[0], first / token))
    firsts = (Band(*(x.per_class[i].ttft_p99_s if x else math.inf for x in loads)) for i in range(len(d.classes)))
    return [Band(*(x.state.step_s if x else math.inf for x in loads)), *firsts]
