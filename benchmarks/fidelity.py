"""Predicted against measured: each published figure with what the model says of it, the targets, tables by group."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_name
from exaserve.perfmodel.confidence import Errors, interval, likes
from exaserve.perfmodel.constants import ENGINE_RELEASES
from exaserve.perfmodel.estimation import Estimator, error_table
from exaserve.perfmodel.fitted import ERRORS, FITTED
from exaserve.perfmodel.measured import FIT, Measurement, Predictor
from exaserve.perfmodel.work import KV_BYTES

__all__ = ["AXES", "Judged", "Target", "judge", "judge_left_out", "misses", "summary", "targets"]

GROUP_ROWS_MIN = 10
"""Rows of a card or a TP size from which its median is a target."""

MEDIANS = (0.93, 1.07)
HELD = (0.75, 0.88)


@dataclass(frozen=True, slots=True)
class Judged:
    """One published figure.

    Attributes:
        kind: "token", "first", "among few", "static" (seconds) or "offline" (tokens/s).
        low / high: between which measured / predicted was to be expected in four of five cases, from ``like``.
        room: requests of this length that the replica's cache holds at once.
    """

    m: Measurement
    kind: str
    measured: float
    predicted: float
    low: float
    high: float
    like: str
    room: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def held(self) -> bool:
        return self.low <= self.measured / self.predicted <= self.high

    def within(self, share: float) -> bool:
        return abs(self.ratio - 1.0) <= share


@dataclass(frozen=True, slots=True)
class Target:
    """A line of the table of targets; ``rows`` 0 where nothing of the kind was measured."""

    name: str
    target: str
    rows: int
    result: str
    met: bool


@cache
def model_kind(name: str) -> str:
    arch = model_from_name(name)
    parts = ["mixture" if arch.facts.experts else "dense"]
    parts += ["latent cache"] if "kv_lora_rank" in arch.facts.raw else []
    parts += ["layers of two kinds"] if arch.is_hybrid else []
    return ", ".join(parts)


AXES: Mapping[str, Callable[[Judged], str]] = {
    "card": lambda j: j.m.card,
    "format": lambda j: j.m.format,
    "engine": lambda j: j.m.engine,
    "TP": lambda j: str(j.m.tp),
    "model": lambda j: j.m.model,
    "kind of model": lambda j: model_kind(j.m.model),
}
"""What tables group by."""


def judge_left_out(estimator: Estimator, errors: NDArray[np.float64], folds: int) -> list[Judged]:
    """The figures that the model is fitted to, each by a fit without its group.

    Args:
        errors: log(predicted / measured) of the estimator's cells. An interval is likewise made of the errors of
            other folds alone, so no figure has a part in the interval that is to hold it.
    """
    predictor = Predictor()
    out: list[Judged | None] = [None] * len(estimator.cells)
    for mask in estimator.folds(folds):
        table = error_table(estimator, errors, ~mask)
        for c in np.flatnonzero(mask):
            cell = estimator.cells[c]
            m = estimator.rows[cell.row]
            out[c] = _judged(predictor, table, m, cell.kind, cell.value, cell.value * math.exp(errors[c]))
    return [each for each in out if each is not None]


def judge(measurements: Iterable[Measurement]) -> tuple[list[Judged], Counter[str]]:
    """Other measurements, by the shipped constants and intervals; and what could not be judged, by reason."""
    predictor = Predictor()
    out: list[Judged] = []
    reasons: Counter[str] = Counter()
    for m in measurements:
        if m.kv not in KV_BYTES or m.engine not in ENGINE_RELEASES:
            reasons[f"cache or engine not known: {m.kv}, {m.engine}"] += 1
            continue
        try:
            predicted = predictor.predict(m, FITTED)
            model_kind(m.model)
        except ConfigError as error:
            reasons[str(error).split(". ")[0]] += 1
            continue
        published = m.targets()
        if not published:
            reasons["no figure that the model predicts (a first token among many clients waits for others)"] += 1
        for kind, value in published.items():
            out.append(_judged(predictor, ERRORS, m, kind, value, predicted[kind]))
    return out, reasons


def _judged(
    predictor: Predictor,
    table: Mapping[str, Mapping[str, Errors]],
    m: Measurement,
    kind: str,
    measured: float,
    predicted: float,
) -> Judged:
    span = interval(table, kind, likes(predictor.setup(m), predictor.is_mixture(m)))
    room = m.dp * predictor.profile(m, FITTED).kv_tokens_max / (m.prompt + m.output)
    return Judged(m, kind, measured, predicted, span.low, span.high, span.like, room)


def targets(judged: Sequence[Judged]) -> list[Target]:
    """The table of targets; figures of measurements that the model is not meant for have no part in it."""
    of: dict[str, list[Judged]] = {}
    for j in judged:
        if j.m.use == FIT:
            of.setdefault(j.kind, []).append(j)
    token, first, offline = (of.get(kind, []) for kind in ("token", "first", "offline"))
    out = [
        _share("time per token, fixed concurrency: within 15 %", token, 0.15, 0.75),
        _share("time per token, fixed concurrency: within 30 %", token, 0.30, 0.92),
        _share("first token, single stream: within 25 %", first, 0.25, 0.70),
        _share("output throughput, offline: within 20 %", offline, 0.20, 0.75),
    ]
    for kind, members in (("time per token", token), ("first token", first), ("offline throughput", offline)):
        share = statistics.fmean(j.held for j in members) if members else 0.0
        span = f"{HELD[0]:.0%} to {HELD[1]:.0%}"
        met = HELD[0] <= share <= HELD[1]
        out.append(Target(f"80 % intervals hold, {kind}", span, len(members), f"{share:.1%}", met))
    for axis in ("card", "TP"):
        groups = _grouped(token, AXES[axis])
        for name, members in sorted(groups.items()):
            if len(members) >= GROUP_ROWS_MIN:
                median = statistics.median(j.ratio for j in members)
                span, met = f"{MEDIANS[0]} to {MEDIANS[1]}", MEDIANS[0] <= median <= MEDIANS[1]
                out.append(Target(f"time per token, median of {axis} {name}", span, len(members), f"{median:.2f}", met))
    return [t for t in out if t.rows]


def _share(name: str, members: Sequence[Judged], within: float, least: float) -> Target:
    share = statistics.fmean(j.within(within) for j in members) if members else 0.0
    return Target(name, f"at least {least:.0%}", len(members), f"{share:.1%}", share >= least)


def _grouped(judged: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    out: dict[str, list[Judged]] = {}
    for j in judged:
        out.setdefault(key(j), []).append(j)
    return out


def summary(judged: Iterable[Judged], key: Callable[[Judged], str]) -> list[list[str]]:
    """By group: rows, configurations, median of predicted / measured, shares within 15 and 30 %, intervals held."""
    out = []
    for name, members in sorted(_grouped(judged, key).items(), key=lambda item: -len(item[1])):
        shares = [statistics.fmean(j.within(share) for j in members) for share in (0.15, 0.30)]
        held = statistics.fmean(j.held for j in members)
        out.append([
            name, str(len(members)), str(len({j.m.group for j in members})),
            f"{statistics.median(j.ratio for j in members):.2f}", *(f"{share:.0%}" for share in (*shares, held)),
        ])  # fmt: skip
    return out


def misses(judged: Iterable[Judged], count: int) -> list[tuple[list[Judged], float]]:
    """The configurations furthest off, each with its figures and their median of predicted / measured.

    A configuration weighs by its deviation beyond 15 % and the square root of its figures.
    """
    found = []
    for members in _grouped(judged, lambda j: f"{j.kind}|{j.m.group}").values():
        median = statistics.median(j.ratio for j in members)
        beyond = abs(math.log(median)) - math.log(1.15)
        if beyond > 0.0:
            found.append((beyond * math.sqrt(len(members)), members, median))
    found.sort(key=lambda each: -each[0])
    return [(members, median) for _, members, median in found[:count]]
