"""Names as people write them: compared without case and punctuation, and the nearest ones after one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["name_key", "nearest"]

_LISTED_MAX = 16
"""Names that a message may list; a catalogue would bury the error."""


def name_key(name: str) -> str:
    """Letters and digits only, in lower case; dots between digits stay, for ``Qwen2.5`` is not ``Qwen25``."""
    return "".join(c for c in name.lower() if c.isalnum() or c == ".")


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for an error message: which of ``known`` may have been meant."""
    lower = {each.lower(): each for each in known}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    if len(lower) <= _LISTED_MAX:
        return f"Known: {', '.join(sorted(lower.values()))}."
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.0)]
    return f"It is like none of the {len(lower)} known; the nearest are {', '.join(near)}."
