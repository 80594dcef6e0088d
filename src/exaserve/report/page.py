"""A self-contained HTML page: no script, no other file, readable on a telephone, light and dark. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Cell", "Figure", "page", "table"]

_LIGHT = ("#0b6fa4", "#c2410c", "#15803d", "#7c3aed", "#a16207", "#be123c", "#0f766e", "#475569")
_DARK = ("#58b4e6", "#fb923c", "#5fd08a", "#b79bff", "#e0b445", "#fb7185", "#4fd1c5", "#a8b4c4")
_HEAT, _HEAT_DARK = (92, 30), (24, 78)
"""Lightness of the lowest and of the highest step, %: more stands out against what is behind it."""
_HEAT_HUE = 235


def _variables(colours: Sequence[str], text: str, soft: str, back: str, panel: str, edge: str) -> str:
    series = "".join(f"--s{i}:{c};" for i, c in enumerate(colours))
    return f"{series}--text:{text};--soft:{soft};--back:{back};--panel:{panel};--edge:{edge};"


_RULES = """
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1100px;padding:1rem;color:var(--text);
background:var(--back)}
h1{font-size:1.4rem;margin:.2rem 0 .6rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
h3{font-size:.95rem;margin:0 0 .4rem;font-weight:600}
p{margin:.3rem 0}.soft,figcaption{color:var(--soft);font-size:.85rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:.8rem}
figure{margin:0;background:var(--panel);border:1px solid var(--edge);border-radius:8px;padding:.7rem}
figure.wide{grid-column:1/-1}figure.wide svg{max-width:720px}
svg{width:100%;height:auto;display:block;font-size:12.5px}
svg text{fill:var(--soft)}svg .grid{stroke:var(--edge);stroke-width:1;fill:none}
svg .line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}svg .dashed{stroke-dasharray:5 4;opacity:.8}
svg .dots{stroke:var(--c);stroke-width:2.6;stroke-linecap:round;opacity:.55;fill:none}
svg .limit{stroke:#dc2626;stroke-width:1.4;stroke-dasharray:7 4}
svg .bar{fill:var(--c)}
.legend{font-size:.82rem;color:var(--soft);display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.4rem 0 0}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;background:var(--c);margin-right:.35rem;
vertical-align:middle}
.legend i.dashed{background:repeating-linear-gradient(90deg,var(--c) 0 5px,transparent 5px 8px)}
.legend.scale i{width:12px;height:12px;border-radius:0;margin:0}
.scroll{overflow-x:auto}.scroll+.scroll{margin-top:.7rem}
table{border-collapse:separate;border-spacing:0;font-size:.87rem;width:100%;background:var(--panel)}
th,td{padding:.32rem .55rem;border-bottom:1px solid var(--edge);text-align:right;white-space:nowrap}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--panel)}
.wrap td:first-child{white-space:normal;min-width:8.5rem}
svg.dense{font-size:12px}
@media(max-width:560px){svg:not(.dense){font-size:16px}th,td{padding:.32rem .4rem}}
.good{color:#15803d;font-weight:600}.bad{color:#dc2626;font-weight:600}
@media(prefers-color-scheme:dark){.good{color:#5fd08a}.bad{color:#fb7185}}
.note{border-left:4px solid #d97706;background:var(--panel);padding:.4rem .7rem;margin:.4rem 0;
border-radius:0 6px 6px 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .9rem;margin:.4rem 0;font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""


def _heat(low: int, high: int) -> str:
    steps = [f"hsl({_HEAT_HUE - i * 3} {45 + i * 4}% {low + (high - low) * i // 9}%)" for i in range(10)]
    return "".join(f".h{i}{{fill:{step}}}.legend i.h{i}{{background:{step}}}" for i, step in enumerate(steps))


def _css() -> str:
    light = _variables(_LIGHT, "#0f172a", "#52607a", "#f8fafc", "#ffffff", "#dbe2ec")
    dark = _variables(_DARK, "#e5e9f0", "#9aa6b8", "#10151d", "#18202b", "#2c3746")
    series = "".join(f".s{i}{{--c:var(--s{i})}}" for i in range(len(_LIGHT)))
    heat = f"{_heat(*_HEAT)}@media(prefers-color-scheme:dark){{{_heat(*_HEAT_DARK)}}}"
    scheme = f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return scheme + _RULES + series + heat


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table that is good or bad news (None: neither)."""

    text: str
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its title and what to know of it. ``wide`` ones take a row for themselves."""

    title: str
    svg: str
    caption: str = ""
    wide: bool = False

    def html(self) -> str:
        caption = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        kind = ' class="wide"' if self.wide else ""
        return f"<figure{kind}><h3>{escape(self.title)}</h3>{self.svg}{caption}</figure>"


def table(head: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, wrap: bool = False) -> str:
    """A table that scrolls sideways by itself where the screen is narrow, its first column staying in sight.

    Args:
        wrap: the first column holds phrases, which may take several lines.
    """

    def cell(value: str | Cell) -> str:
        if isinstance(value, str):
            return f"<td>{escape(value)}</td>"
        kind = "" if value.good is None else ' class="good"' if value.good else ' class="bad"'
        return f"<td{kind}>{escape(value.text)}</td>"

    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    top = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in rows)
    kind = ' class="wrap"' if wrap else ""
    return f'<div class="scroll"><table{kind}>{top}<tbody>{body}</tbody></table></div>'


def page(title: str, parts: Sequence[str | Figure | tuple[str, Sequence[Figure]]]) -> str:
    """A whole document.

    Args:
        parts: HTML text, a figure, or a heading with figures that stand in a grid.
    """
    out = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        elif isinstance(part, Figure):
            out.append(part.html())
        elif part[1]:
            out.append(f'<h2>{escape(part[0])}</h2><div class="grid">{"".join(f.html() for f in part[1])}</div>')
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_css()}</style></head><body><h1>{escape(title)}</h1>"
        f"{''.join(out)}</body></html>\n"
    )
