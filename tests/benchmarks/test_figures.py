"""What the benchmarks make of their measurements: no figure out of noise, and tables that are data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_bringup, study_policies

ROOT = Path(__file__).parents[2]


def row(nodes: int, cpu_s: float) -> dict[str, Any]:
    return {"nodes": nodes, "bring_up_cpu_s": {"agent": cpu_s}, "steady_cores": {"agent": 0.1 + 0.002 * nodes}}


def test_what_is_too_small_beside_the_fixed_part_is_not_resolved() -> None:
    nothing = row(1, 4.0)
    rows = [row(16, 3.99), row(64, 4.1), row(256, 7.4)]
    for each in rows:
        bench_bringup.per_node(each, nothing)
    assert [each["bring_up_cpu_s_per_node"] for each in rows] == [None, None, pytest.approx(3.4 / 255)]
    assert bench_bringup.growth(rows, "bring_up_cpu_s_per_node") is None
    assert bench_bringup.exponent(rows, "bring_up_cpu_s_per_node") is None
    assert bench_bringup.shares({"cpu": None, "other": 0.04}) == "cpu not resolved, other +4%"
    assert bench_bringup.growth(rows, "steady_cores_per_node") == pytest.approx(0.0, abs=1e-9)
    assert bench_bringup.exponent(rows, "steady_cores_per_node") == pytest.approx(1.0)


def test_a_price_that_grows_is_told() -> None:
    rows = [{"nodes": n, "price": p} for n, p in ((16, 1.0), (64, 1.1), (256, 1.5), (512, 9.0))]
    assert bench_bringup.growth(rows, "price") == pytest.approx(0.5)


def test_the_policies_page_and_its_rows_come_from_the_script() -> None:
    def case(policy: str, p99: float, told_s: float | None = None) -> dict[str, Any]:
        figures = {name: {"ttft_p50": p99 / 2, "ttft_p99": p99} for name in study_policies.NAMES}
        return {
            "replicas": 64, "gateways": 8, "load": 0.8, "policy": policy, "stale_s": 0.2, "told_s": told_s,
            "scenarios": figures, "windows_std": 0.1, "idle_share": 0.0, "errors": {"cut": 2},
        }  # fmt: skip

    study = {"rows": [case("oracle", 1.0), case("entropy", 1.5), case("entropy", 1.2, 0.001)]}
    rows = list(csv.DictReader(study_policies.csv_text(study).splitlines()))
    assert [(r["policy"], r["told_ms"], r["A_p99_of_oracle"], r["failed"]) for r in rows] == [
        ("oracle", "", "1.0", "2"),
        ("entropy", "", "1.5", "2"),
        ("entropy", "1", "1.2", "2"),
    ]
    summary = study_policies.markdown(study)
    assert "| 64 | 8 | 80% | 1.00 / 1.00 | 1.50 / 1.50 | 1.20 / 1.20 | - | - | - |" in summary
    page = (ROOT / "docs" / "results" / "simulate-policies.md").read_text("utf-8")
    assert summary.splitlines()[0] in page
    with (ROOT / "docs" / "results" / "simulate-policies.csv").open() as file:
        kept = list(csv.DictReader(file))
    assert tuple(kept[0]) == study_policies.COLUMNS
    assert f"All {len(kept)} rows" in page
