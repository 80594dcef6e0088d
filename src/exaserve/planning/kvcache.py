"""KV cache capacity as vLLM allocates it: blocks, groups of layers, states, and what it then prints.

One kind of layer: ``blocks = memory // (bytes of one block over the stage's layers)``, ``tokens = blocks x block``.

Several kinds (full and windowed attention, attention and states): layers are cut into groups of equal length, each of
one kind, and every block id stands for one page in each layer of *one* group. With g layers in a group and n groups a
request of L tokens holds ``sum over groups of its blocks``, so

    concurrency = blocks / blocks of a request of the longest length,
    tokens      = blocks // n x block                      (before 0.20)
    tokens      = concurrency x longest length             (since 0.20)

Where pages differ in size the smaller kind gets more tokens a block, and where a state needs more than a block of
attention the attention's block grows until the two are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from exaserve.models.architecture import Architecture
from exaserve.models.tensors import Cache, pad
from exaserve.planning.engine import BatchLimits, EngineVersion
from exaserve.planning.weights import Parallelism, stage_layers

__all__ = ["CacheGroup", "KvLayout", "KvResult", "kv_layout"]

BLOCKS_MAX = 1 << 40
STATE_ALIGNMENT = 16
LATENT_PADDING = 128
EXPANDED_HEAD = 256
GROUP_STRETCH = 1.5


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        cache: what each of them keeps.
        indices: positions among all caches of the model.
        block: tokens in one block of this group (0 for a state: one block a sequence).
        page_bytes: one block in one layer, on one rank.
    """

    cache: Cache
    indices: tuple[int, ...]
    block: int
    page_bytes: int

    def request_blocks(self, length: int, budget: int, state_blocks: int) -> int:
        """Blocks that a request of ``length`` tokens holds at most."""
        kind = self.cache.kind
        if kind == "state":
            return state_blocks
        if kind == "sliding":
            return math.ceil(min(self.cache.window - 1 + budget, length) / self.block) + 1
        if kind == "chunked":
            return math.ceil(min(self.cache.window + budget, length) / self.block)
        return math.ceil(length / self.block)


@dataclass(frozen=True, slots=True)
class KvResult:
    """What a given amount of memory holds.

    Attributes:
        tokens: as the engine prints it.
        concurrency: requests of the longest length at once.
        blocks: per group's block table.
        needed_bytes: what one request of the longest length needs, on the fullest rank.
        max_model_len: the longest that would start, at most what was asked.
    """

    tokens: int
    concurrency: float
    blocks: int
    needed_bytes: float
    max_model_len: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How the cache is cut, before memory is known.

    Attributes:
        groups: see :class:`CacheGroup`; empty for a model without cache.
        stage_bytes: per pipeline stage, bytes of one block id on a rank.
        state_blocks: blocks of a state a request holds.
        by_concurrency: which definition of the printed size holds.
    """

    groups: tuple[CacheGroup, ...]
    stage_bytes: tuple[int, ...]
    state_blocks: int
    by_concurrency: bool

    @property
    def block(self) -> int:
        """Smallest block among the groups, tokens."""
        return min((g.block for g in self.groups if g.block), default=16)

    def request_blocks(self, length: int, budget: int) -> int:
        return sum(g.request_blocks(length, budget, self.state_blocks) for g in self.groups)

    def bytes_per_token(self, stage: int = 0) -> float:
        """Bytes that one more token of a long request takes on a rank; windows and states take none."""
        growing = [g for g in self.groups if g.cache.kind in ("full", "mla")] or list(self.groups)
        return sum(self.stage_bytes[stage] / g.block for g in growing if g.block)

    def fit(self, stage_memory: Sequence[float], length: int, limits: BatchLimits) -> KvResult:
        """What ``stage_memory`` bytes per rank (one figure per stage) hold for requests of at most ``length``."""
        if not self.groups:
            return KvResult(BLOCKS_MAX, math.inf, 1, 0.0, length)
        blocks = min(
            (max(0, int(memory // size)) for memory, size in zip(stage_memory, self.stage_bytes, strict=True) if size),
            default=BLOCKS_MAX,
        )
        per_request = self.request_blocks(length, limits.tokens)
        needed = per_request * max(self.stage_bytes)
        concurrency = blocks / per_request if per_request else math.inf
        if len(self.groups) == 1:
            tokens = blocks * self.block
        elif self.by_concurrency:
            tokens = int(concurrency * length)
        else:
            tokens = blocks // len(self.groups) * self.block
        return KvResult(tokens, concurrency, blocks, needed, self._longest(blocks, length, limits.tokens))

    def _longest(self, blocks: int, length: int, budget: int) -> int:
        if self.request_blocks(length, budget) <= blocks:
            return length
        low, high = 0, length
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle, budget) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_layout(
    arch: Architecture,
    placement: Parallelism,
    version: EngineVersion,
    value_bytes: float = 2.0,
    block: int = 16,
    draft_layers: int = 0,
) -> KvLayout:
    """Cuts a model's cache into groups as the engine does.

    Args:
        value_bytes: of one cached value: 2, or 1 for an fp8 cache.
        block: tokens a block, as configured (an engine may enlarge it for hybrids).
        draft_layers: multi-token-prediction layers, which cache like the others, on the last stage.
    """
    caches: list[Cache] = []
    stage_of: list[int] = []
    for stage, indices in enumerate(stage_layers(len(arch.layers), placement)):
        for i in indices:
            caches += arch.layers[i].caches
            stage_of += [stage] * len(arch.layers[i].caches)
    if draft_layers and arch.draft:
        caches += list(arch.draft.caches) * draft_layers
        stage_of += [placement.pp - 1] * (len(caches) - len(stage_of))
    if not version.hybrid_caches:
        caches = [_as_full(c) for c in caches]
    if version.expands_latents:
        whole = Cache("full", arch.facts.heads, 2 * EXPANDED_HEAD)
        caches = [whole if c.kind == "mla" else c for c in caches]
    elif version.pads_latents and value_bytes == 2:
        caches = [replace(c, width=pad(c.width, LATENT_PADDING)) if c.kind == "mla" else c for c in caches]
    block = _block_for(caches, placement.tp, value_bytes, block)
    groups = _groups(caches, placement.tp, value_bytes, block)
    return KvLayout(
        groups=tuple(groups),
        stage_bytes=tuple(_stage_bytes(groups, stage_of, stage) for stage in range(placement.pp)),
        state_blocks=version.state_blocks,
        by_concurrency=version.tokens_by_concurrency,
    )


def _as_full(cache: Cache) -> Cache:
    """Engines without grouped caches keep windowed layers in full."""
    if cache.kind in ("sliding", "chunked"):
        return Cache("full", cache.heads, cache.width)
    return cache


def _block_for(caches: Sequence[Cache], tp: int, value_bytes: float, block: int) -> int:
    """The attention's block: enlarged until one page holds a state."""
    state = max((c.state_bytes(tp) for c in caches if c.kind == "state"), default=0)
    token = max((c.token_bytes(tp, value_bytes) for c in caches), default=0.0)
    if not state or not token:
        return block
    return max(block, STATE_ALIGNMENT * math.ceil(state / (STATE_ALIGNMENT * token)))


def _groups(caches: Sequence[Cache], tp: int, value_bytes: float, block: int) -> list[CacheGroup]:
    by_cache: dict[Cache, list[int]] = {}
    for index, cache in enumerate(caches):
        by_cache.setdefault(cache, []).append(index)
    if not by_cache:
        return []
    pages = {c: c.token_bytes(tp, value_bytes) * block if c.kind != "state" else 0.0 for c in by_cache}
    page = max(pages.values()) or max(c.state_bytes(tp) for c in by_cache)
    if all(c.kind in ("full", "mla") for c in by_cache) or len(by_cache) == 1:
        # One table for all, though layers may differ in width.
        groups = []
        for cache, indices in by_cache.items():
            size = pages[cache] or page
            groups.append(CacheGroup(cache, tuple(indices), block if cache.kind != "state" else 0, int(size)))
        return groups if len(groups) == 1 else [_merged(groups)]
    counts = [len(indices) for indices in by_cache.values()]
    size = max(counts) if max(counts) < min(counts) * GROUP_STRETCH else min(counts)
    groups = []
    for cache, indices in by_cache.items():
        own = block
        if cache.kind != "state" and pages[cache]:
            own = block * max(1, int(page // pages[cache]))
        number = math.ceil(len(indices) / size)
        groups += [
            CacheGroup(cache, tuple(indices[i::number]), 0 if cache.kind == "state" else own, int(page))
            for i in range(number)
        ]
    return groups


def _merged(groups: list[CacheGroup]) -> CacheGroup:
    """Layers of different width under one block table: the mean page, so that sums come out exactly."""
    indices = tuple(sorted(i for g in groups for i in g.indices))
    total = sum(g.page_bytes * len(g.indices) for g in groups)
    widest = max(groups, key=lambda g: g.page_bytes)
    return CacheGroup(widest.cache, indices, widest.block, total // len(indices))


def _stage_bytes(groups: Sequence[CacheGroup], stage_of: Sequence[int], stage: int) -> int:
    """Bytes of one block id on a rank of a stage: a page in each layer of its longest group there."""
    return max(
        (g.page_bytes * sum(1 for i in g.indices if stage_of[i] == stage) for g in groups),
        default=0,
    )
