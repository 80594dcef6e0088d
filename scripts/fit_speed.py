#!/usr/bin/env python
"""Fits the constants of the performance model to the table of public measurements.

    python scripts/fit_speed.py             fit, cross-validate, write perfmodel/fitted.py (under two minutes)
    python scripts/fit_speed.py --check     fail if fitted.py is not what the table gives

:mod:`exaserve.perfmodel.estimation` has the method.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exaserve.perfmodel.confidence import GROUPS_MIN, Errors
from exaserve.perfmodel.constants import meaning_of
from exaserve.perfmodel.estimation import Estimator, error_table
from exaserve.perfmodel.fitted import FITTED
from exaserve.perfmodel.measured import FIT, parse_measurements

PERFMODEL = Path(__file__).resolve().parent.parent / "src/exaserve/perfmodel"
MEASUREMENTS = PERFMODEL / "data/measurements.csv"
ERRORS = PERFMODEL / "data/cross_validation.csv"
TARGET = PERFMODEL / "fitted.py"

FOLDS = 24
MOVED_MIN = 0.2
"""Spreads that a constant must have moved to be written down."""

STALE_MIN = 0.02
"""Relative difference from which ``--check`` speaks of a constant."""

HEADER = '''"""Constants of the performance model and the errors of its predictions, made by ``scripts/fit_speed.py``.

:mod:`exaserve.perfmodel.constants` says what they mean; what is not here is as expected there.
"""

from __future__ import annotations

from collections.abc import Mapping

from exaserve.perfmodel.confidence import Errors, parse_errors
from exaserve.perfmodel.constants import parse_constants

__all__ = ["ERRORS", "FITTED"]

'''


def mark() -> str:
    """First line of cross_validation.csv: which table and constants its errors belong to."""
    digest = hashlib.sha256(MEASUREMENTS.read_bytes() + TARGET.read_bytes()).hexdigest()
    return f"# sha256 of measurements.csv and fitted.py: {digest}\n"


def left_out(estimator: Estimator, found: NDArray[np.float64], folds: int = FOLDS) -> NDArray[np.float64]:
    """log(predicted / measured) of every cell, by constants that were fitted without its group."""
    fit = estimator.around(found)
    out = np.zeros(len(estimator.cells))
    for mask in estimator.folds(folds):
        out[mask] = estimator.errors(estimator.values(fit(~mask)), mask)
    return out


def _lines(values: Mapping[str, float], errors: Mapping[str, Mapping[str, Errors]]) -> Iterator[str]:
    yield HEADER
    yield 'FITTED: Mapping[str, float] = parse_constants("""\n'
    for name, value in sorted(values.items()):
        meaning = meaning_of(name)
        if abs(np.log(value / meaning.expected)) > MOVED_MIN * meaning.spread:
            yield f"{name} {value:.3g}\n"
    yield '""")\n\n'
    yield 'ERRORS: Mapping[str, Mapping[str, Errors]] = parse_errors("""\n'
    for kind, sets in sorted(errors.items()):
        for name, e in sorted(sets.items()):
            if e.groups >= GROUPS_MIN or not name:
                factors = " ".join(f"{factor:.2f}" for factor in e.factors)
                yield f"{kind} | {name} | {e.rows} {e.groups} | {factors}\n"
    yield '""")\n"""Measured over predicted, cross-validated: rows, groups, and the factors at ``LEVELS``."""\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare constants with those of fitted.py, write nothing")
    options = parser.parse_args()
    rows = [m for m in parse_measurements(MEASUREMENTS.read_text().splitlines()) if m.use == FIT]
    estimator = Estimator(rows)
    everything = np.ones(len(estimator.cells), dtype=bool)
    print(f"{len(rows)} rows, {len(estimator.cells)} figures, {len(set(estimator.groups))} groups", flush=True)
    found = estimator.fit(everything)
    values = estimator.values(found)
    if options.check:
        moved = [n for n, value in FITTED.items() if abs(np.log(value / values.get(n, 1e9))) > STALE_MIN]
        for name in moved:
            print(f"{name}: {FITTED[name]:.4g} in fitted.py, {values.get(name, 0.0):.4g} by the table")
        return 1 if moved else 0
    errors = left_out(estimator, found)
    TARGET.write_text("".join(_lines(values, error_table(estimator, errors, everything))))
    with ERRORS.open("w") as out:
        out.write(f"{mark()}row,kind,ratio\n")
        for cell, error in zip(estimator.cells, errors, strict=True):
            out.write(f"{cell.row},{cell.kind},{np.exp(error):.4f}\n")
    for kind in sorted({c.kind for c in estimator.cells}):
        ratio = np.exp(errors[[c.kind == kind for c in estimator.cells]])
        off = np.abs(ratio - 1.0)
        shares = ", ".join(f"{np.mean(off <= x):.0%} within {x:.0%}" for x in (0.15, 0.2, 0.25, 0.3))
        print(f"{kind}: {len(ratio)} figures, median {np.median(ratio):.2f}, {shares}")
    print("now make the pages again: python -m benchmarks.bench_fidelity --write docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
