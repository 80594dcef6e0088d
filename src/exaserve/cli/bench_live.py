"""The live table of a load run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from exaserve.bench import Progress
from exaserve.bench.load import UNTIL_ANSWERED_S
from exaserve.cli.tables import Cell, Column, fitted
from exaserve.report import seconds
from exaserve.workload import percentile

__all__ = ["LiveView"]

RECENT_S = 10.0
REFRESH_PER_S = 4.0
_BLOCKS = " ▁▂▃▄▅▆▇█"
_SPARK_S = 1.0
_SPARK_MAX = 48
_FACTS = (
    Column("sent"),
    Column("in flight"),
    Column("waiting", 1),
    Column("answered"),
    Column("failed"),
    Column("cut", 3),
    Column("answers/s", 2),
    Column("events/s", 4),
    Column("own delay", 5),
)
_LATENCIES = (
    Column("", left=True),
    Column("so far", 2),
    Column("P50"),
    Column("P90", 1),
    Column("P99"),
    Column("largest", 3),
)


class LiveView:
    """What happens now: progress, counts, recent latencies per scenario. Nothing is drawn where there is no terminal.

    Args:
        title: such as the endpoint and the load.
        scenarios: rows, in order; others follow as they appear.
    """

    def __init__(self, console: Console, title: str, scenarios: Sequence[str]) -> None:
        self._title = title
        self._width = console.width
        self._recent: dict[str, deque[tuple[float, float]]] = {name: deque() for name in scenarios}
        self._counts: dict[str, int] = dict.fromkeys(scenarios, 0)
        self._last: Progress | None = None
        self._rates: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._spark: deque[float] = deque(maxlen=_SPARK_MAX)
        self._spark_at = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        self._last = progress
        if self._live is None:
            return
        now = progress.elapsed_s
        for scenario, ttft_s in progress.recent:
            self._recent.setdefault(scenario, deque()).append((now, ttft_s))
            self._counts[scenario] = self._counts.get(scenario, 0) + 1
        for values in self._recent.values():
            while values and values[0][0] < now - RECENT_S:
                values.popleft()
        self._rates.append((now, progress.ok, progress.events))
        if now - self._spark_at >= _SPARK_S:
            every = sorted(v for values in self._recent.values() for at, v in values if at >= now - _SPARK_S)
            self._spark.append(percentile(every, 0.99) if every else 0.0)
            self._spark_at = now
        clock = time.monotonic()
        if clock - self._drawn_at >= 1.0 / REFRESH_PER_S:
            self._drawn_at = clock
            self._live.update(self.render(progress), refresh=True)

    def render(self, p: Progress) -> RenderableType:
        """The picture of one moment."""
        share = min(1.0, p.elapsed_s / p.duration_s) if p.duration_s else 1.0
        where = f"{min(p.elapsed_s, p.duration_s):.0f}/{p.duration_s:.0f} s"
        if p.duration_s >= UNTIL_ANSWERED_S:
            share, where = (p.ok + p.failed) / max(1, p.planned), f"{p.ok + p.failed:,} of {p.planned:,}"
        if p.elapsed_s > p.duration_s:
            where = f"draining, {p.inflight} left"
        head = Table.grid(padding=(0, 1))
        head.add_row(Text(self._title, style="bold"), ProgressBar(total=1.0, completed=share, width=28), where)
        answered, events = self._per_second()
        failed = Text(f"{p.failed - p.cut:,}", style="red" if p.failed > p.cut else "")
        cut = Text(f"{p.cut:,}", style="red" if p.cut else "")
        delay = Text(seconds(p.lag_s), style="yellow" if p.lag_s > 0.05 else "")
        counts: list[Cell] = [f"{p.sent:,}", f"{p.inflight:,}", f"{p.waiting:,}", f"{p.ok:,}", failed, cut]
        facts = fitted(_FACTS, [[*counts, f"{answered:,.1f}", f"{events:,.0f}", delay]], self._width)
        rows: list[list[Cell]] = []
        for name, values in self._recent.items():
            ordered = sorted(v for _, v in values)
            figures = [seconds(percentile(ordered, q)) for q in (0.5, 0.9, 0.99, 1.0)]
            rows.append([name, f"{self._counts.get(name, 0):,}", *figures])
        title = Text(f"Time to first token of the last {RECENT_S:.0f} s")
        return Group(
            head,
            facts,
            Text(),
            title,
            fitted(_LATENCIES, rows, self._width),
            Text(f"P99 by second {self._sparkline()}", style="dim"),
        )

    def _per_second(self) -> tuple[float, float]:
        if len(self._rates) < 2:
            return 0.0, 0.0
        first, last = self._rates[0], self._rates[-1]
        for sample in self._rates:
            if sample[0] >= last[0] - 3.0:
                first = sample
                break
        span = last[0] - first[0]
        return ((last[1] - first[1]) / span, (last[2] - first[2]) / span) if span > 0.0 else (0.0, 0.0)

    def _sparkline(self) -> str:
        top = max(self._spark, default=0.0)
        if top <= 0.0:
            return ""
        line = "".join(_BLOCKS[round(v / top * (len(_BLOCKS) - 1))] for v in self._spark)
        return f"{line} {seconds(top)}"
