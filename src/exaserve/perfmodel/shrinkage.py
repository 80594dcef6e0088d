"""A few measured points move a whole predicted profile, in proportion to what each is worth. PURE.

The prediction is the prior: every term of a step is its predicted value times a factor, and the logarithms of these
factors are normal with mean 0. One factor is common to all terms of a decode step, as wide as measurements of replicas
like this one were spread around their predictions (:mod:`exaserve.perfmodel.confidence`), another to all that a first
token adds; each term has a narrower one of its own (:data:`TERMS`). The measured points are the likelihood: the
logarithm of measured over predicted is normal too. A few damped Gauss-Newton steps find the factors that are likeliest.
So three small batches move what is predicted of a large one, and many points outweigh the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from exaserve.models.architecture import Architecture
from exaserve.perfmodel.confidence import interval, likes
from exaserve.perfmodel.constants import setup_of
from exaserve.perfmodel.fitted import ERRORS
from exaserve.perfmodel.fitting import DecodePoint, PrefillPoint
from exaserve.perfmodel.hardware import Hardware
from exaserve.perfmodel.profile import EngineProfile

__all__ = ["TERMS", "Posterior", "Prior", "posterior", "prior_of", "scaled"]

Floats = NDArray[np.float64]

TERMS: Mapping[str, float] = MappingProxyType(
    {
        "weights": 0.1,
        "overhead_s": 0.3,
        "decode_per_seq_s": 0.5,
        "decode_per_kv_token_s": 0.3,
        "expert_s": 0.2,
        "overlap": 0.7,
        "computing": 0.1,
        "prefill_per_pair_s": 0.3,
        "prompt_s": 0.5,
        "first_s": 0.5,
    }
)
"""How far each term may be from what its common factor makes of it: standard deviation of its factor's logarithm.
Reading and computing are known best, what is counted per sequence and per prompt least."""
_STEP, _FIRST = "all of a decode step", "all of a first token"

POINT_SHARE = 0.02
"""What a point is trusted to, as a share of it: the formula's form is no closer, however often one repeats a run."""
SPREAD_MAX = 1.0
"""Of a common factor's logarithm; a few far-off measurements of the like would make it meaningless."""
TAILS = 2.0 * 1.2816
"""Standard deviations of a normal distribution between the ends of its middle 80 %."""
FAR_OFF = 3.0
"""In standard deviations: a point further off counts in proportion to its distance only (Huber 1964)."""
STEPS_MAX = 30
STEP_LONGEST = 1.0
"""A factor changes by e at most in one step."""
DELTA = 1e-4


@dataclass(frozen=True, slots=True)
class Prior:
    """A prediction, and how far measurements of its like were from theirs.

    Attributes:
        step_spread / first_spread: standard deviation of ln(measured / predicted), of decode steps and first tokens.
        rows / groups / like: measurements and configurations that this is known from, and what they have in common.
    """

    profile: EngineProfile
    step_spread: float = 0.2
    first_spread: float = 0.4
    rows: int = 0
    groups: int = 0
    like: str = ""


def prior_of(
    profile: EngineProfile,
    card: Hardware,
    arch: Architecture,
    tp: int,
    *,
    whole_experts: bool = False,
    engine: str = "vllm",
    version: tuple[int, ...] = (),
) -> Prior:
    """What the performance model predicts of a replica, as a prior; arguments as of
    :func:`exaserve.perfmodel.roofline.engine_profile`, which made ``profile``."""
    setup = setup_of(card, arch, tp, whole_experts=whole_experts, engine=engine, version=version)
    sets = likes(setup, bool(arch.facts.experts))
    token, first = interval(ERRORS, "token", sets), interval(ERRORS, "first", sets)
    spreads = [min(SPREAD_MAX, math.log(each.high / each.low) / TAILS) for each in (token, first)]
    return Prior(profile, spreads[0], spreads[1], token.rows, token.groups, token.like)


@dataclass(frozen=True, slots=True)
class Posterior:
    """Prediction and measurement together.

    Attributes:
        profile: the terms scaled by the likeliest factors.
        names / factors: logarithms of the factors, shape (k,). covariance: theirs, shape (k, k).
        points: measurements used, batches and lengths of prompts.
        before / after: root mean square of ln(measured / predicted) over them, by the prior and by this.
    """

    prior: Prior
    profile: EngineProfile
    names: tuple[str, ...]
    factors: Floats
    covariance: Floats
    points: int
    before: float
    after: float

    def error(self, figure: Callable[[EngineProfile], float]) -> float:
        """Standard error of a figure of the profile, in its own unit."""
        slopes = np.zeros(len(self.names))
        for i in range(len(self.names)):
            step = np.zeros(len(self.names))
            step[i] = DELTA
            above = figure(scaled(self.prior.profile, self.names, self.factors + step))
            slopes[i] = (above - figure(scaled(self.prior.profile, self.names, self.factors - step))) / (2.0 * DELTA)
        return math.sqrt(max(0.0, float(slopes @ self.covariance @ slopes)))


def scaled(p: EngineProfile, names: Sequence[str], factors: Floats) -> EngineProfile:
    """The profile with its terms times e to the ``factors``."""
    by_name = dict(zip(names, np.exp(factors), strict=True))
    step, first = by_name[_STEP], by_name[_FIRST]

    def factor(name: str, common: float = 1.0) -> float:
        return float(common * by_name.get(name, 1.0))

    overhead_s = p.overhead_s * factor("overhead_s", step)
    return replace(
        p,
        prefill_tokens_per_s=p.prefill_tokens_per_s / factor("computing", first),
        decode_fixed_s=overhead_s + (p.decode_fixed_s - p.overhead_s) * factor("weights", step),
        decode_per_seq_s=p.decode_per_seq_s * factor("decode_per_seq_s", step),
        decode_per_kv_token_s=p.decode_per_kv_token_s * factor("decode_per_kv_token_s", step),
        prefill_per_pair_s=p.prefill_per_pair_s * factor("prefill_per_pair_s", first),
        overhead_s=overhead_s,
        expert_s=p.expert_s * factor("expert_s", step),
        overlap=min(1.0, p.overlap * factor("overlap")),
        prompt_s=p.prompt_s * factor("prompt_s", first),
        first_s=p.first_s * factor("first_s", first),
    )


def posterior(prior: Prior, prefill: Sequence[PrefillPoint], decode: Sequence[DecodePoint]) -> Posterior:
    """The profile that is likeliest by the prediction and the points together.

    Args:
        prefill: repeated lengths count once, by their median.
        decode: steady batches.
    """
    base = prior.profile
    terms = {name: spread for name, spread in TERMS.items() if _value(base, name) > 0.0}
    names = (_STEP, _FIRST, *terms)
    believed = 1.0 / np.array([prior.step_spread, prior.first_spread, *terms.values()]) ** 2
    lengths = {point.tokens: np.array([p.ttft_s for p in prefill if p.tokens == point.tokens]) for point in prefill}
    firsts = {tokens: float(np.median(times)) for tokens, times in sorted(lengths.items())}
    measured = np.log(np.array([*firsts.values(), *(p.step_s for p in decode)]))
    trusted = np.array(
        [POINT_SHARE**2 + _spread(lengths[tokens]) ** 2 for tokens in firsts]
        + [POINT_SHARE**2 + p.unsteady**2 / max(1, p.steps) for p in decode]
    )

    def off(factors: Floats) -> Floats:
        p = scaled(base, names, factors)
        times = [p.first_token_s(tokens) for tokens in firsts]
        times += [p.step_s(0.0, point.sequences, point.kv_tokens) for point in decode]
        return np.asarray(measured - np.log(np.array(times)), dtype=np.float64)

    start = np.zeros(len(names))
    if not len(measured):
        return Posterior(prior, base, names, start, np.diag(1.0 / believed), 0, 0.0, 0.0)
    found, covariance = _likeliest(off, start, believed, 1.0 / trusted)
    rms = [float(np.sqrt(np.mean(off(each) ** 2))) for each in (start, found)]
    return Posterior(prior, scaled(base, names, found), names, found, covariance, len(measured), rms[0], rms[1])


def _value(p: EngineProfile, term: str) -> float:
    if term == "weights":
        return p.decode_fixed_s - p.overhead_s
    return 1.0 if term == "computing" else float(getattr(p, term))


def _spread(times: Floats) -> float:
    """Standard error of repeated times' median, as a share of it."""
    middle = float(np.median(times))
    return 1.4826 * float(np.median(np.abs(times - middle))) / middle / math.sqrt(len(times))


def _likeliest(
    off: Callable[[Floats], Floats], start: Floats, believed: Floats, trusted: Floats
) -> tuple[Floats, Floats]:
    """Factors at which ``believed`` x factor^2 + ``trusted`` x off^2 is least, and their covariance."""

    def slopes(at: Floats) -> Floats:
        steps = np.eye(len(at)) * DELTA
        return np.stack([(off(at + step) - off(at - step)) / (2.0 * DELTA) for step in steps], axis=1)

    def damped(left: Floats) -> Floats:
        scores = np.abs(left) * np.sqrt(trusted)
        scale = max(1.0, 1.4826 * float(np.median(scores)))
        return np.asarray(trusted * np.minimum(1.0, FAR_OFF * scale / np.maximum(scores, 1e-12)), dtype=np.float64)

    found = start
    for _ in range(STEPS_MAX):
        left, matrix = off(found), slopes(found)
        weights = damped(left)

        def cost(at: Floats, weights: Floats = weights) -> float:
            return float(believed @ at**2 + weights @ off(at) ** 2)

        normal = matrix.T @ (matrix * weights[:, None]) + np.diag(believed)
        step = np.linalg.solve(normal, -matrix.T @ (weights * left) - believed * found)
        step *= min(1.0, STEP_LONGEST / max(1e-12, float(np.max(np.abs(step)))))
        here = cost(found)
        while cost(found + step) > here and float(np.max(np.abs(step))) > DELTA:
            step = step * 0.5
        found = found + step
        if float(np.max(np.abs(step))) <= DELTA:
            break
    left, matrix = off(found), slopes(found)
    weights = damped(left)
    # Points that the formula cannot follow say less than they would.
    worse = max(1.0, float(weights @ left**2) / len(left))
    curvature = matrix.T @ (matrix * (weights / worse)[:, None]) + np.diag(believed)
    return found, np.asarray(np.linalg.inv(curvature), dtype=np.float64)
