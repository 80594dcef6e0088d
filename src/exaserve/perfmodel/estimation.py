"""Finds the constants of the performance model from measurements, and how far off predictions are without them. PURE.

Each constant is pulled towards what was expected of it (:data:`~exaserve.perfmodel.constants.MEANINGS`) and moves as
far as measurements move it: least squares of log(predicted / measured), with far-off figures counted less (a smooth
Huber loss), by Gauss, Newton and Levenberg. In cross-validation whole groups (model, card, ranks, format, engine) are
left out and predicted from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exaserve.perfmodel.confidence import LEVELS, Errors, likes
from exaserve.perfmodel.constants import meaning_of
from exaserve.perfmodel.measured import Measurement, Predictor

__all__ = ["SCALES", "Estimator", "Published", "error_table", "weighted_quantiles"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SCALES = {"token": 0.08, "first": 0.10, "among few": 0.5, "offline": 0.10, "static": 0.10}
"""Deviation of the logarithm within which figures of each kind are taken at their word."""

GROUP_POWER = 0.75
"""n figures of one group count as n^0.75, since they share what is wrong with them."""

TRUST = 0.8
"""Factor on all spreads: chosen by cross-validation, which differs little between 0.7 and 1.4."""

ROUNDS_MAX = 30
CONVERGED = 1e-4
"""Share of the loss by which a round must lower it to be followed by another."""

STEP_MAX = 1.5
DELTA = 0.02
"""Constants move at most 1.5 of their spreads in a round; slopes are taken over a fiftieth of one."""


@dataclass(frozen=True, slots=True)
class Published:
    """One published figure: the row it is in, its kind and its value."""

    row: int
    kind: str
    value: float


class Estimator:
    """Measurements, the constants that each depends on, and the fit."""

    def __init__(self, rows: Sequence[Measurement]) -> None:
        self.rows = list(rows)
        self.cells: list[Published] = []
        self._predictor = Predictor()
        asked = [self._predictor.names(row) for row in self.rows]
        for i, row in enumerate(self.rows):
            self.cells += [Published(i, kind, value) for kind, value in row.targets().items()]
        self.names = sorted(set[str]().union(*asked))
        index = {name: k for k, name in enumerate(self.names)}
        self._uses = [sorted(index[name] for name in names) for names in asked]
        self._expected = np.log([meaning_of(name).expected for name in self.names])
        self._spread = TRUST * np.array([meaning_of(name).spread for name in self.names])
        self.groups = np.array([self.rows[c.row].group for c in self.cells])
        _, place, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        self._weight = sizes[place] ** (GROUP_POWER - 1.0)
        self._scale = np.array([SCALES[c.kind] for c in self.cells])

    def values(self, z: Floats) -> dict[str, float]:
        """Constants by name; ``z`` is their deviation from what was expected, in spreads."""
        return dict(zip(self.names, np.exp(self._expected + self._spread * z).tolist(), strict=True))

    def folds(self, count: int) -> list[Mask]:
        """Cells of each fold: whole groups, those of one engine, card and format dealt out to different folds."""

        def alike(name: str) -> tuple[str, ...]:
            model, card, ranks, fmt, engine = name.split("|")
            return engine, card, fmt, model, ranks

        names = sorted(set(self.groups.tolist()), key=alike)
        return [np.isin(self.groups, names[k::count]) for k in range(count)]

    def errors(self, values: Mapping[str, float], keep: Mask) -> Floats:
        """log(predicted / measured) of the cells in ``keep``."""
        out, last, predicted = [], -1, {}
        for c in np.flatnonzero(keep):
            cell = self.cells[c]
            if cell.row != last:
                predicted, last = self._predictor.predict(self.rows[cell.row], values), cell.row
            out.append(math.log(predicted[cell.kind] / cell.value))
        return np.array(out)

    def fit(self, keep: Mask) -> Floats:
        """The constants that fit the cells in ``keep`` best, as deviations in spreads; others stay as expected."""
        return self._search(keep, np.zeros(len(self.names)), None)

    def around(self, found: Floats) -> Callable[[Mask], Floats]:
        """A fit to nearly the same cells as ``found`` is one to, with its slopes: seconds instead of a minute."""
        everything = np.ones(len(self.cells), dtype=bool)
        slopes = self._slopes(found, np.arange(len(self.cells)), self.errors(self.values(found), everything))
        return lambda keep: self._search(keep, found, slopes)

    def _search(self, keep: Mask, start: Floats, known: Floats | None) -> Floats:
        cells = np.flatnonzero(keep)
        used = sorted({k for c in cells for k in self._uses[self.cells[c].row]})
        z = np.zeros(len(self.names))
        z[used] = start[used]
        weight, scale = self._weight[keep], self._scale[keep]
        best, damping, kept = math.inf, 0.1, z
        normal, downhill = np.eye(len(used)), np.zeros(len(used))
        for _ in range(ROUNDS_MAX):
            left = self.errors(self.values(z), keep)
            r = left / scale
            loss = float(np.sum(weight * 2.0 * (np.sqrt(1.0 + r * r) - 1.0)) + np.sum(z[used] ** 2))
            if loss < best:
                gained, best, kept = best - loss, loss, z
                if gained < CONVERGED * loss:
                    break
                damping = max(0.01, damping / 4.0)
                slopes = self._slopes(z, cells, left) if known is None else known[cells]
                slopes = slopes[:, used] / scale[:, None]
                bent = weight / np.sqrt(1.0 + r * r)
                normal = (slopes * bent[:, None]).T @ slopes + np.eye(len(used))
                downhill = (slopes * bent[:, None]).T @ r + z[used]
            else:
                damping *= 5.0
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
            z = kept.copy()
            z[used] -= np.clip(step, -STEP_MAX, STEP_MAX)
        return kept

    def _slopes(self, z: Floats, cells: NDArray[np.int64], left: Floats) -> Floats:
        """d log(predicted) / dz of the cells, by differences: each row depends on few of the constants."""
        values = self.values(z)
        out = np.zeros((len(cells), len(self.names)))
        place: dict[int, list[int]] = {}
        for n, c in enumerate(cells):
            place.setdefault(self.cells[c].row, []).append(n)
        for row, at in place.items():
            for k in self._uses[row]:
                name = self.names[k]
                kept = values[name]
                values[name] = kept * math.exp(DELTA * self._spread[k])
                moved = self._predictor.predict(self.rows[row], values)
                values[name] = kept
                for n in at:
                    cell = self.cells[cells[n]]
                    out[n, k] = (math.log(moved[cell.kind] / cell.value) - left[n]) / DELTA
        return out


def weighted_quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> list[float]:
    """Quantiles of values of which some count more than others."""
    order = np.argsort(values)
    done = np.cumsum(weights[order]) - 0.5 * weights[order]
    return [float(q) for q in np.interp(levels, done / np.sum(weights), values[order])]


def error_table(estimator: Estimator, errors: Floats, keep: Mask) -> dict[str, dict[str, Errors]]:
    """Measured over predicted by kind of figure and set of likes (:func:`~exaserve.perfmodel.confidence.likes`).

    Args:
        errors: log(predicted / measured) of all cells, of each by constants that its group had no part in.
        keep: cells to count.
    """
    predictor = Predictor()
    sets: dict[tuple[str, str], list[int]] = {}
    for c in np.flatnonzero(keep):
        cell = estimator.cells[c]
        row = estimator.rows[cell.row]
        for name in likes(predictor.setup(row), predictor.is_mixture(row)):
            sets.setdefault((cell.kind, name), []).append(int(c))
    out: dict[str, dict[str, Errors]] = {}
    for (kind, name), members in sorted(sets.items()):
        at = np.array(members)
        groups, place, sizes = np.unique(estimator.groups[at], return_inverse=True, return_counts=True)
        counts = np.asarray(sizes[place] ** (GROUP_POWER - 1.0), dtype=np.float64)
        quantiles = weighted_quantiles(-errors[at], counts, LEVELS)
        factors = tuple(float(np.exp(q)) for q in quantiles)
        out.setdefault(kind, {})[name] = Errors(len(at), len(groups), factors)
    return out
