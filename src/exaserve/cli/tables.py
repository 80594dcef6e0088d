"""Tables for terminals of any width: columns are chosen, figures are never cut.

A table that is too wide first folds its heads, then leaves out columns by their rank, and says which; where not even
the columns that must stay have room, every row becomes a block of lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["Cell", "Column", "fitted", "log_wide", "print_table"]

GAP = 2
WRAP_MIN = 14
"""A column of phrases may be folded to this many characters."""
LOG_WIDTH, UNKNOWN_WIDTH = 200, 80
"""Without a terminal there is nothing to fit into but a log or a file; rich then assumes 80 columns, or ``COLUMNS``."""

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        rank: 0 always stays; where room is short, the highest rank goes first (of equal ones the last).
        left: text, not figures.
        wrap: phrases, which may take several lines.
    """

    name: str
    rank: int = 0
    left: bool = False
    wrap: bool = False


def log_wide(console: Console) -> Console:
    """The console itself on a terminal (or where ``COLUMNS`` asks for a width), else one as wide as a log may be."""
    if console.is_terminal or console.width != UNKNOWN_WIDTH:
        return console
    return Console(file=console.file, width=LOG_WIDTH)


def print_table(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Prints a table that fits. The first column names the row."""
    wide = log_wide(console)
    if title:
        wide.print(Text(f"\n{title}", style="bold"))
    wide.print(fitted(columns, rows, wide.width))


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> RenderableType:
    """The table in at most ``width`` columns of a terminal."""
    figures = [max([0, *(_widest(row[i]) for row in rows)]) for i in range(len(columns))]
    natural = [max(figures[i], cell_len(c.name)) for i, c in enumerate(columns)]
    folded = [max(figures[i], *(cell_len(w) for w in c.name.split() or [""])) for i, c in enumerate(columns)]
    for i, column in enumerate(columns):
        if column.wrap:
            natural[i] = max(figures[i], cell_len(column.name))
            folded[i] = min(natural[i], max(WRAP_MIN, _longest_word(column.name, [row[i] for row in rows])))
    every = list(range(len(columns)))
    if _needed(natural, every) <= width:
        return _table(columns, rows, every, natural)
    kept = list(every)
    while _needed(folded, kept) > width:
        spare = [i for i in kept if columns[i].rank]
        if not spare:
            return _blocks(columns, rows)
        kept.remove(max(spare, key=lambda i: (columns[i].rank, i)))
    out = [columns[i].name for i in every if i not in kept]
    table = _table(columns, rows, kept, folded)
    if not out:
        return table
    return Group(table, Text(f"no room for: {', '.join(out)}", style="dim"))


def _needed(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + GAP * (len(kept) - 1)


def _widest(cell: Cell) -> int:
    return max((cell_len(line) for line in str(cell).split("\n")), default=0)


def _longest_word(name: str, cells: Sequence[Cell]) -> int:
    return max((cell_len(word) for text in (name, *map(str, cells)) for word in text.split()), default=0)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], kept: Sequence[int], widths: list[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    if not any(columns[i].name for i in kept):
        table.show_header = False
    heads = [
        textwrap.wrap(column.name, max(1, w), break_long_words=False) for column, w in zip(columns, widths, strict=True)
    ]
    lines = max((len(heads[i]) for i in kept), default=0)
    for i in kept:
        column = columns[i]
        head = "\n".join([""] * (lines - len(heads[i])) + heads[i])
        table.add_column(
            Text(head, style="bold"),
            justify="left" if column.left or i == 0 else "right",
            no_wrap=not column.wrap,
            overflow="fold",
            min_width=widths[i],
        )
    for row in rows:
        table.add_row(*(_cell(row[i]) for i in kept))
    return table


def _cell(cell: Cell) -> Text:
    """Never markup: names of scenarios and replicas come from files."""
    return Text(cell) if isinstance(cell, str) else cell


def _blocks(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> RenderableType:
    """One block of lines for each row, for terminals narrower than the table's least."""
    lines: list[Text] = []
    for row in rows:
        lines.append(Text(str(row[0]), style="bold"))
        lines += [
            Text.assemble(f"  {column.name} " if column.name else "  ", _cell(cell))
            for column, cell in zip(columns[1:], row[1:], strict=True)
            if str(cell)
        ]
    return Group(*lines)
