"""Reads the table of public measurements that comes with the package."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib import resources

from exaserve.perfmodel.measured import Measurement, parse_measurements

__all__ = ["load_measurements"]


def load_measurements() -> tuple[list[Measurement], Mapping[str, str]]:
    """All rows, and the texts of their sources by key. It takes a tenth of a second: call it where it is shown."""
    folder = resources.files("exaserve.perfmodel") / "data"
    rows = parse_measurements((folder / "measurements.csv").read_text("utf-8").splitlines())
    sources = csv.DictReader((folder / "sources.csv").read_text("utf-8").splitlines())
    return rows, {row["source"]: row["text"] for row in sources}
