"""Files that ``exaserve bench`` writes, and what it does with those of earlier runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from exaserve.bench.compare import compare_runs
from exaserve.bench.outcome import (
    CSV_COLUMNS,
    KIND,
    BenchResult,
    csv_rows,
    document,
    lines_beside,
    run_view,
    unlike,
)
from exaserve.cli.bench_options import BenchOptions
from exaserve.cli.bench_show import show_beside, show_differences
from exaserve.cli.outputs import STDOUT, write_text
from exaserve.domain.errors import ConfigError
from exaserve.report import runs_report

__all__ = ["read_results", "write_result"]


def write_result(outcome: BenchResult, o: BenchOptions) -> None:
    """Everything that was asked for."""
    doc = document(outcome)
    if o.as_json is not None:
        write_text(o.as_json, json.dumps(doc, allow_nan=False) + "\n", "--json")
    if o.as_csv is not None:
        write_text(o.as_csv, _csv(CSV_COLUMNS, csv_rows(outcome)), "--csv")
    if o.records is not None:
        write_text(o.records, _records(outcome, as_csv=o.records.suffix == ".csv"), "--records")
    if o.html is not None:
        write_text(o.html, runs_report(f"Load run: {outcome.name}", [run_view(doc)]), "--html")


def _records(outcome: BenchResult, *, as_csv: bool) -> str:
    """One request a line."""
    every = [record.as_dict() for record in outcome.client.records]
    if not as_csv:
        return "".join(json.dumps(values, separators=(",", ":")) + "\n" for values in every)
    columns = list(dict.fromkeys(name for values in every for name in values if name != "token_s"))
    return _csv(columns, ([values.get(name, "") for name in columns] for values in every))


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()


def _read_result(path: str) -> dict[str, Any]:
    try:
        doc = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(doc, dict) or doc.get("kind") != KIND:
        raise ConfigError(f"{path} is no result of exaserve bench --json")
    return doc


def read_results(what: str, paths: Sequence[str], as_json: Path | None, html: Path | None) -> None:
    """``bench compare`` and ``bench report``.

    Raises:
        ConfigError: a file is no result, or there are too few of them.
    """
    if len(paths) != 2 if what == "compare" else not paths:
        raise ConfigError(f"bench {what} needs {'two result files' if what == 'compare' else 'result files'}")
    if what == "report" and html is None:
        raise ConfigError("bench report needs --html FILE")
    docs = [_read_result(path) for path in paths]
    names = [str(doc["name"]) for doc in docs]
    if len(set(names)) < len(names):
        for doc, path in zip(docs, paths, strict=True):
            doc["name"] = Path(path).stem
        names = [str(doc["name"]) for doc in docs]
    try:
        if html is not None:
            title = f"Load run: {names[0]}" if len(names) == 1 else " against ".join(reversed(names))
            write_text(html, runs_report(title, [run_view(doc) for doc in docs]), "--html")
        if what == "report":
            return
        differences = compare_runs(docs[0]["samples"], docs[1]["samples"])
        beside, other = lines_beside(docs), unlike(docs[0], docs[1])
        scenarios = [sorted(doc["samples"]) for doc in docs]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"a result file is damaged: {type(error).__name__}: {error}") from None
    console = Console(stderr=as_json == STDOUT)
    for doc in docs:
        for reason in doc["spoilt"]:
            console.print(f"{doc['name']} is NOT VALID: {reason}", style="bold yellow", highlight=False)
    common = set(scenarios[0]) & set(scenarios[1])
    if common:
        show_differences(console, (names[0], names[1]), differences)
    else:
        texts = " and ".join(
            f"{name} has {', '.join(own) or 'none'}" for name, own in zip(names, scenarios, strict=True)
        )
        console.print(f"the runs have no scenario in common, so no latency is compared: {texts}", style="bold yellow")
    show_beside(console, names, beside)
    for text in other:
        console.print(f"note: the runs differ in {text}", style="yellow", highlight=False)
    if as_json is not None:
        found = {"names": names, "unlike": other, "differences": [d.as_dict() for d in differences]}
        write_text(as_json, json.dumps(found, indent=2) + "\n", "--json")
