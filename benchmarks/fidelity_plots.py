"""Predicted against measured as an SVG file: small log-log panels that share their axes, with bands about the diagonal.

A file of its own, and not a part of a page of :mod:`exaserve.report`: it stands in Markdown, so it brings its colours
and its white ground along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Panel", "panels"]

COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#333333", "#8C6D31")
"""Okabe and Ito's, which people who confuse red and green can tell apart, and two more."""

COLUMNS = 3
SIDE, GAP_X, GAP_Y = 228.0, 62.0, 78.0
LEFT, TOP, BOTTOM, RIGHT = 78.0, 90.0, 52.0, 26.0
BANDS = ((0.30, "#e6eaee"), (0.15, "#c9d2db"))
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.name{font-weight:600;font-size:13px}.axis{font-size:13px}"
    "path{fill:none}.dots{stroke-width:5;stroke-linecap:round;stroke-opacity:.6}.grid{stroke:#eee}"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """Points (measured, predicted) by name of their series, under a title and a line that says how near they are."""

    title: str
    note: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 3) if high / low < 1e4 else (1,)
    return [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]


def panels(shown: Sequence[Panel], x_label: str, y_label: str, legend_title: str, names: Sequence[str]) -> str:
    """The file's text; the axes of all panels run from the least to the largest of all figures.

    Args:
        names: of all series that there can be, so that each has its colour in every file.
    """
    values = [v for p in shown for points in p.series.values() for point in points for v in point]
    low, high = min(values) / 1.25, max(values) * 1.25
    used = {name for p in shown for name in p.series}
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names) if name in used}
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / COLUMNS)
    width = LEFT + columns * SIDE + (columns - 1) * GAP_X + RIGHT
    width = max(width, 560.0)
    height = TOP + rows * SIDE + (rows - 1) * GAP_Y + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"',
        f' height="{height:g}" role="img" aria-label="{escape(y_label)} against {escape(x_label)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
        _legend(legend_title, colour),
    ]
    for i, panel in enumerate(shown):
        left = LEFT + (i % COLUMNS) * (SIDE + GAP_X)
        top = TOP + (i // COLUMNS) * (SIDE + GAP_Y)
        below = i + COLUMNS >= len(shown)
        parts.append(f'<g transform="translate({left:g} {top:g})">{_panel(panel, low, high, colour)}')
        if below:
            parts.append(
                f'<text class="axis" x="{SIDE / 2}" y="{SIDE + 34}" text-anchor="middle">{escape(x_label)}</text>'
            )
        if i % COLUMNS == 0:
            at = f"translate(-58 {SIDE / 2}) rotate(-90)"
            parts.append(f'<text class="axis" transform="{at}" text-anchor="middle">{escape(y_label)}</text>')
        parts.append("</g>")
    return "".join(parts) + "</svg>\n"


def _legend(title: str, colour: Mapping[str, str]) -> str:
    parts, at = [f'<text class="name" x="{LEFT}" y="18">{escape(title)}</text>'], LEFT + 16.0 + 7.6 * len(title)
    for name, c in colour.items():
        parts.append(f'<circle cx="{at:.0f}" cy="14" r="4.5" fill="{c}"/>')
        parts.append(f'<text x="{at + 9:.0f}" y="18">{escape(name)}</text>')
        at += 28.0 + 6.9 * len(name)
    at = LEFT
    for share, fill in reversed(BANDS):
        parts.append(f'<rect x="{at:.0f}" y="29" width="18" height="11" fill="{fill}"/>')
        parts.append(f'<text x="{at + 23:.0f}" y="39">within {share * 100:.0f} %</text>')
        at += 112.0
    parts.append(f'<path d="M{at:.0f} 35h20" stroke="#777" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{at + 25:.0f}" y="39">predicted = measured</text>')
    return "".join(parts)


def _panel(panel: Panel, low: float, high: float, colour: Mapping[str, str]) -> str:
    span = math.log(high / low)

    def place(value: float) -> float:
        return SIDE * math.log(min(max(value, low), high) / low) / span

    parts = [
        f'<text class="name" x="0" y="-20">{escape(panel.title)}</text><text x="0" y="-5">{escape(panel.note)}</text>',
        f'<rect width="{SIDE}" height="{SIDE}" fill="#fff" stroke="#bbb"/>',
    ]
    for tick in _ticks(low, high):
        at, text = place(tick), f"{tick:,.0f}" if tick >= 1.0 else f"{tick:g}"
        parts.append(f'<path class="grid" d="M{at:.1f} 0V{SIDE}M0 {SIDE - at:.1f}H{SIDE}"/>')
        parts.append(f'<text x="{at:.1f}" y="{SIDE + 16}" text-anchor="middle">{text}</text>')
        parts.append(f'<text x="-6" y="{SIDE - at + 4:.1f}" text-anchor="end">{text}</text>')
    for share, fill in BANDS:
        # Straight strips on logarithmic axes, cut where they leave the square.
        up, down = SIDE * math.log(1.0 + share) / span, -SIDE * math.log(1.0 - share) / span
        parts.append(
            f'<polygon fill="{fill}" points="0,{SIDE} 0,{SIDE - up:.1f} {SIDE - up:.1f},0 {SIDE},0 '
            f'{SIDE},{down:.1f} {down:.1f},{SIDE}"/>'
        )
    parts.append(f'<path d="M0 {SIDE}L{SIDE} 0" stroke="#777" stroke-dasharray="4 3"/>')
    for name, points in panel.series.items():
        d = "".join(f"M{place(x):.1f} {SIDE - place(y):.1f}h0" for x, y in points)
        parts.append(f'<path class="dots" stroke="{colour[name]}" d="{d}"/>')
    return "".join(parts)
