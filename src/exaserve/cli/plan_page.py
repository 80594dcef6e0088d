"""A sweep as a page by itself: cost against what a card gives, and the table under it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from exaserve.cli.plan_speed import band_text
from exaserve.planning import SweepRow
from exaserve.report import Cell, Figure, Point, page, scatter, table

__all__ = ["sweep_page"]

_SIZES = {1: 4.0, 2: 5.0, 4: 6.5, 8: 8.5}
NAMED_MAX = 14
"""Cards whose cheapest combination is named in the plot."""

_HEAD = (
    "card", "weights", "TP", "GiB a rank", "KV tokens", "replicas", "cards", "tokens/s a card", "P99 first",
    "per token", "measured like it",
)  # fmt: skip


def sweep_page(rows: Sequence[SweepRow], title: str, note: str, currency: str) -> str:
    """HTML with its own plot."""
    good = [r for r in rows if r.works and r.per_million_tokens and r.tokens_s > 0]
    picture = "<p>None of them holds the demand.</p>"
    if good:
        formats = sorted({r.fmt for r in good})
        named: set[str] = set()
        points = []
        for r in good:
            label = r.hardware if r.hardware not in named and len(named) < NAMED_MAX else ""
            named.add(r.hardware)
            about = f"{r.hardware}, {r.fmt}, TP {r.tp}: {r.replicas} replicas, {r.cards} cards"
            size = _SIZES.get(r.tp, 8.5)
            points.append(Point(r.tokens_s, r.per_million_tokens or 1.0, formats.index(r.fmt), size, label, about))
        drawn = scatter(
            points,
            formats,
            "cost against speed",
            "output tokens per second and card, within the targets",
            f"{currency} per million tokens",
        )
        caption = "Larger circles: wider tensor parallel. Named: the cheapest combination of a card."
        picture = Figure("Cost against what a card gives", drawn, caption, wide=True).html()
    body = table([*_HEAD, f"{currency}/M tokens"], [_row(r) for r in rows])
    return page(title, [f"<p>{escape(note)}</p>", picture, body])


def _row(r: SweepRow) -> list[str | Cell]:
    start: list[str | Cell] = [r.hardware, r.fmt, str(r.tp), f"{r.weights_gib:.1f}"]
    if not r.works or r.per_million_tokens is None:
        return [*start, "", "", "", "", "", "", "", Cell(r.why, good=False)]
    figures = [f"{r.tokens:,}", f"{r.replicas:,}", f"{r.cards:,}", f"{r.tokens_s:,.0f}"]
    times = [band_text(r.first_band_s), band_text(r.token_band_s, 1)]
    return [*start, *figures, *times, f"{r.like_rows:,}: {r.like or 'any'}", f"{r.per_million_tokens:.3f}"]
