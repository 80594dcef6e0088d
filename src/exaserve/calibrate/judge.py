"""From measurements to a profile, and from a profile to how well it predicts. PURE."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exaserve.calibrate.measure import Measurements
from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_name
from exaserve.perfmodel import Calibration
from exaserve.perfmodel.fitting import (
    Estimate,
    Fit,
    FitRefusal,
    ProbePoint,
    fit_decode,
    fit_kv,
    fit_prefill,
    fit_weights,
)
from exaserve.perfmodel.work import work_of

__all__ = [
    "GOOD_SHARE",
    "Prediction",
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
        ),
        {"prefill": prefill, "decode": decode, "kv": kv, "weights": weights},
    )


def evidence(m: Measurements, fits: dict[str, Fit]) -> dict[str, Any]:
    """What the profile rests on, for people who doubt it."""
    by_length: dict[int, list[float]] = {}
    for point in m.prefill:
        by_length.setdefault(point.tokens, []).append(point.ttft_s)
    return {
        "lone_prompts": [
            {"tokens": tokens, "ttft_s": round(statistics.median(values), 6), "runs": len(values)}
            for tokens, values in sorted(by_length.items())
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
    out = []
    rate, pair = profile.value("prefill_tokens_per_s"), profile.value("prefill_per_pair_s")
    if rate:
        by_length: dict[int, list[float]] = {}
        for point in m.prefill:
            by_length.setdefault(point.tokens, []).append(point.ttft_s)
        base, floor = profile.value("first_token_s"), profile.value("decode_fixed_s")
        for tokens, values in sorted(by_length.items()):
            predicted = max(base + tokens / rate + pair * tokens**2 / 2.0, floor)
            out.append(Prediction(f"first token of {tokens:,} tokens", statistics.median(values), predicted))
    fixed = profile.value("decode_fixed_s")
    if fixed:
        for batch in m.decode:
            predicted = (
                fixed
                + profile.value("decode_per_seq_s") * batch.sequences
                + profile.value("decode_per_kv_token_s") * batch.kv_tokens
            )
            what = f"step of {batch.sequences} sequences, {batch.kv_tokens:,.0f} tokens held"
            out.append(Prediction(what, batch.step_s, predicted))
    return out


def median_error(predictions: Sequence[Prediction]) -> float:
    """Median of the relative errors' sizes; NaN of none."""
    return statistics.median(abs(p.error) for p in predictions) if predictions else math.nan
