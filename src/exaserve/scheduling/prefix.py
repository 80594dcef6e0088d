"""Approximate prefix index: which replicas have probably cached the beginning of a prompt (X1).

The engines cache KV by block, each block's key chained to the one before, so two prompts share exactly their common
leading blocks. The gateway has no tokenizer, so it chains hashes over bytes of prompt text instead. The index only
remembers where requests were *sent*; an engine may have evicted since. It is a hint inside the cost, never a promise.

Bounded by two generations: new and re-used blocks live in the current one; when that is full it becomes the old one
and the old one is dropped. That is LRU to within one generation, with no bookkeeping on look-up.
"""

from __future__ import annotations

__all__ = ["BLOCKS_MAX", "BLOCK_BYTES", "PrefixIndex", "block_hashes"]

BLOCK_BYTES = 512
"""Prompt text per block, bytes: about 128 tokens, eight of vLLM's 16-token blocks. Smaller finds more, costs more."""
BLOCKS_MAX = 256
"""Leading blocks that are hashed: 128 KiB of text. What two prompts share beyond that does not change a choice."""


def block_hashes(text: bytes) -> tuple[int, ...]:
    """Chained 64-bit hashes of the whole leading blocks of ``text``, shallowest first; a partial block is dropped.

    Values are comparable inside one process only (Python's keyed hash, so a client cannot craft collisions).
    """
    n = min(len(text) // BLOCK_BYTES, BLOCKS_MAX)
    chain = 0
    out = []
    for start in range(0, n * BLOCK_BYTES, BLOCK_BYTES):
        chain = hash((chain, text[start : start + BLOCK_BYTES]))
        out.append(chain)
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
            ``(blocks, bits)`` pairs, deepest first: the replicas in ``bits`` have that many leading blocks. A replica
            may stand in several pairs; the first one counts. Empty where nobody has the first block.
        """
        current, previous = self._current, self._previous
        levels: list[tuple[int, int]] = []
        bits = -1
        for depth, block in enumerate(prefix):
            found = current.get(block, 0) | previous.get(block, 0)
            shared = bits & found
            if shared != bits and depth:
                levels.append((depth, bits))
            if not shared:
                break
            bits = shared
        else:
            if prefix:
                levels.append((len(prefix), bits))
        levels.reverse()
        return levels

    def insert(self, prefix: tuple[int, ...], bit: int) -> None:
        """Remember that the replica with bit mask ``bit`` is about to hold ``prefix``."""
        current, previous = self._current, self._previous
        for block in prefix:
            current[block] = current.get(block, 0) | previous.get(block, 0) | bit
        if len(current) >= self._entries_max:
            self._previous = current
            self._current = {}

    def clear(self) -> None:
        self._current = {}
        self._previous = {}

    def validate(self) -> None:
        assert len(self._current) < self._entries_max + BLOCKS_MAX
        assert len(self._previous) < self._entries_max + BLOCKS_MAX
