"""Cleaning of captured text: escapes, prefixes of launchers, lists of CPUs. Bounded, and total: no input raises."""

from __future__ import annotations

import re

__all__ = ["clean_lines", "count_of", "cpu_list", "number", "plain_names", "strip_launcher", "whole"]

LINES_MAX = 50_000
"""More lines than any of these tools print; the rest of a hostile file is not read."""
LINE_CHARS_MAX = 20_000

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
# mpirun --tag-output, srun --label, docker compose, kubectl logs --prefix, pdsh and clush, time stamps.
_LAUNCHER = re.compile(
    r"^\s*(?:\[\d+,\d+\](?:<std(?:out|err|diag)>)?:?\s?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s"
    r"|\[pod/[^\]]+\]\s|[\w.-]+\s+\|\s|\d{1,5}:\s)"
)


def clean_lines(text: str) -> list[str]:
    """Lines without terminal escapes, carriage returns, no-break spaces and quotation marks of markdown."""
    text = _ESCAPES.sub("", text[: LINES_MAX * 200]).replace("\u00a0", " ").replace("\ufeff", "")
    lines = re.split(r"\r\n|\n|\r", text)[:LINES_MAX]
    return [re.sub(r"^(?:> ?)+", "", line[:LINE_CHARS_MAX]) for line in lines]


def strip_launcher(line: str) -> str:
    """The line without what mpirun, srun, kubectl or a log put before it (twice at most: time stamp and rank)."""
    for _ in range(2):
        shorter = _LAUNCHER.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return line


def number(token: str) -> float | None:
    """A finite number, with ``_`` or ``,`` between digits allowed; None where the token is none."""
    token = token.replace("_", "").replace(",", "")
    if not re.fullmatch(r"[+-]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,2})?", token, re.ASCII):
        return None
    return float(token)


def whole(token: str) -> int | None:
    """A whole number, decimal or 0x…; None where the token is none."""
    token = token.strip().replace("_", "")
    if re.fullmatch(r"[+-]?\d{1,30}", token, re.ASCII):
        return int(token)
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,30}", token):
        return int(token, 16)
    return None


def cpu_list(text: str) -> frozenset[int]:
    """CPUs of a list such as ``0-3,8,10-11``; parts that are none of that are left out. At most 65,536 CPUs."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part, re.ASCII)
        if match is None:
            continue
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        found.update(range(first, min(last, first + 65_535) + 1))
        if len(found) > 65_536:
            break
    return frozenset(found)


def count_of(number: int, noun: str) -> str:
    """``1 port``, ``2 ports``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plain_names(names: object, most: int = 12) -> str:
    """``GPU0, GPU1`` for a message, cut after ``most`` names."""
    listed = [str(each) for each in names] if isinstance(names, (list, tuple, set, frozenset)) else [str(names)]
    shown = ", ".join(listed[:most])
    return shown if len(listed) <= most else f"{shown} and {len(listed) - most} more"
