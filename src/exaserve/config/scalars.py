"""Durations and sizes as people write them: ``200ms``, ``5s``, ``2m``, ``64MiB``."""

from __future__ import annotations

import math
import re

__all__ = ["duration_s", "show_duration", "size_bytes"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")
_DURATION_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB)")
_SIZE_UNIT_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}


def duration_s(value: str | float) -> float:
    """Seconds in ``value``: text with a unit (parts add up, ``1m30s``), or a number of seconds.

    Raises:
        ValueError: with a message that says what is accepted.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(float(value))
    text = str(value).strip()
    parts = list(_DURATION.finditer(text))
    if not parts or "".join(part.group() for part in parts) != text:
        message = f"{_quote(text)} is not a duration; write 200ms, 5s, 2m, 1h, or a number of seconds"
        raise ValueError(message)
    return _finite(sum(float(part[1]) * _DURATION_UNIT_S[part[2]] for part in parts))


def size_bytes(value: str | int) -> int:
    """Bytes in ``value``: text with a unit (``64MiB``), or a number of bytes.

    Raises:
        ValueError: with a message that says what is accepted.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        message = f"{_quote(str(value))} is not a size; write 64MiB, 500kB, or a number of bytes"
        raise ValueError(message)
    return int(_finite(float(match[1]) * _SIZE_UNIT_BYTES[match[2]]))


def show_duration(seconds: float) -> str:
    """The shortest exact spelling that :func:`duration_s` reads back, such as ``200ms`` or ``5s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        scaled = seconds * scale
        if abs(scaled - round(scaled)) < 1e-9 * max(1.0, scaled):
            return f"{round(scaled)}{unit}"
    return f"{seconds:g}s"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = "must be a finite number"
        raise ValueError(message)
    return value


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
