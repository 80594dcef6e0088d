"""From measurements to a profile, and from a profile to how well it predicts. PURE."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exaserve.calibrate.measure import Measurements
from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_name
from exaserve.perfmodel import Calibration, EngineProfile
from exaserve.perfmodel.fitting import (
    Estimate,
    Fit,
    FitRefusal,
    PrefillPoint,
    ProbePoint,
    fit_decode,
    fit_kv,
    fit_prefill,
    fit_weights,
)
from exaserve.perfmodel.shrinkage import Posterior, Prior, posterior
from exaserve.perfmodel.work import work_of

__all__ = [
    "GOOD_SHARE",
    "Prediction",
    "combine",
    "evidence",
    "fit_profile",
    "median_error",
    "model_kv_bytes",
    "not_steady",
    "predict",
]

GOOD_SHARE = 0.10
"""Median relative error of a profile that predicts well enough."""
UNSTEADY_SHARE = 0.05
"""A batch whose mean step is longer than the typical one by more was disturbed; a quarter of them is worth a word."""
SHORT_SHARE = 0.6
"""A prompt that is computed in less of the time of an empty step only reads the weights, as that step does."""
_TERMS = (
    "prefill_tokens_per_s",
    "prefill_per_pair_s",
    "first_s",
    "prompt_s",
    "decode_fixed_s",
    "overhead_s",
    "decode_per_seq_s",
    "decode_per_kv_token_s",
    "overlap",
    "expert_s",
    "expert_share",
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A fresh run against what the profile says of it, seconds."""

    what: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative: 0.1 is predicted 10 % too slow."""
        return self.predicted_s / self.measured_s - 1.0


def model_kv_bytes(model: str) -> float:
    """KV cache bytes of one token by the model's published shape, 0 where it is not known."""
    try:
        return work_of(model_from_name(model)).cache_bytes
    except ConfigError:
        return 0.0


def fit_profile(m: Measurements, date: str, *, with_weights: bool = True) -> tuple[Calibration, dict[str, Fit]]:
    """Fits everything. Refusals are part of the profile."""
    decode = fit_decode(m.decode)
    fixed = decode.estimates.get("decode_fixed_s")
    prefill = fit_prefill(m.prefill, fixed.value if fixed else 0.0)
    kv = fit_kv(m.decode)
    gigabytes = m.kv_bytes_per_token / 1e9 or math.nan
    probes = [ProbePoint(delay_s, tokens * gigabytes, age_s) for delay_s, tokens, age_s in m.probes]
    weights = fit_weights(probes) if with_weights else Fit({}, (), math.nan, 0)
    constants = dict(decode.estimates)
    refused = [*prefill.refused, *decode.refused]
    slope = prefill.estimates.get("prefill_s_per_token")
    if slope is not None:
        constants["prefill_tokens_per_s"] = Estimate(1.0 / slope.value, slope.error / slope.value**2)
    for name in ("prefill_per_pair_s", "first_token_s"):
        if name in prefill.estimates:
            constants[name] = prefill.estimates[name]
    if overhead := _overhead(m.prefill, constants):
        constants["overhead_s"] = overhead
    constants |= kv.estimates
    refused += kv.refused
    if m.kv_bytes_per_token:
        per_token = kv.estimates.get("kv_tokens_per_token", Estimate(1.0, 0.0))
        constants["kv_bytes_per_token"] = Estimate(
            m.kv_bytes_per_token * per_token.value, m.kv_bytes_per_token * per_token.error
        )
    else:
        refused.append(
            FitRefusal(
                "kv_bytes_per_token",
                "the engine does not say how large its cache is, and the model's shape is not known",
                "--kv-cache-gib with the size that the engine's log gives, or --model-shape",
            )
        )
    return (
        Calibration(
            model=m.model,
            engine=m.engine,
            date=date,
            constants=constants,
            weights=weights.estimates,
            limits={name: value for name, value in m.limits.items() if value},
            refused=(*refused, *weights.refused),
            prefill=tuple(PrefillPoint(tokens, ttft_s) for tokens, ttft_s, _ in _lone(m)),
            decode=tuple(m.decode),
        ),
        {"prefill": prefill, "decode": decode, "kv": kv, "weights": weights},
    )


def _lone(m: Measurements) -> list[tuple[int, float, int]]:
    """Lengths of lone prompts, the median time to their first token, and how many runs."""
    by_length: dict[int, list[float]] = {}
    for point in m.prefill:
        by_length.setdefault(point.tokens, []).append(point.ttft_s)
    return [(tokens, statistics.median(values), len(values)) for tokens, values in sorted(by_length.items())]


def _overhead(points: Sequence[PrefillPoint], known: Mapping[str, Estimate]) -> Estimate | None:
    """What of a step no computing hides: short prompts have the whole step beside a first token's other costs in them,
    long ones only this. None where there are no short ones."""
    needed = ("prefill_tokens_per_s", "decode_fixed_s", "first_token_s")
    if not all(name in known for name in needed):
        return None
    rate, fixed, besides = (known[name] for name in needed)
    short = [p.ttft_s for p in points if p.tokens / rate.value < SHORT_SHARE * fixed.value]
    if not short:
        return None
    spread = statistics.stdev(short) / math.sqrt(len(short)) if len(short) > 1 else 0.0
    hidden = fixed.value + besides.value - statistics.median(short)
    return Estimate(min(fixed.value, max(0.0, hidden)), math.hypot(fixed.error, besides.error, spread))


def combine(measured: Calibration, prior: Prior) -> tuple[Calibration, Posterior]:
    """Measurement and prediction together: every term has a value and an error then, and none is refused.

    The prediction's limits give way to those of the engine.
    """
    known: dict[str, Any] = {name: value for name, value in measured.limits.items() if value}
    held = replace(prior.profile, **known)
    both = posterior(replace(prior, profile=held), measured.prefill, measured.decode)

    def value_of(name: str) -> Callable[[EngineProfile], float]:
        return lambda profile: float(getattr(profile, name))

    terms = {name: Estimate(value_of(name)(both.profile), both.error(value_of(name))) for name in _TERMS}
    cache = {name: each for name, each in measured.constants.items() if name.startswith("kv_")}
    cache.setdefault("kv_bytes_per_token", Estimate(held.kv_bytes_per_token, 0.0))
    refused = tuple(each for each in measured.refused if each.what.startswith(("weight ", "kv_tokens")))
    return replace(measured, constants={**terms, **cache}, refused=refused), both


def evidence(m: Measurements, fits: dict[str, Fit], both: Posterior | None = None) -> dict[str, Any]:
    """What the profile rests on, for people who doubt it."""
    found: dict[str, Any] = {
        "lone_prompts": [
            {"tokens": tokens, "ttft_s": round(ttft_s, 6), "runs": runs} for tokens, ttft_s, runs in _lone(m)
        ],
        "batches": [
            {
                "sequences": p.sequences,
                "kv_tokens": round(p.kv_tokens),
                "step_s": round(p.step_s, 7),
                "steps": p.steps,
                "unsteady": round(p.unsteady, 3),
                "kv_used": None if math.isnan(p.kv_used) else round(p.kv_used),
            }
            for p in m.decode
        ],
        "probes": len(m.probes),
        "dropped": m.dropped,
        "residual_share": {
            name: None if math.isnan(fit.residual_share) else round(fit.residual_share, 4) for name, fit in fits.items()
        },
    }
    if both is not None:
        prior = both.prior
        found["prediction"] = {
            "terms": {name: float(getattr(prior.profile, name)) for name in _TERMS},
            "step_spread": round(prior.step_spread, 3),
            "first_token_spread": round(prior.first_spread, 3),
            "measured_like_this": {"rows": prior.rows, "configurations": prior.groups, "like": prior.like},
            "points": both.points,
            "residual_before": round(both.before, 4),
            "residual_after": round(both.after, 4),
            "factors": {
                name: {"ln": round(float(factor), 4), "error": round(float(error) ** 0.5, 4)}
                for name, factor, error in zip(both.names, both.factors, both.covariance.diagonal(), strict=True)
            },
        }
    return found


def not_steady(m: Measurements) -> str:
    """What to say of a replica that was slower now and then than it usually is; "" of a steady one."""
    batches = [p.unsteady for p in m.decode if p.unsteady > UNSTEADY_SHARE]
    if len(batches) * 4 < len(m.decode) or not batches:
        return ""
    longer = f"{min(batches):.0%} to {max(batches):.0%}"
    return (
        f"the replica was not steady: in {len(batches)} of {len(m.decode)} batches the mean step was {longer} longer "
        "than the typical one, which the profile has; look for other work on the machine"
    )


def predict(profile: Calibration, m: Measurements) -> list[Prediction]:
    """Every fresh run against the profile; runs that need a refused constant are left out."""
    known = {name: profile.value(name) for name in ("prefill_tokens_per_s", "decode_fixed_s")}
    # What was refused costs nothing here, and its runs are left out.
    assumed = {
        name: Estimate(value or tiny, 0.0) for (name, value), tiny in zip(known.items(), (1e12, 1e-12), strict=True)
    }
    model = replace(profile, constants={**profile.constants, **assumed}).engine_profile()
    out = []
    if known["prefill_tokens_per_s"]:
        for tokens, ttft_s, _ in _lone(m):
            out.append(Prediction(f"first token of {tokens:,} tokens", ttft_s, model.first_token_s(tokens)))
    if known["decode_fixed_s"]:
        for batch in m.decode:
            predicted = model.step_s(0.0, batch.sequences, batch.kv_tokens)
            what = f"step of {batch.sequences} sequences, {batch.kv_tokens:,.0f} tokens held"
            out.append(Prediction(what, batch.step_s, predicted))
    return out


def median_error(predictions: Sequence[Prediction]) -> float:
    """Median of the relative errors' sizes; NaN of none."""
    return statistics.median(abs(p.error) for p in predictions) if predictions else math.nan
