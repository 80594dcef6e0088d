"""Constants of one replica from measured runs, each with its standard error. PURE: observations in, constants out.

The models are those of :class:`~exaserve.perfmodel.EngineProfile`::

    first token of a lone prompt of T tokens    c + a T + b T^2        a = 1 / prefill rate, b = half the cost of a pair
    one decode step, n sequences, K tokens held f + s n + k K
    tokens of KV cache in use                   r n + t K              t = cache tokens per token

by least squares with weights 1/y^2, since measured times scatter in proportion to themselves. A constant is *carried*
when the runs vary what it multiplies and its error is small beside it; what is not carried is refused, with the runs
that are missing, rather than written down as a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DecodePoint",
    "Estimate",
    "Fit",
    "FitRefusal",
    "PrefillPoint",
    "ProbePoint",
    "fit_decode",
    "fit_kv",
    "fit_prefill",
    "fit_weights",
    "least_squares",
    "robust_least_squares",
]

Floats = NDArray[np.float64]

ERROR_SHARE_MAX = 0.2
"""Standard error beside its value above which a constant is refused."""
SPREAD_MIN = 4.0
"""Largest over smallest of what a constant multiplies, below which runs say nothing of it."""
ERROR_FLOOR = 1e-9
HUBER_LIMIT = 1.5
"""In standard deviations: what is further off counts in proportion to its distance only."""
HUBER_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """A constant and its standard error, in the same unit."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class FitRefusal:
    """A constant that the runs do not carry.

    Attributes:
        what: its name.
        why: what is wrong with the fit.
        missing: runs that would carry it.
    """

    what: str
    why: str
    missing: str


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants by name, and those that were refused.

    Attributes:
        residual_share: root mean square of (measured - fitted) / measured.
        points: observations used.
    """

    estimates: dict[str, Estimate]
    refused: tuple[FitRefusal, ...]
    residual_share: float
    points: int


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """First token of a prompt that had the replica to itself: tokens computed, seconds from sending."""

    tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """A steady batch.

    Attributes:
        sequences: decoding all the time.
        kv_tokens: sum of their contexts, mean over the window.
        step_s: typical time from token to token.
        steps: in the window.
        kv_used: tokens of cache in use by the engine's own metric, NaN if unknown.
        unsteady: by how much the mean step was longer than the typical one, as a share of it.
    """

    sequences: int
    kv_tokens: float
    step_s: float
    steps: int
    kv_used: float = math.nan
    unsteady: float = 0.0


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """What a short prompt lost by a replica's load: seconds to first token more than alone, and the load's measures.

    Attributes:
        kv_gb: NaN where a token's bytes are not known.
        net_mb_s: NaN where nobody measures the replica's network.
    """

    delay_s: float
    kv_gb: float
    kv_age_s: float
    net_mb_s: float = math.nan


def least_squares(columns: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats, float]:
    """Weighted least squares.

    Args:
        columns: shape (n, k).
        y / weights: shape (n,).

    Returns:
        coefficients (k,), their standard errors (k,), weighted residual per degree of freedom. As many observations as
        constants leave nothing to tell an error from: it is infinite then, and not 0.

    Raises:
        ValueError: fewer observations than coefficients, or columns that cannot be told apart.
    """
    n, k = columns.shape
    if n < k:
        raise ValueError(f"{n} observations are too few for {k} constants")
    root = np.sqrt(weights)
    scale = np.sqrt(np.sum((columns * root[:, None]) ** 2, axis=0))
    if not np.all(scale > 0.0):
        raise ValueError("a column is zero everywhere")
    matrix = columns * root[:, None] / scale
    if np.linalg.matrix_rank(matrix, tol=1e-6) < k:
        raise ValueError("the runs vary these together, so they cannot be told apart")
    inverse = np.linalg.inv(matrix.T @ matrix)
    found = inverse @ (matrix.T @ (y * root))
    left = y * root - matrix @ found
    freedom = max(1, n - k)
    variance = float(left @ left) / freedom
    errors = np.sqrt(np.maximum(np.diag(inverse), 0.0) * variance) if n > k else np.full(k, math.inf)
    return found / scale, errors / scale, math.sqrt(variance)


def robust_least_squares(columns: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats, float]:
    """As :func:`least_squares`, with observations far off the others counted less (Huber 1964): on a machine that does
    other work now and then, some runs are late for no reason of the replica's."""
    found, errors, left = least_squares(columns, y, weights)
    for _ in range(HUBER_ROUNDS):
        off = np.abs(y - columns @ found) * np.sqrt(weights)
        scale = 1.4826 * float(np.median(off))
        if scale <= 0.0:
            break
        damped = weights * np.minimum(1.0, HUBER_LIMIT * scale / np.maximum(off, 1e-12))
        found, errors, left = least_squares(columns, y, damped)
    return found, errors, left


def _carried(estimate: Estimate, share: float = ERROR_SHARE_MAX) -> bool:
    return estimate.value > 0.0 and estimate.error <= share * estimate.value


def _said(estimate: Estimate) -> str:
    if math.isinf(estimate.error):
        return f"{estimate.value:.3g}, by as many runs as constants, so with an unknown error,"
    return f"{estimate.value:.3g} ± {estimate.error:.2g}"


def _spread(values: Sequence[float]) -> float:
    return max(values) / max(min(values), ERROR_FLOOR) if values else 0.0


def fit_prefill(points: Sequence[PrefillPoint], floor_s: float = 0.0) -> Fit:
    """``prefill_s_per_token``, ``prefill_per_pair_s`` and ``first_token_s`` (what every first token costs besides).

    Args:
        floor_s: time to read the weights once: a prompt that is computed in less takes this long whatever its length,
            so such prompts say nothing of the rate and are left out.
    """
    missing = "lone prompts of at least three lengths, the longest at least 16 times the shortest (128 to 2048 or 8192)"
    used = list(points)
    while True:
        lengths = sorted({p.tokens for p in used})
        if len(lengths) < 3 or _spread(lengths) < SPREAD_MIN:
            why = f"prompt lengths {', '.join(map(str, lengths)) or 'none'} are too few or too close"
            return Fit({}, (FitRefusal("prefill rate", why, missing),), math.nan, len(used))
        fit = _prefill_once(used)
        rate = fit.estimates.get("prefill_s_per_token")
        if rate is None or not floor_s:
            return fit
        kept = [p for p in points if p.tokens * rate.value >= floor_s]
        if len(kept) >= len(used) or len({p.tokens for p in kept}) < 3:
            return fit
        used = kept


def _prefill_once(points: Sequence[PrefillPoint]) -> Fit:
    tokens = np.array([float(p.tokens) for p in points])
    y = np.array([p.ttft_s for p in points])
    weights = 1.0 / np.maximum(y, 1e-6) ** 2
    square = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1)
    refused: list[FitRefusal] = []
    try:
        found, errors, left = robust_least_squares(square, y, weights)
        pair = Estimate(float(found[2]), float(errors[2]))
    except ValueError:
        found, errors, left = np.zeros(3), np.zeros(3), math.nan
        pair = Estimate(0.0, math.inf)
    # Three times its error is the least that can be told from nothing. Attention that cannot be measured is no fault.
    if not _carried(pair, 1.0 / 3.0):
        refused.append(
            FitRefusal(
                "quadratic part of prefill",
                f"{_said(pair)} s per token squared cannot be told from 0",
                f"lone prompts longer than {int(tokens.max())} tokens, or more of them",
            )
        )
        found, errors, left = robust_least_squares(square[:, :2], y, weights)
        pair = Estimate(0.0, 0.0)
    a = Estimate(float(found[1]), float(errors[1]))
    out = {"first_token_s": Estimate(max(0.0, float(found[0])), float(errors[0]))}
    if _carried(a):
        out["prefill_s_per_token"] = a
        if pair.value:
            # Each token looks at half the prompt on average.
            out["prefill_per_pair_s"] = Estimate(2.0 * pair.value, 2.0 * pair.error)
    else:
        refused.insert(
            0,
            FitRefusal(
                "prefill rate", f"{_said(a)} s per token is too uncertain", "more repeats, on a quieter machine"
            ),
        )
    return Fit(out, tuple(refused), left, len(points))


def fit_decode(points: Sequence[DecodePoint]) -> Fit:
    """``decode_fixed_s``, ``decode_per_seq_s`` and ``decode_per_kv_token_s``."""
    names = ("decode_fixed_s", "decode_per_seq_s", "decode_per_kv_token_s")
    refused: list[FitRefusal] = []
    batches = sorted({p.sequences for p in points})
    each = sorted({round(p.kv_tokens / max(1, p.sequences), -2) for p in points})
    columns = ["fixed"]
    if len(batches) >= 2 and _spread(batches) >= SPREAD_MIN:
        columns.append("seq")
    else:
        why = f"batch sizes {', '.join(map(str, batches)) or 'none'} are too close"
        refused.append(FitRefusal(names[1], why, "batches of 1 and of at least 4 (better 16 and 64) sequences"))
    if len(each) >= 2 and _spread(each) >= SPREAD_MIN:
        columns.append("kv")
    else:
        why = f"contexts of about {', '.join(f'{v:.0f}' for v in each) or 'none'} tokens are too close"
        refused.append(
            FitRefusal(names[2], why, "the same batches with contexts at least 4 times longer (128 and 2048)")
        )
    if not points:
        refused.insert(0, FitRefusal(names[0], "no steady batch was measured", "batches of 1, 4 and 16 sequences"))
        return Fit({}, tuple(refused), math.nan, 0)
    choices = {
        "fixed": np.ones(len(points)),
        "seq": np.array([float(p.sequences) for p in points]),
        "kv": np.array([p.kv_tokens for p in points]),
    }
    y = np.array([p.step_s for p in points])
    weights = np.array([float(max(1, p.steps)) for p in points]) / y**2
    weights /= weights.mean() * float(np.mean(y) ** 2)
    try:
        found, errors, _ = robust_least_squares(np.stack([choices[c] for c in columns], axis=1), y, weights)
    except ValueError as error:
        refused.insert(0, FitRefusal("decode", str(error), "batches of 1, 4 and 16 at contexts of 128 and 2048 tokens"))
        return Fit({}, tuple(refused), math.nan, len(points))
    by_column = dict(zip(("fixed", "seq", "kv"), names, strict=True))
    out: dict[str, Estimate] = {}
    for column, value, uncertain in zip(columns, found, errors, strict=True):
        estimate = Estimate(float(value), float(uncertain))
        if _carried(estimate, 0.1 if column == "fixed" else ERROR_SHARE_MAX):
            out[by_column[column]] = estimate
        else:
            more = {
                "fixed": "batches of one sequence with short contexts",
                "seq": f"batches larger than {batches[-1]} sequences, with short contexts",
                "kv": f"longer contexts or larger batches than {max(p.kv_tokens for p in points):,.0f} tokens in all",
            }
            refused.append(
                FitRefusal(by_column[column], f"{_said(estimate)} s is too uncertain or not positive", more[column])
            )
    fitted = sum(choices[c] * v for c, v in zip(columns, found, strict=True))
    left = float(np.sqrt(np.mean(((y - fitted) / y) ** 2)))
    return Fit(out, tuple(refused), left, len(points))


def fit_kv(points: Sequence[DecodePoint]) -> Fit:
    """``kv_tokens_per_token``: cache tokens that one token of context takes (1 but for sliding windows)."""
    used = [p for p in points if math.isfinite(p.kv_used) and p.kv_used > 0.0]
    missing = "runs in which the engine's KV use can be read (its /metrics) and is above a per cent"
    if len(used) < 3 or _spread([p.kv_tokens for p in used]) < SPREAD_MIN:
        why = f"{len(used)} runs with a known KV use are too few or too close"
        return Fit({}, (FitRefusal("kv_tokens_per_token", why, missing),), math.nan, len(used))
    columns = np.array([[float(p.sequences), p.kv_tokens] for p in used])
    y = np.array([p.kv_used for p in used])
    try:
        found, errors, left = least_squares(columns, y, 1.0 / y**2)
    except ValueError as error:
        return Fit({}, (FitRefusal("kv_tokens_per_token", str(error), missing),), math.nan, len(used))
    slope = Estimate(float(found[1]), float(errors[1]))
    if not _carried(slope):
        refused = FitRefusal(
            "kv_tokens_per_token", f"{_said(slope)} is too uncertain", "longer contexts, larger batches"
        )
        return Fit({}, (refused,), left, len(used))
    return Fit({"kv_tokens_per_token": slope}, (), left, len(used))


def fit_weights(points: Sequence[ProbePoint]) -> Fit:
    """``kv_gb``, ``kv_age_s`` and ``net_mb``: seconds that a short prompt loses per GB of KV cache in use, per second
    of its mean age, and per MB/s of network traffic. Only their ratio matters to a scheduler that compares replicas."""
    named = {
        "kv_gb": ("kv_gb", "probes while the cache is nearly empty and while it is a good part full"),
        "kv_age_s": ("kv_age_s", "probes early and late in long answers, so that ages differ at the same fill"),
        "net_mb": ("net_mb_s", "runs on a replica that spans nodes, with its network traffic in an agent's reports"),
    }
    refused: list[FitRefusal] = []
    columns: dict[str, Floats] = {}
    for name, (attribute, missing) in named.items():
        values = np.array([getattr(p, attribute) for p in points], dtype=np.float64)
        if not len(values) or not np.all(np.isfinite(values)):
            refused.append(FitRefusal(f"weight {name}", "it was not measured", missing))
        elif float(values.max() - values.min()) <= 0.2 * float(np.abs(values).max()):
            refused.append(FitRefusal(f"weight {name}", "it was nearly the same in all runs", missing))
        else:
            columns[name] = values
    y = np.array([p.delay_s for p in points])
    while columns:
        matrix = np.stack([np.ones(len(points)), *columns.values()], axis=1)
        try:
            found, errors, left = least_squares(matrix, y, np.ones(len(points)))
        except ValueError as error:
            refused += [FitRefusal(f"weight {n}", str(error), named[n][1]) for n in columns]
            break
        estimates = {n: Estimate(float(v), float(e)) for n, v, e in zip(columns, found[1:], errors[1:], strict=True)}
        worst = max(estimates, key=lambda n: estimates[n].error / max(estimates[n].value, ERROR_FLOOR))
        if _carried(estimates[worst], 0.5):
            return Fit(estimates, tuple(refused), left, len(points))
        why = f"{_said(estimates[worst])} s per unit cannot be told from 0"
        refused.append(FitRefusal(f"weight {worst}", why, named[worst][1]))
        del columns[worst]
    return Fit({}, tuple(refused), math.nan, len(points))
