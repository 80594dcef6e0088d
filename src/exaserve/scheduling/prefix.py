# compiled
"""Approximate prefix index: which replicas have probably cached the beginning of a prompt.

The engines cache KV by block, each block's key chained to the one before, so two prompts share exactly their common
leading blocks. The gateway has no tokenizer, so it chains hashes over bytes of prompt text instead. The index only
remembers where requests were *sent*; an engine may have evicted since. It is a hint inside the cost, never a promise.

Bounded by two generations: new and re-used blocks live in the current one; when that is full it becomes the old one
and the old one is dropped. That is LRU to within one generation, with no bookkeeping on look-up.
"""

from __future__ import annotations

__all__ = ["BLOCK_BYTES", "BLOCK_ENDS", "PrefixIndex", "block_hashes"]

BLOCK_BYTES = 512
"""The first blocks' prompt text, bytes: about 128 tokens, eight of vLLM's 16-token blocks."""
BLOCK_ENDS: tuple[int, ...] = (
    *range(512, 4_097, 512),
    *range(6_144, 32_769, 2_048),
    *range(40_960, 131_073, 8_192),
)
"""Where each block ends, bytes from the prompt's start. Blocks grow with depth, so that a hit is found to within a
quarter of its length and a prompt of 128 KiB has 34 blocks, not 256. What prompts share beyond changes no choice."""


def block_hashes(text: bytes, seed: int = 0) -> tuple[int, ...]:
    """Chained 64-bit hashes of the whole leading blocks of ``text``, shallowest first; a partial block is dropped.

    Those of another ``seed`` have nothing in common with them: engines keep such requests apart as well.

    Values are comparable inside one process only (Python's keyed hash, so a client cannot craft collisions).
    """
    size = len(text)
    chain = seed
    start = 0
    out = []
    for end in BLOCK_ENDS:
        if end > size:
            break
        chain = hash((chain, text[start:end]))
        out.append(chain)
        start = end
    return tuple(out)


class PrefixIndex:
    """Block hash → bit set of replicas (a Python integer, bit ``k`` for the replica with index ``k``)."""

    __slots__ = ("_current", "_entries_max", "_previous")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._current: dict[int, int] = {}
        self._previous: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def match(self, prefix: tuple[int, ...]) -> list[tuple[int, int]]:
        """Which replicas hold how much of ``prefix``.

        Returns:
            ``(bytes, bits)`` pairs, deepest first: the replicas in ``bits`` hold that much of the prompt's text. One
            may stand in several pairs; the first one counts. Empty where nobody has the first block.
        """
        current, previous = self._current, self._previous
        levels: list[tuple[int, int]] = []
        bits = -1
        held = 0
        for block, end in zip(prefix, BLOCK_ENDS, strict=False):
            found = current.get(block, 0)
            if previous:
                found |= previous.get(block, 0)
            shared = bits & found
            if shared != bits and held:
                levels.append((held, bits))
            if not shared:
                break
            bits, held = shared, end
        else:
            if held:
                levels.append((held, bits))
        levels.reverse()
        return levels

    def insert(self, prefix: tuple[int, ...], bit: int) -> None:
        """Remember that the replica with bit mask ``bit`` is about to hold ``prefix``."""
        current, previous = self._current, self._previous
        if previous:
            for block in prefix:
                current[block] = current.get(block, 0) | previous.get(block, 0) | bit
        else:
            for block in prefix:
                current[block] = current.get(block, 0) | bit
        if len(current) >= self._entries_max:
            self._previous = current
            self._current = {}

    def clear(self) -> None:
        self._current = {}
        self._previous = {}

    def validate(self) -> None:
        assert len(self._current) < self._entries_max + len(BLOCK_ENDS)
        assert len(self._previous) < self._entries_max + len(BLOCK_ENDS)
