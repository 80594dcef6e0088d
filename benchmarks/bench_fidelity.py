"""How near predicted speed comes to public measurements: targets, tables by group, and the worst misses.

    python -m benchmarks.bench_fidelity                      what the model is fitted to, cross-validated
    python -m benchmarks.bench_fidelity --refit              the same with the cross-validation made anew (minutes)
    python -m benchmarks.bench_fidelity --rows FILE ...      other measurements, by the shipped constants
    python -m benchmarks.bench_fidelity --write docs         also writes the page and plots of docs/

Cross-validated: each figure is predicted by constants that were fitted without its group (model, card, TP, format and
engine), and its interval is made of the errors of other groups. A file of other measurements has the columns of
perfmodel/data/measurements.csv or of the raw files that ``benchmarks.public_rows`` reads.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scripts.fit_speed import ERRORS, FOLDS, MEASUREMENTS, left_out, mark

from benchmarks import fidelity_page
from benchmarks.fidelity import AXES, Judged, Target, judge, judge_left_out, misses, summary, targets
from benchmarks.public_rows import convert, is_public
from exaserve.perfmodel.estimation import Estimator
from exaserve.perfmodel.measured import FIT, Measurement, parse_measurements

__all__ = ["cross_validated", "kept_errors", "read"]

COLUMNS = ("rows", "setups", "median", "≤15 %", "≤30 %", "held")
MISSES = 15


def read(paths: Sequence[Path]) -> tuple[list[Measurement], Counter[str]]:
    """Measurements of files in either form, and what cannot be brought into the table's, by reason."""
    measurements: list[Measurement] = []
    raw: list[dict[str, str]] = []
    for path in paths:
        lines = path.read_text("utf-8").splitlines()
        if is_public(next(csv.reader(lines), [])):
            raw += csv.DictReader(lines)
        else:
            measurements += parse_measurements(lines)
    found = convert(raw)
    return measurements + found.measurements, found.set_aside


def cross_validated(*, refit: bool = False) -> list[Judged]:
    """The figures of the shipped table, each judged by what was made without its group.

    Raises:
        SystemExit: the kept errors belong to another table or other constants.
    """
    rows = [m for m in parse_measurements(MEASUREMENTS.read_text("utf-8").splitlines()) if m.use == FIT]
    estimator = Estimator(rows)
    if refit:
        start = estimator.fit(np.ones(len(estimator.cells), dtype=bool))
        return judge_left_out(estimator, left_out(estimator, start), FOLDS)
    return judge_left_out(estimator, kept_errors(estimator), FOLDS)


def kept_errors(estimator: Estimator) -> NDArray[np.float64]:
    """log(predicted / measured) of each cell, as the last fit left it behind.

    Raises:
        SystemExit: it belongs to another table or other constants.
    """
    first, *lines = ERRORS.read_text("utf-8").splitlines()
    kept = list(csv.DictReader(lines))
    same = [(int(r["row"]), r["kind"]) for r in kept] == [(cell.row, cell.kind) for cell in estimator.cells]
    if first != mark().strip() or not same:
        raise SystemExit(
            f"{ERRORS.name} belongs to another table or other constants than {MEASUREMENTS.name} and fitted.py: "
            "run scripts/fit_speed.py, or use --refit"
        )
    return np.log([float(r["ratio"]) for r in kept])


def _print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        print(
            "  ".join(t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(line, widths, strict=True)))
        )
    print()


def _print(judged: Sequence[Judged], verdicts: Sequence[Target]) -> None:
    _print_table(
        ("target", "wanted", "rows", "result", ""),
        [(t.name, t.target, str(t.rows), t.result, "met" if t.met else "MISSED") for t in verdicts],
    )
    fit = [j for j in judged if j.m.use == FIT]
    print("Ratios are predicted / measured; of offline throughput above 1 is too fast, of times too slow.\n")
    for kind, name in fidelity_page.KINDS.items():
        members = [j for j in fit if j.kind == kind]
        if members:
            _print_table((name, *COLUMNS), summary(members, lambda _: "all"))
    for axis, key in AXES.items():
        _print_table((f"per token by {axis}", *COLUMNS), summary([j for j in fit if j.kind == "token"], key))
    apart = [j for j in judged if j.m.use != FIT]
    if apart:
        _print_table(("not fitted to, by reason", *COLUMNS), summary(apart, lambda j: f"{j.m.use}, {j.kind}"))
    print("The worst misses:")
    for members, median in misses([j for j in fit if j.kind in fidelity_page.WITH_TARGET], MISSES):
        print(f"  {fidelity_page.miss_name(members)}: {median:.2f} of {len(members)}; {fidelity_page.cause(members)}")
    print()


def _judge_files(paths: Sequence[Path]) -> list[Judged]:
    measurements, reasons = read(paths)
    judged, unknown = judge(measurements)
    reasons += unknown
    known = set(parse_measurements(MEASUREMENTS.read_text("utf-8").splitlines()))
    seen = {(m.group, m.kind, m.clients, m.prompt, m.output) for m in known}
    again = sum((j.m.group, j.m.kind, j.m.clients, j.m.prompt, j.m.output) in seen for j in judged)
    print(f"{len(measurements)} measurements, {len(judged)} figures judged by the shipped constants")
    if again:
        print(f"{again} of them are in the shipped table: the fit has seen them, and says little of others")
    for why, count in reasons.most_common():
        print(f"  not judged: {count} x {why}")
    print()
    return judged


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refit", action="store_true", help="make the cross-validation anew, on all processors")
    parser.add_argument("--rows", nargs="+", type=Path, metavar="FILE", help="judge these measurements instead")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="folder of the pages and plots to make again")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "fidelity.json")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    options = parser.parse_args(argv)
    judged = _judge_files(options.rows) if options.rows else cross_validated(refit=options.refit)
    verdicts = targets(judged)
    _print(judged, verdicts)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([_plain(t) for t in verdicts], indent=2) + "\n")
    if options.write:
        rows = parse_measurements(MEASUREMENTS.read_text("utf-8").splitlines())
        apart, _ = judge(m for m in rows if m.use != FIT)
        fidelity_page.write(options.write, judged, apart, verdicts, mark().strip())
    met = all(t.met for t in verdicts)
    print("targets met" if met else "a target is missed")
    return 1 if options.check and not met else 0


def _plain(t: Target) -> dict[str, object]:
    return {"target": t.name, "wanted": t.target, "rows": t.rows, "result": t.result, "met": t.met}


if __name__ == "__main__":
    sys.exit(main())
