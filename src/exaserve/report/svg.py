"""Plots as inline SVG: lines, percentile curves, bars and heat maps. PURE: values in, text out.

The drawing area is small (480 x 280 units) and stretched to the page, so that labels stay readable on a telephone,
where it is about as wide as the screen. Colours are CSS variables of :mod:`exaserve.report.page`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from exaserve.report.words import seconds

__all__ = ["SERIES_MAX", "Point", "Series", "bars", "heat", "lines", "percentiles", "scatter"]

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 12, 42
INNER_W, INNER_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
SERIES_MAX = 8
"""Colours there are; further series repeat them."""
POINTS_MAX = 600
"""Points of one line; more are thinned out evenly, the largest of each stretch is kept."""
_LOG_FROM = 40.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line. NaN breaks it.

    Attributes:
        colour: number of its colour, 0 .. SERIES_MAX - 1.
        dashed: for a second figure of the same thing.
        dots: points instead of a line.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dashed: bool = False
    dots: bool = False


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
        return found if len(found) <= 9 else [v for v in found if f"{v:e}".startswith("1.0")] or found[::3]
    span = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4.0))
    step *= next(m for m in (1, 2, 5, 10) if span / (step * m) <= 5.0)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class _Axis:
    """A value to a place between two ends."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, logarithmic: bool | None = None) -> None:
        good = [v for v in values if math.isfinite(v)]
        positive = [v for v in good if v > 0.0]
        self.logarithmic = (
            logarithmic
            if logarithmic is not None
            else len(positive) == len(good) > 0 and max(positive) / min(positive) > _LOG_FROM
        )
        if self.logarithmic and positive:
            self.low, self.high = min(positive) / 1.15, max(positive) * 1.15
        else:
            self.logarithmic = False
            self.low, self.high = min(0.0, *good, 0.0), max([*good, 0.0]) * 1.05 or 1.0
        self.start, self.end = start, end

    def fit(self, low: float, high: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0

    def __call__(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        return _ticks(self.low, self.high, self.logarithmic)


def _open(label: str, height: float = HEIGHT, *, dense: bool = False) -> str:
    """Begins a plot. ``dense``: its rows leave no room for larger letters on a small screen."""
    kind = 'class="dense" ' if dense else ""
    return f'<svg {kind}viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label, quote=True)}">'


def _frame(x_label: str, y: _Axis, y_text: Callable[[float], str], x_ticks: Sequence[tuple[float, str]]) -> list[str]:
    parts = []
    for tick in y.ticks():
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{LEFT + INNER_W}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{escape(y_text(tick))}</text>')
    for at, text in x_ticks:
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{TOP + INNER_H}"/>')
        # What stands at the edge ends there, or it would be cut.
        place = (at, "middle") if at < LEFT + INNER_W - 4 else (WIDTH - 2, "end")
        parts.append(
            f'<text x="{place[0]:.1f}" y="{TOP + INNER_H + 16}" text-anchor="{place[1]}">{escape(text)}</text>'
        )
    middle = LEFT + INNER_W / 2
    parts.append(f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    return parts


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(
        f'<span><i class="s{s.colour % SERIES_MAX}{" dashed" if s.dashed else ""}"></i>{escape(s.name)}</span>'
        for s in series
    )
    return f'<p class="legend">{items}</p>'


def _thin(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    points = list(zip(x, y, strict=True))
    if len(points) <= POINTS_MAX:
        return points
    size = len(points) / POINTS_MAX
    stretches = (points[int(i * size) : int((i + 1) * size)] for i in range(POINTS_MAX))
    return [max(s, key=lambda p: p[1] if math.isfinite(p[1]) else -math.inf) for s in stretches if s]


def _path(s: Series, x: Callable[[float], float], y: _Axis) -> str:
    colour = f"s{s.colour % SERIES_MAX}"
    points = _thin(s.x, s.y)
    if s.dots:
        d = "".join(f"M{x(a):.1f} {y(b):.1f}h0" for a, b in points if math.isfinite(b))
        return f'<path class="dots {colour}" d="{d}"/>'
    steps: list[str] = []
    pen = "M"
    for a, b in points:
        if not math.isfinite(b):
            pen = "M"
            continue
        steps.append(f"{pen}{x(a):.1f} {y(b):.1f}")
        pen = "L"
    return f'<path class="line {colour}{" dashed" if s.dashed else ""}" d="{"".join(steps)}"/>'


def lines(
    series: Sequence[Series],
    label: str,
    x_label: str = "seconds",
    y_text: Callable[[float], str] = seconds,
    limit: float | None = None,
) -> str:
    """Values over time (or over a rate); the y axis is logarithmic where values differ much.

    Args:
        label: read out by screen readers.
        limit: a horizontal mark, such as an objective.
    """
    values = [v for s in series for v in s.y] + ([limit] if limit is not None else [])
    y = _Axis(values, TOP + INNER_H, TOP)
    x = _Axis([v for s in series for v in s.x], LEFT, LEFT + INNER_W, logarithmic=False)
    places = [v for s in series for v in s.x if math.isfinite(v)]
    if places:
        x.fit(min(places), max(places))
    parts = [_open(label), *_frame(x_label, y, y_text, [(x(t), _plain(t)) for t in x.ticks()])]
    if limit is not None:
        parts.append(f'<path class="limit" d="M{LEFT} {y(limit):.1f}H{LEFT + INNER_W}"/>')
    parts += [_path(s, x, y) for s in series]
    return "".join(parts) + "</svg>" + _legend(series)


@dataclass(frozen=True, slots=True)
class Point:
    """One circle of a scatter plot.

    Attributes:
        colour: number of its colour. radius: in units of the drawing. label: beside it; about: shown when pointed at.
    """

    x: float
    y: float
    colour: int = 0
    radius: float = 5.0
    label: str = ""
    about: str = ""


_LETTER, _LINE = 6.6, 12.0
"""Width of a letter and height of a line of a label, in units of the drawing."""


def scatter(points: Sequence[Point], groups: Sequence[str], label: str, x_label: str, y_label: str) -> str:
    """Circles over two axes, each logarithmic where its values differ much. Labels never cover each other: one that has
    no free place beside its circle is left out (it is still shown when pointed at).

    Args:
        groups: names of the colours, in their order.
    """
    x = _Axis([p.x for p in points], LEFT, LEFT + INNER_W)
    y = _Axis([p.y for p in points], TOP + INNER_H, TOP)
    parts = [_open(label), *_frame(x_label, y, _plain, [(x(t), _plain(t)) for t in x.ticks()])]
    parts.append(f'<text class="label" x="{LEFT - 60}" y="{TOP - 2}">{escape(y_label)}</text>')
    for p in points:
        about = f"<title>{escape(p.about)}</title>" if p.about else ""
        parts.append(
            f'<circle class="bar s{p.colour % SERIES_MAX}" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="{p.radius:g}" '
            f'fill-opacity=".6">{about}</circle>'
        )
    taken: list[tuple[float, float, float, float]] = []
    for p in points:
        place = _place(p, x(p.x), y(p.y), taken) if p.label else None
        if place is not None:
            taken.append(place)
            parts.append(f'<text x="{place[0]:.1f}" y="{place[3] - 3:.1f}">{escape(p.label)}</text>')
    return "".join(parts) + "</svg>" + _legend([Series(name, (), (), i) for i, name in enumerate(groups)])


def _place(
    p: Point, at: float, up: float, taken: Sequence[tuple[float, float, float, float]]
) -> tuple[float, float, float, float] | None:
    """Left, top, right and bottom of a free place for a label, beside, above or below its circle; None if none is."""
    width = _LETTER * len(p.label)
    gap = p.radius + 3
    starts = [(at + gap, 0.0), (at - gap - width, 0.0), (at - width / 2, -gap - 2), (at - width / 2, gap + _LINE - 2)]
    starts += [(at + gap, shift) for shift in (-_LINE, _LINE, -2 * _LINE, 2 * _LINE)]
    for left, shift in starts:
        box = (left, up + shift - _LINE / 2, left + width, up + shift + _LINE / 2)
        inside = box[0] >= LEFT and box[2] <= WIDTH - 2 and box[1] >= TOP and box[3] <= TOP + INNER_H
        if inside and not any(
            box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
        ):
            return box
    return None


_NINES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def percentiles(groups: Sequence[tuple[str, Sequence[float], int]], label: str) -> str:
    """Value at each percentile, the axis stretched towards the tail (each nine takes the same room).

    Args:
        groups: name, values in any order, number of the colour.
    """
    largest = max((len(values) for _, values, _ in groups), default=0)
    # The tail is drawn as far as the largest group has values in it.
    top = next((i for i, q in enumerate(_NINES) if largest * (1.0 - q) < 1.5), len(_NINES) - 1)
    end = -math.log10(1.0 - _NINES[max(top, 2)])

    def place(q: float) -> float:
        return LEFT + INNER_W * min(1.0, -math.log10(max(1.0 - q, 1e-12)) / end)

    series = []
    for name, values, colour in groups:
        ordered = sorted(values)
        if not ordered:
            continue
        n = len(ordered)
        steps = sorted({min(n - 1, int(n * (1.0 - 10.0 ** (-end * i / 240.0)))) for i in range(241)} | {n - 1})
        series.append(
            Series(name, [min((i + 0.5) / n, 1.0 - 10.0**-end) for i in steps], [ordered[i] for i in steps], colour)
        )
    y = _Axis([v for s in series for v in s.y], TOP + INNER_H, TOP)
    marks = [(place(q), f"{q * 100:g} %") for q in _NINES[1:] if -math.log10(1.0 - q) <= end + 1e-9]
    parts = [_open(label), *_frame("percentile", y, seconds, marks)]
    parts += [_path(s, place, y) for s in series]
    return "".join(parts) + "</svg>" + _legend(series)


def bars(
    names: Sequence[str],
    groups: Sequence[tuple[str, Sequence[float], int]],
    label: str,
    text: Callable[[float], str] = seconds,
) -> str:
    """Horizontal bars: for each name one bar per group, its value beside it. NaN is drawn as none.

    Args:
        groups: name, one value per entry of ``names``, number of the colour.
    """
    largest = max((v for _, values, _ in groups for v in values if math.isfinite(v)), default=0.0) or 1.0
    thick, gap, left, right = 15.0, 12.0, 92.0, 64.0
    parts, at = [], 4.0
    for row, name in enumerate(names):
        middle = at + thick * len(groups) / 2 + 4
        parts.append(f'<text x="{left - 6}" y="{middle:.1f}" text-anchor="end">{escape(name[:14])}</text>')
        for _, values, colour in groups:
            value = values[row]
            width = (WIDTH - left - right) * value / largest if math.isfinite(value) else 0.0
            parts.append(
                f'<rect class="bar s{colour % SERIES_MAX}" x="{left}" y="{at:.1f}" width="{max(width, 1.0):.1f}" '
                f'height="{thick - 2}"/><text x="{left + width + 5:.1f}" y="{at + 11:.1f}">{escape(text(value))}</text>'
            )
            at += thick
        at += gap
    legend = _legend([Series(name, (), (), colour) for name, _, colour in groups])
    return _open(label, at) + "".join(parts) + "</svg>" + legend


def heat(
    rows: Sequence[str],
    columns_s: Sequence[float],
    values: Sequence[Sequence[float]],
    label: str,
    text: Callable[[float], str] = seconds,
    limit: float | None = None,
) -> str:
    """One line per replica, one cell per window; darker is more, NaN is empty.

    Args:
        columns_s: when each window begins, seconds.
        values: one sequence per row.
        limit: value of the darkest colour; None takes the 98th percentile, so that one outlier does not
            bleach the rest.
    """
    good = sorted(v for line in values for v in line if math.isfinite(v))
    top = limit if limit is not None else (good[min(len(good) - 1, int(0.98 * len(good)))] if good else 1.0) or 1.0
    left = 108.0
    size = max(4.0, min(16.0, 320.0 / max(1, len(rows))))
    wide = (WIDTH - left - RIGHT) / max(1, len(columns_s))
    parts = []
    named = max(1, math.ceil(11.0 / size))
    for i, (name, line) in enumerate(zip(rows, values, strict=True)):
        at = 4.0 + i * size
        if i % named == 0:
            parts.append(
                f'<text x="{left - 6}" y="{at + size / 2 + 4:.1f}" text-anchor="end">{escape(name[-14:])}</text>'
            )
        for j, value in enumerate(line):
            if math.isfinite(value):
                share = min(9, int(10.0 * min(1.0, value / top) * 0.999))
                parts.append(
                    f'<rect class="h{share}" x="{left + j * wide:.1f}" y="{at:.1f}" width="{wide + 0.3:.1f}" '
                    f'height="{size + 0.3:.1f}"/>'
                )
    bottom = 4.0 + len(rows) * size
    for tick in _ticks(columns_s[0], columns_s[-1], False) if len(columns_s) > 1 else ():  # noqa: FBT003
        at = left + wide * (tick - columns_s[0]) / (columns_s[1] - columns_s[0])
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{_plain(tick)}</text>')
    scale = "".join(f'<i class="h{i}"></i>' for i in range(10))
    end = escape(text(top)) + ("" if limit is not None else " and more")
    legend = f'<p class="legend scale"><span>0 {scale} {end}</span></p>'
    return _open(label, bottom + 22, dense=True) + "".join(parts) + "</svg>" + legend
