"""A sweep as a page of HTML with its own SVG: cost against what a card gives, and the table under it. No dependency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from exaserve.planning.planner import SweepRow

__all__ = ["sweep_html", "sweep_svg"]

WIDTH, HEIGHT = 960, 540
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 20, 56
COLOURS = ("#0b6fa4", "#c2410c", "#15803d", "#7c3aed", "#a16207", "#be123c", "#0f766e", "#475569")
_LABELS_MAX = 14
_GAP = 13.0
_SIZES = {1: 4.0, 2: 5.5, 4: 7.5, 8: 10.0}


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 x powers of ten within a logarithmic axis."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [m * 10.0**power for m in (1, 2, 5) if low <= m * 10.0**power <= high]
    return found


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 1.25, max(values) * 1.25


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:g}" if value >= 1 else f"{value:.3g}"


def sweep_svg(rows: Sequence[SweepRow], currency: str = "USD") -> str:
    """Scatter: output tokens per second and card (x) against cost per million tokens (y), both logarithmic."""
    good = [r for r in rows if r.works and r.per_million_tokens and r.tokens_s > 0]
    if not good:
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 60"><text y="35">None fits</text></svg>'
    (x0, x1), (y0, y1) = _bounds([r.tokens_s for r in good]), _bounds([r.per_million_tokens or 1.0 for r in good])
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + inner_w * math.log(value / x0) / math.log(x1 / x0)

    def y(value: float) -> float:
        return TOP + inner_h * (1 - math.log(value / y0) / math.log(y1 / y0))

    formats = sorted({r.fmt for r in good})
    colour = {f: COLOURS[i % len(COLOURS)] for i, f in enumerate(formats)}
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12">'
        ),
        f'<rect x="{LEFT}" y="{TOP}" width="{inner_w}" height="{inner_h}" fill="none" stroke="#cbd5e1"/>',
    ]
    for tick in _ticks(x0, x1):
        parts.append(f'<line x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{TOP + inner_h}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{TOP + inner_h + 18}" text-anchor="middle">{_number(tick)}</text>')
    for tick in _ticks(y0, y1):
        parts.append(
            f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{LEFT + inner_w}" y2="{y(tick):.1f}" stroke="#e2e8f0"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for r in good:
        px, py = x(r.tokens_s), y(r.per_million_tokens or 1.0)
        size = _SIZES.get(r.tp, 9.0)
        title = f"{r.hardware}, {r.fmt}, TP {r.tp}: {r.replicas} replicas, {r.cards} cards"
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{size}" fill="{colour[r.fmt]}" fill-opacity="0.65" '
            f'stroke="#fff"><title>{escape(title)}</title></circle>'
        )
    parts += _labels(good, x, y)
    parts += _legend(formats, colour)
    parts.append(
        f'<text x="{LEFT + inner_w / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        "output tokens per second and card, within the targets</text>"
    )
    parts.append(
        f'<text transform="translate(16 {TOP + inner_h / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(currency)} per million tokens</text></svg>"
    )
    return "\n".join(parts)


def _labels(good: Sequence[SweepRow], x: object, y: object) -> list[str]:
    """Names of the cheapest combination of each card, where there is room."""
    assert callable(x)
    assert callable(y)
    cheapest: dict[str, SweepRow] = {}
    for r in good:
        cheapest.setdefault(r.hardware, r)
    placed: list[tuple[float, float]] = []
    parts = []
    for r in list(cheapest.values())[:_LABELS_MAX]:
        px, py = float(x(r.tokens_s)) + _SIZES.get(r.tp, 9.0) + 3, float(y(r.per_million_tokens or 1.0)) + 4
        while any(abs(py - other) < _GAP and abs(px - near) < 90 for near, other in placed):
            py -= _GAP
        placed.append((px, py))
        parts.append(f'<text x="{px:.1f}" y="{py:.1f}" fill="#334155">{escape(r.hardware)}</text>')
    return parts


def _legend(formats: Sequence[str], colour: dict[str, str]) -> list[str]:
    left = WIDTH - RIGHT + 24
    parts = [f'<text x="{left}" y="{TOP + 10}" font-weight="600">weights</text>']
    for i, name in enumerate(formats):
        top = TOP + 30 + 20 * i
        parts.append(f'<circle cx="{left + 6}" cy="{top - 4}" r="6" fill="{colour[name]}" fill-opacity="0.65"/>')
        parts.append(f'<text x="{left + 20}" y="{top}">{escape(name)}</text>')
    base = TOP + 50 + 20 * len(formats)
    parts.append(f'<text x="{left}" y="{base}" font-weight="600">tensor parallel</text>')
    for i, (tp, size) in enumerate(_SIZES.items()):
        top = base + 24 + 24 * i
        parts.append(f'<circle cx="{left + 10}" cy="{top - 4}" r="{size}" fill="none" stroke="#475569"/>')
        parts.append(f'<text x="{left + 28}" y="{top}">{tp}</text>')
    return parts


_STYLE = """
body{font-family:system-ui,sans-serif;margin:2rem auto;max-width:1000px;padding:0 1rem;color:#0f172a}
table{border-collapse:collapse;width:100%;font-size:.85rem;margin-top:1rem}
th,td{padding:.3rem .5rem;border-bottom:1px solid #e2e8f0;text-align:right;white-space:nowrap}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
td.why{text-align:left;white-space:normal;color:#64748b}
tr.out td{color:#94a3b8}
svg{width:100%;height:auto}
p{color:#475569}
"""


def sweep_html(rows: Sequence[SweepRow], title: str, note: str = "", currency: str = "USD") -> str:
    """A page by itself."""
    head = (
        "<tr><th>card</th><th>weights</th><th>TP</th><th>GiB a rank</th><th>KV tokens</th><th>replicas</th>"
        "<th>cards</th><th>tokens/s a card</th><th>P99 first</th><th>per token</th>"
        f"<th>{escape(currency)}/M tokens</th></tr>"
    )
    body = []
    for r in rows:
        if r.works and r.per_million_tokens is not None:
            cells = (
                f"<td>{r.weights_gib:.1f}</td><td>{r.tokens:,}</td><td>{r.replicas:,}</td><td>{r.cards:,}</td>"
                f"<td>{r.tokens_s:,.0f}</td><td>{r.ttft_p99_s:.2f} s</td><td>{r.tpot_s * 1e3:.1f} ms</td>"
                f"<td>{r.per_million_tokens:.3f}</td>"
            )
            row_class = ""
        else:
            cells = f'<td>{r.weights_gib:.1f}</td><td class="why" colspan="7">{escape(r.why)}</td>'
            row_class = ' class="out"'
        body.append(f"<tr{row_class}><td>{escape(r.hardware)}</td><td>{escape(r.fmt)}</td><td>{r.tp}</td>{cells}</tr>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{escape(note)}</p>{sweep_svg(rows, currency)}"
        f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table></html>\n"
    )
