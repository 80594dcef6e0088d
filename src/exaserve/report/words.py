"""Figures as people read them: four digits at most, no exponents, a unit that suits. PURE."""

from __future__ import annotations

import math

__all__ = ["number", "seconds"]


def seconds(value: float) -> str:
    """A duration in a unit that suits it: ``850 ms``, ``2.2 s``, ``3 min``; a dash for NaN."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size < 1e-3:
        return f"{value * 1e6:.0f} µs" if size else "0"
    if size < 0.01:
        return f"{value * 1e3:.2f} ms"
    if size < 1.0:
        return f"{value * 1e3:.3g} ms" if size < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.3g} s" if size < 600.0 else f"{value / 60.0:.0f} min"


def number(value: float) -> str:
    """Four significant digits, whole above a thousand: ``0.0667``, ``3.55``, ``113.6``, ``21,350``; a dash for NaN."""
    if not math.isfinite(value):
        return "-"
    if value == 0.0:
        return "0"
    digits = 3 - math.floor(math.log10(abs(value)))
    if digits <= 0:
        return f"{value:,.0f}"
    text = f"{value:,.{min(digits, 9)}f}"
    return text.rstrip("0").rstrip(".")
