"""Tables choose columns; no figure is ever cut, at any width."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from rich.console import Console
from rich.text import Text

from exaserve.cli.tables import Column, print_table

COLUMNS = (
    Column("policy", left=True),
    *(Column(f"{name} {q}", 0 if q == "P99" else 3) for name in "ABC" for q in ("P50", "P99")),
    Column("whole answer P99", 2),
    Column("queued", 4),
    Column("errors", 1),
)
ROWS: list[list[str | Text]] = [
    ["least_connections", "0.086", "3.351", "0.412", "5.224", "1.003", "12.875", "118.04", "1,234,567", "0"],
    ["entropy", "0.081", "0.351", "0.402", "1.224", "0.903", "2.875", "26.700", "12", Text("883", style="red")],
]


def printed(width: int, columns: tuple[Column, ...] = COLUMNS, rows: list[list[str | Text]] | None = None) -> str:
    out = io.StringIO()
    print_table(
        Console(file=out, width=width, force_terminal=True, color_system=None),
        "Time to first token, seconds",
        columns,
        rows if rows is not None else ROWS,
    )
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_every_line_fits_and_no_figure_is_cut(width: int) -> None:
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = set(text.split())
    for row in ROWS:
        for i in (0, 2, 4, 6):  # the columns that always stay
            assert str(row[i]) in words


def test_columns_go_by_rank_and_are_named() -> None:
    kept = [sum(str(cell) in printed(width).split() for cell in ROWS[0][:-1]) for width in (60, 80, 120)]
    assert all(narrow <= wide for narrow, wide in pairwise(kept))
    assert "no room for: " in printed(60)
    assert "queued" in printed(60).split("no room for: ")[1]
    assert "no room for" not in printed(200)
    assert "1,234,567" in printed(120)


def test_where_nothing_fits_rows_become_blocks() -> None:
    lines = printed(24).splitlines()
    assert "least_connections" in lines
    assert "  C P99 12.875" in lines


def test_phrases_are_folded_and_markup_is_text() -> None:
    columns = (Column("", left=True, wrap=True), Column("measured"), Column("", left=True))
    text = printed(40, columns, [["chat [bold]x: p99_ttft_ms <= 850", "1,234.5", "met, by few answers"]])
    assert "[bold]x:" in text
    assert "1,234.5" in text
    assert max(map(len, text.splitlines())) <= 40


def test_a_log_is_wide_but_columns_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = io.StringIO()
    print_table(Console(file=out), "", COLUMNS, ROWS)
    assert "no room for" not in out.getvalue()
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    print_table(Console(file=out), "", COLUMNS, ROWS)
    assert max(map(len, out.getvalue().splitlines())) <= 60
