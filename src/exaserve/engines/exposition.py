"""The few samples that matter out of a Prometheus text exposition, without reading the rest of it.

A vLLM exposition is 50 kB and 600 lines, of which about ten lines are wanted, five times a second per replica.
Splitting at the ``# TYPE`` lines and looking up each family's name touches the text twice at memory speed; only wanted
families are read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

__all__ = ["Families", "label", "samples", "whole"]

_TYPE = b"\n# TYPE "
_LABELS = rb'(?:\{((?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?'
"""Label values may hold braces, spaces and escaped quotes; possessive, so that hostile text costs linear time."""
_SAMPLE_TAIL = re.compile(_LABELS + rb"[ \t]+(\S+)", re.DOTALL)
_VALUE_MAX = 1e18
"""No count or capacity is larger; above it (and below zero) a value is garbage."""


class Families:
    """An exposition with its wanted families found; others are searched for only if need be."""

    __slots__ = ("_exposition", "_found", "_typed")

    def __init__(self, exposition: bytes, wanted: Collection[bytes]) -> None:
        self._exposition = exposition
        self._found = _families(exposition, wanted)
        self._typed = b"# TYPE " in exposition

    def lines(self, name: bytes, *, required: bool) -> bytes:
        """Lines with samples of ``name``. Without a ``# TYPE`` line only a required metric is worth a search."""
        found = self._found.get(name)
        if found is None:
            found = _search_samples(self._exposition, name) if required or not self._typed else b""
            self._found[name] = found
        return found


def _families(exposition: bytes, wanted: Collection[bytes]) -> dict[bytes, bytes]:
    """Families among ``wanted`` by name, each with its sample lines (and perhaps the next family's ``# HELP``).

    The last line counts only if it is terminated, as the format demands: a number cut short is a wrong number.
    """
    parts = exposition.split(_TYPE)
    parts[-1] = parts[-1][: parts[-1].rfind(b"\n") + 1]
    if parts[0].startswith(_TYPE[1:]):
        parts[0] = parts[0][len(_TYPE) - 1 :]
    else:
        del parts[0]
    found: dict[bytes, bytes] = {}
    for part in parts:
        name = part[: part.find(b" ")]
        if name in wanted and name not in found:
            found[name] = part[part.find(b"\n") + 1 :]
    return found


def samples(part: bytes, name: bytes) -> Iterator[tuple[bytes, float | None]]:
    """``(labels, value)`` of each line of ``part`` that is a sample of exactly ``name``.

    The value is None where it cannot be true of a count, a share or a size: NaN, infinite, negative or no number.
    """
    size = len(name)
    for line in part.split(b"\n"):
        if line.startswith(name) and line[size : size + 1] in _AFTER_NAME:
            match = _SAMPLE_TAIL.match(line, size)
            if match is None:
                yield b"", None
            else:
                yield match[1] or b"", _number(match[2])


def _search_samples(exposition: bytes, name: bytes) -> bytes:
    """Lines that begin with ``name``, wherever they stand: for expositions without ``# TYPE`` lines. Slower."""
    lines: list[bytes] = []
    start = 0 if exposition.startswith(name) else exposition.find(b"\n" + name) + 1
    while start > 0 or (start == 0 and not lines and exposition.startswith(name)):
        end = exposition.find(b"\n", start)
        if end < 0:
            break
        lines.append(exposition[start:end])
        start = exposition.find(b"\n" + name, end) + 1
    return b"\n".join(lines)


def label(labels: bytes, name: bytes) -> str | None:
    """Value of label ``name`` within ``labels``, unescaped, or None.

    Quotes inside values are escaped, so ``name="`` after a comma is a label wherever it stands.
    """
    opening = name + b'="'
    start = labels.find(opening)
    while start > 0 and labels[start - 1 : start] not in _BEFORE_LABEL:
        start = labels.find(opening, start + 1)
    if start < 0:
        return None
    start += len(opening)
    end = labels.find(b'"', start)
    if b"\\" not in labels[start:end]:
        return labels[start:end].decode("utf-8", "replace")
    match = _QUOTED.match(labels, start)
    text = match[0].decode("utf-8", "replace") if match else ""
    return _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], text)


def whole(text: str | None) -> int | None:
    """A label's value as a whole number, None where it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 15 else None


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= _VALUE_MAX and b"_" not in text else None


_AFTER_NAME = (b"{", b" ", b"\t")
_BEFORE_LABEL = (b",", b" ")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_QUOTED = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
