# compiled
"""KV blocks of one engine: counts, a prefix cache of hash-chained full blocks, and LRU eviction.

Every block is in exactly one of four states::

    blank free ──take──▶ private ──publish──▶ shared (references ≥ 1) ──last release──▶ cached free (LRU)
        ▲                  │                      ▲                                         │   │
        └─────give─────────┘                      └───────────────hit───────────────────────┘   │
        ▲                                                                                       │
        └──────────────────────────── evicted when blank ones run out ◀─────────────────────────┘

Only shared and cached blocks need an identity (their hash), so private ones are a number: allocating or freeing them
costs the same for one as for a thousand. Blank blocks are taken before cached ones; a real engine takes strictly the
block freed longest ago, which differs only where a private block was freed after a cached one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """The blocks of one replica's KV cache.

    Args:
        total: blocks in all.
        caching: whether full blocks are kept for later prompts that begin the same way.

    Attributes:
        free: blocks that can be handed out: blank ones, and cached ones nobody uses.
    """

    __slots__ = ("_cached", "_shared", "blank", "caching", "evictions_total", "free", "private", "total")

    def __init__(self, total: int, caching: bool) -> None:
        self.total = total
        self.caching = caching
        self.blank = total
        self.free = total
        self.private = 0
        self.evictions_total = 0
        self._shared: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def cached(self) -> int:
        """Blocks whose content may be hit, in use or not."""
        return len(self._cached) + len(self._shared)

    @property
    def use(self) -> float:
        """Share of blocks in use, 0..1 (cached blocks that nobody uses count as free, as engines report it)."""
        return 1.0 - self.free / self.total

    def lookup(self, hashes: Sequence[int], limit: int) -> tuple[int, int]:
        """Leading blocks of a prompt that are held: (hits, how many of those are free now). Changes nothing."""
        hits = free = 0
        if self.caching:
            shared, cached = self._shared, self._cached
            for h in hashes:
                if hits >= limit:
                    break
                if h in cached:
                    free += 1
                elif h not in shared:
                    break
                hits += 1
        return hits, free

    def hit(self, hashes: Sequence[int], count: int) -> None:
        """Takes a reference on each of the first ``count`` blocks, which :meth:`lookup` found."""
        shared, cached = self._shared, self._cached
        for h in hashes[:count]:
            if h in cached:
                del cached[h]
                shared[h] = 1
                self.free -= 1
            else:
                shared[h] += 1

    def take(self, count: int) -> bool:
        """Hands out ``count`` private blocks, evicting the oldest cached ones if needed; False (and nothing) if too
        few.
        """
        short = count - self.blank
        if short > 0:
            cached = self._cached
            if short > len(cached):
                return False
            for _ in range(short):
                cached.popitem(last=False)
            self.evictions_total += short
            self.blank += short
        self.take_blank(count)
        return True

    def take_blank(self, count: int) -> None:
        """As :meth:`take`, where there are that many blank ones."""
        self.blank -= count
        self.free -= count
        self.private += count

    def publish(self, h: int) -> bool:
        """Makes one private block shared under its hash. False if such a block exists already: then it stays
        private.
        """
        if h in self._shared or h in self._cached or not self.caching:
            return False
        self._shared[h] = 1
        self.private -= 1
        return True

    def give(self, private: int, held: Sequence[int]) -> None:
        """Takes back a sequence's blocks. Its deepest shared blocks become the oldest, so that a prefix dies from its
        end.
        """
        self.private -= private
        self.blank += private
        self.free += private
        if not held:
            return
        shared, cached = self._shared, self._cached
        for h in reversed(held):
            references = shared[h] - 1
            if references:
                shared[h] = references
            else:
                del shared[h]
                cached[h] = None
                self.free += 1

    def validate(self) -> None:
        """Asserts that no block is lost or counted twice."""
        assert self.blank >= 0
        assert self.private >= 0
        assert self.free == self.blank + len(self._cached)
        assert self.blank + self.private + len(self._shared) + len(self._cached) == self.total
        assert not self._shared.keys() & self._cached.keys()
        assert all(n >= 1 for n in self._shared.values())
        assert self.caching or not self.cached
