"""Groups of directly linked cards, inference units inside them, and the NIC nearest to each card.

Words: two cards are *linked* when their own interconnect (NVLink, XGMI) joins them without the PCIe tree. A *group* is
what such links hold together. It is *full* when every pair of it is linked. An *inference unit* is a set of cards,
every pair of it linked, that carries one engine with tensor parallelism; a card is in one unit at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

__all__ = ["CardUnit", "NicChoice", "choose_nics", "groups_of", "is_full", "pack_units"]

STEPS_MAX = 10_000
"""Bound of the search for units in a group that is not full; a 16-card hybrid mesh needs about a thousand."""


@dataclass(frozen=True, slots=True)
class CardUnit:
    """Cards of one engine; ``presumed`` where some pair's link was not in the output."""

    cards: tuple[str, ...]
    presumed: bool = False


@dataclass(frozen=True, slots=True)
class NicChoice:
    """NICs nearest to one card.

    Attributes:
        nic: the one that this card should use; empty where it has none.
        level: how near, such as PIX.
        nearest: all NICs at that distance.
        shared: another card was given the same NIC, for want of one of its own.
    """

    nic: str
    level: str
    nearest: tuple[str, ...] = ()
    shared: bool = False


def groups_of(cards: Sequence[str], linked: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
    """Connected parts, in the order of ``cards``; a card without a link is a group of one."""
    left = list(cards)
    found = []
    while left:
        group = [left.pop(0)]
        for card in group:
            near = [other for other in left if linked(card, other)]
            group += near
            left = [other for other in left if other not in near]
        found.append(tuple(sorted(group, key=list(cards).index)))
    return found


def is_full(cards: Sequence[str], linked: Callable[[str, str], bool]) -> bool:
    return all(linked(a, b) for a, b in combinations(cards, 2))


def pack_units(
    group: Sequence[str],
    size: int,
    linked: Callable[[str, str], bool],
    strength: Callable[[str, str], float],
    order: Callable[[str], object],
) -> list[tuple[str, ...]]:
    """As many sets of ``size`` cards as fit, every pair linked, none twice; among equals the strongest links.

    Args:
        group: cards of one group.
        linked, strength: of a pair.
        order: cards near each other in this order (NUMA node, index) are put together first.
    """
    cards = sorted(group, key=order)  # type: ignore[arg-type] # any comparable key
    if size < 1 or len(cards) < size:
        return []
    if is_full(cards, linked):
        return [tuple(cards[i : i + size]) for i in range(0, len(cards) - size + 1, size)]
    best: list[tuple[str, ...]] = []
    best_strength = -1.0
    steps = 0

    def search(left: tuple[str, ...], taken: list[tuple[str, ...]], total: float) -> None:
        nonlocal best, best_strength, steps
        steps += 1
        if (len(taken), total) > (len(best), best_strength):
            best, best_strength = list(taken), total
        # The bound on what is still possible prunes; the bound on steps ends a hostile input.
        if steps > STEPS_MAX or len(left) < size or len(taken) + len(left) // size < len(best):
            return
        first, rest = left[0], left[1:]
        near = [card for card in rest if linked(first, card)]
        for others in combinations(near, size - 1):
            steps += 1
            if steps > STEPS_MAX:
                return
            if is_full(others, linked):
                unit = (first, *others)
                gain = sum(strength(a, b) for a, b in combinations(unit, 2))
                search(tuple(card for card in rest if card not in others), [*taken, unit], total + gain)
        search(rest, taken, total)

    search(tuple(cards), [], 0.0)
    return best


def choose_nics(
    cards: Sequence[str], nics: Sequence[str], level: Mapping[tuple[str, str], str], rank: Mapping[str, int]
) -> dict[str, NicChoice]:
    """The NIC of each card: among its nearest ones, none given twice as long as that is possible.

    Args:
        level: distance of (card, nic), such as PXB; pairs that are not known are left out.
        rank: order of the distances, nearest first; a distance without a rank is not a choice (SYS crosses sockets).
    """
    near: dict[str, tuple[str, tuple[str, ...]]] = {}
    for card in cards:
        known = [(rank[level[card, nic]], nic) for nic in nics if level.get((card, nic)) in rank]
        if known:
            lowest = min(known)[0]
            names = tuple(nic for distance, nic in known if distance == lowest)
            near[card] = (level[card, names[0]], names)
    owner: dict[str, str] = {}

    def give(card: str, tried: set[str]) -> bool:
        free = [nic for nic in near[card][1] if nic not in owner]
        if free:
            owner[free[0]] = card
            return True
        for nic in near[card][1]:
            if nic not in tried:
                tried.add(nic)
                if give(owner[nic], tried):
                    owner[nic] = card
                    return True
        return False

    without = [card for card in cards if card in near and not give(card, set())]
    chosen = {card: NicChoice(nic, *near[card]) for nic, card in owner.items()}
    uses = dict.fromkeys(owner, 1)
    for card in without:
        nic = min(near[card][1], key=lambda each: (uses.get(each, 0), near[card][1].index(each)))
        uses[nic] = uses.get(nic, 0) + 1
        chosen[card] = NicChoice(nic, *near[card], shared=True)
    return {card: chosen.get(card, NicChoice("", "")) for card in cards}
