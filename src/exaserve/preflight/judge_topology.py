"""Judges ``nvidia-smi topo -m``: links, groups, units, the NIC of each card, and what the output cannot tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from exaserve.preflight.links import CardUnit, NicChoice, choose_nics, groups_of, is_full, pack_units
from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import cpu_list, plain_names, whole
from exaserve.preflight.topology import RANK, Topology, is_nvlink, parse_topology

__all__ = ["judge_topology"]

LINKS_PER_CARD_MAX = 18
"""NVLinks of one card, Hopper and Blackwell; a card with more bonded links in sum to its peers hangs on a switch."""


def judge_topology(text: str, context: Context) -> Judgement:
    """Every table of the text; facts hold one entry per table under ``tables``."""
    tables = parse_topology(text)
    links = [table for table in tables if table.kind == "links"]
    if not tables:
        return not_understood("topology table")
    summaries, findings, facts, lines = [], [], [], list[str]()
    for i, table in enumerate(links, 1):
        view = _View(table, context)
        prefix = f"table {i}: " if len(links) > 1 else ""
        found = view.findings()
        findings += [CheckFinding(f.code, f.verdict, prefix + f.text, f.repair) for f in found]
        facts.append(view.facts())
        summaries.append(prefix + view.summary())
        lines += view.lines()
    peers = [table for table in tables if table.kind == "peers"]
    for table in peers:
        findings += _peer_findings(table)
    if not links:
        findings.append(unknown("PF-TOPO-001", "the output has no table of links (topo -m), only one of peer access"))
        summaries.append(f"peer access of {len(peers[0].cards)} cards")
    return Judgement("; ".join(summaries), tuple(findings), {"tables": facts}, tuple(lines))


def _peer_findings(table: Topology) -> list[CheckFinding]:
    off = [(a, b, word) for a, b in combinations(table.cards, 2) if (word := table.link(a, b)) not in {None, "OK"}]
    found = []
    if off:
        words = ", ".join(sorted({word for _, _, word in off if word}))
        pairs = plain_names([f"{a}-{b}" for a, b, _ in off], 6)
        found.append(warning("PF-TOPO-013", f"no peer access between {pairs} ({words}): copies pass through the host"))
    if table.missing_rows:
        found.append(_rows_missing(table))
    return found


def _rows_missing(table: Topology) -> CheckFinding:
    unreadable = [note.text for note in table.notes if note.kind == "row unreadable"]
    why = f" ({plain_names(unreadable, 3)})" if unreadable else ""
    return unknown("PF-TOPO-001", f"no readable row for {plain_names(table.missing_rows)}{why}")


@dataclass
class _View:
    """One table of links, looked at from all sides. The table never changes, so what is asked often is kept."""

    table: Topology
    context: Context

    # -------------------------------------------------------------------------------------------- what is linked
    def nvlinks(self, a: str, b: str) -> int:
        """The fewer of both directions: a link that one side has lost is lost."""
        known = [is_nvlink(word) for word in (self.table.cells.get((a, b)), self.table.cells.get((b, a))) if word]
        return min(known, default=0)

    def linked(self, a: str, b: str) -> bool:
        return self.nvlinks(a, b) > 0

    @cached_property
    def unknown_pairs(self) -> list[tuple[str, str]]:
        return [(a, b) for a, b in combinations(self.table.cards, 2) if self.table.link(a, b) is None]

    @cached_property
    def switched(self) -> bool:
        """More bonded links in sum than a card has: they go to a switch, which joins all cards on it."""
        cards = self.table.cards
        return any(sum(self.nvlinks(a, b) for b in cards if b != a) > LINKS_PER_CARD_MAX for a in cards)

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        return groups_of(self.table.cards, self.linked)

    @cached_property
    def direct(self) -> bool:
        return any(self.linked(a, b) for a, b in combinations(self.table.cards, 2))

    def near(self, a: str, b: str) -> bool:
        return (self.table.link(a, b) or "") in RANK

    def numa(self, card: str) -> int | None:
        nodes = cpu_list(self.table.affinity[card].numa) if card in self.table.affinity else frozenset()
        return min(nodes, default=None)

    @cached_property
    def units(self) -> list[CardUnit]:
        size = self.context.unit_for(len(self.table.cards))
        nodes = {card: self.numa(card) for card in self.table.cards}
        whole = None not in nodes.values()  # a card of unknown node would be put on the wrong side of the others
        order = {card: (nodes[card] if whole else 0, i) for i, card in enumerate(self.table.cards)}
        missing, switched, direct = set(self.unknown_pairs), self.switched, self.direct

        def joined(a: str, b: str) -> bool:
            if not direct:
                return self.near(a, b)
            return self.linked(a, b) or (switched and ((a, b) in missing or (b, a) in missing))

        def strength(a: str, b: str) -> float:
            return self.nvlinks(a, b) if direct else 4 - RANK.get(self.table.link(a, b) or "", 4)

        # Pairs that are not in the output may join cards of one switch, so groups are formed the same way.
        found = []
        for group in groups_of(self.table.cards, joined):
            for cards in pack_units(group, size, joined, strength, order.__getitem__):
                presumed = any(pair in missing for pair in combinations(sorted(cards, key=self.table.cards.index), 2))
                found.append(CardUnit(tuple(sorted(cards, key=self.table.cards.index)), presumed))
        return found

    def fully_connected(self) -> bool | None:
        cards = self.table.cards
        known = [pair for pair in combinations(cards, 2) if self.table.link(*pair) is not None]
        if any(not self.linked(*pair) for pair in known):
            return False
        return None if len(cards) < 2 or len(known) < len(cards) * (len(cards) - 1) // 2 else True

    # -------------------------------------------------------------------------------------------- NICs
    def uniform_nics(self) -> str:
        """The one word between all cards and all NICs if it says nothing about the nearest, else empty."""
        words = {self.table.link(card, nic) for card in self.table.cards for nic in self.table.nics}
        word = next(iter(words)) if len(words) == 1 else None
        return word if word in {"PHB", "SYS"} and self.context.virtual is not False else ""

    @cached_property
    def nics(self) -> dict[str, NicChoice]:
        if self.uniform_nics():
            return {}
        cards, nics = self.table.cards, self.table.nics
        level = {
            (card, nic): word for card in cards for nic in nics if (word := self.table.link(card, nic)) is not None
        }
        return choose_nics(cards, nics, level, RANK)

    # -------------------------------------------------------------------------------------------- findings
    def findings(self) -> list[CheckFinding]:
        table = self.table
        found: list[CheckFinding] = []
        if table.missing_rows:
            found.append(_rows_missing(table))
        for note in table.notes:
            if note.kind == "no header":
                found.append(unknown("PF-TOPO-014", note.text))
            elif note.kind in {"row twice", "unknown word", "row without column"}:
                found.append(unknown("PF-TOPO-001", note.text))
        found += self._asymmetries()
        found += self._lost()
        if len(table.cards) > 1 and not self.direct:
            found += self._without_links()
        found += self._units_findings()
        found += self._nic_findings()
        found += self._affinity_findings()
        return found

    def _asymmetries(self) -> list[CheckFinding]:
        cells = self.table.cells
        pairs = [
            f"{a}-{b} ({cells[a, b]} one way, {cells[b, a]} the other)"
            for a, b in combinations(self.table.columns, 2)
            if (a, b) in cells and (b, a) in cells and cells[a, b] != cells[b, a]
        ]
        return [failed("PF-TOPO-002", f"the two directions differ: {plain_names(pairs, 6)}")] if pairs else []

    def _lost(self) -> list[CheckFinding]:
        """Links that the machine type, or the rest of the machine, has and some pair has not."""
        cards, machine = self.table.cards, self.context.machine
        found = []
        if machine is not None and machine.cards and len(cards) != machine.cards:
            found.append(failed("PF-TOPO-012", f"{len(cards)} cards, but {machine.name} has {machine.cards}"))
        known = [(a, b) for a, b in combinations(cards, 2) if self.table.link(a, b) is not None]
        counts = Counter(self.nvlinks(a, b) for a, b in known)
        promised = is_nvlink(machine.link) if machine is not None else 0
        if promised and machine is not None and machine.group >= len(cards):
            usual, why = promised, f"{machine.name} has {machine.link} between every pair"
        elif promised and machine is not None:
            few = [card for card in cards if not any(self.nvlinks(card, b) >= promised for b in cards if b != card)]
            whole_rows = [
                card
                for card in few
                if all((a, b) in known or (b, a) in known for a in (card,) for b in cards if b != a)
            ]
            if whole_rows:
                promise = f"the {machine.link} that {machine.name} has in groups of {machine.group}"
                text = f"{plain_names(whole_rows)} without {promise}"
                found.append(failed("PF-TOPO-003", text))
            return found
        else:
            usual, times = max(((n, c) for n, c in counts.items() if n), key=lambda each: each[1], default=(0, 0))
            if not usual:
                return found
            mates = max(self.groups, key=len)
            alone = [card for card in cards if all(not self.linked(card, b) for b in cards if b != card)]
            # Two thirds of all pairs alike is a mesh with a fault; a hybrid mesh (8 cards of Volta) has 28 % of each.
            mesh = times * 3 >= len(known) * 2 or (is_full(mates, self.linked) and len(mates) * 2 > len(cards) > 4)
            if not mesh or len(known) < 3:
                if alone and self.direct:
                    text = f"{plain_names(alone)} without NVLink beside a group of {len(mates)}"
                    found.append(
                        warning("PF-TOPO-003", text, "If these cards have NVLink, their bridge or tray has lost it.")
                    )
                return found
            why = f"{times} of {len(known)} pairs have NV{usual}"
        weak = [f"{a}-{b} {self.worst_word(a, b)}" for a, b in known if self.nvlinks(a, b) < usual]
        if weak:
            found.append(failed("PF-TOPO-003", f"lost link: {plain_names(weak, 8)}, while {why}"))
        return found

    def worst_word(self, a: str, b: str) -> str:
        words = [word for word in (self.table.cells.get((a, b)), self.table.cells.get((b, a))) if word]
        return min(words, key=is_nvlink, default="unknown")

    def _without_links(self) -> list[CheckFinding]:
        cards, machine = self.table.cards, self.context.machine
        words = {self.table.link(a, b) for a, b in combinations(cards, 2)}
        if machine is not None and machine.link and not self.unknown_pairs:
            return []  # said as a lost link
        if self.unknown_pairs:
            because = f"the links of {len(self.unknown_pairs)} of {len(cards) * (len(cards) - 1) // 2} pairs of cards"
            return [unknown("PF-TOPO-006", f"{because} are not in the output, whether NVLink joins them is not told")]
        only = next(iter(words)) if len(words) == 1 else None
        one_node = len({self.numa(card) for card in cards}) == 1
        if (
            only in {"PHB", "SYS"}
            and (self.context.virtual or (len(cards) > 2 and one_node))
            and self.context.virtual is not False
        ):
            because = f"every pair of cards shows {only}, which is what a hypervisor shows whatever the real links are"
            return [unknown("PF-TOPO-007", because)]
        levels = Counter(self.table.link(a, b) or "unknown" for a, b in combinations(cards, 2))
        said = ", ".join(f"{word} x {count}" for word, count in levels.most_common())
        return [
            warning(
                "PF-TOPO-006", f"no NVLink between the {len(cards)} cards ({said}): tensor parallelism runs over PCIe"
            )
        ]

    def _units_findings(self) -> list[CheckFinding]:
        cards, size = self.table.cards, self.context.unit_for(len(self.table.cards))
        found = []
        if self.direct and self.fully_connected() is False:
            apart = [f"{a}-{b}" for a, b in combinations(cards, 2) if self.table.link(a, b) and not self.linked(a, b)]
            found.append(
                warning(
                    "PF-TOPO-004",
                    f"not fully connected: no NVLink between {plain_names(apart, 8)} ({len(apart)} pairs)",
                )
            )
        units = self.units
        crossing = [
            f"{' '.join(group)} (NUMA {', '.join(map(str, sorted(nodes)))})"
            for group in self.groups
            if not self.switched and 1 < len(group) <= 4 and (len(group) < len(cards) or len(cards) == 2)
            if len(nodes := {node for card in group if (node := self.numa(card)) is not None}) > 1
        ]
        if crossing:
            found.append(warning("PF-TOPO-016", f"NVLink group across NUMA nodes: {plain_names(crossing, 6)}"))
        left = [card for card in cards if not any(card in unit.cards for unit in units)]
        if left:
            largest = max((len(group) for group in self.groups), default=0)
            what = "NVLink group"
            if not self.direct:
                what, largest = "group on one socket", max((len(g) for g in groups_of(cards, self.near)), default=0)
            hint = f"The largest {what} has {largest} cards: plan with --unit {largest}." if 1 < largest < size else ""
            found.append(warning("PF-TOPO-005", f"{plain_names(left)} in no unit of {size}", hint))
        return found

    def _nic_findings(self) -> list[CheckFinding]:
        cards, nics = self.table.cards, self.table.nics
        if not nics:
            return []
        if word := self.uniform_nics():
            because = f"every NIC shows {word} from every card, as a hypervisor does that hides the PCIe tree"
            if word == "SYS":
                because += " (or all NICs are on the other socket)"
            return [unknown("PF-TOPO-007", because)]
        chosen = self.nics
        found = []
        known = [card for card in cards if any(self.table.link(card, nic) for nic in nics)]
        far = [card for card in known if not chosen[card].nic]
        if far:
            found.append(warning("PF-TOPO-008", f"{plain_names(far)} without a near NIC (SYS to all {len(nics)})"))
        shared = [f"{card} ({chosen[card].nic})" for card in known if chosen[card].shared]
        if shared:
            found.append(warning("PF-TOPO-009", f"NIC shared with another card: {plain_names(shared)}"))
        slow = [
            f"{card} ({chosen[card].nic}, {chosen[card].level})"
            for card in known
            if chosen[card].level in {"PHB", "NODE"}
        ]
        if slow:
            found.append(warning("PF-TOPO-015", f"nearest NIC is behind the host bridge: {plain_names(slow)}"))
        return found

    @cached_property
    def cut_lists(self) -> list[str]:
        """Cards whose list of CPUs was cut: it ends in the middle, or is the beginning of a neighbour's longer one."""
        own = {card: each.cpus for card, each in self.table.affinity.items() if each.cpus}
        return [
            card
            for card, cpus in own.items()
            if cpus.endswith((",", "-"))
            or any(
                self.numa(card) == self.numa(other) and cpus != theirs and theirs.startswith(cpus)
                for other, theirs in own.items()
            )
        ]

    def _affinity_findings(self) -> list[CheckFinding]:
        table = self.table
        found = []
        if self.cut_lists:
            found.append(unknown("PF-TOPO-010", f"the list of CPUs was cut: {plain_names(self.cut_lists)}"))
        blank = [card for card, affinity in table.affinity.items() if not affinity.cpus and not affinity.numa]
        if table.cards and blank and len(table.cards) > 1:
            why = (
                "affinity is blank, as in a container"
                if table.has_affinity
                else "this driver prints no affinity columns"
            )
            found.append(unknown("PF-TOPO-010", f"{why}: {plain_names(blank)}"))
        odd = [
            f"{a}-{b}"
            for a, b in combinations(table.cards, 2)
            if table.link(a, b) == "SYS" and self.numa(a) is not None and self.numa(a) == self.numa(b)
        ]
        for nic in table.nics:
            # A NIC behind the same bridge or switch as a card is on that card's node.
            nodes = {self.numa(card) for card in table.cards if table.link(card, nic) in {"PIX", "PXB"}} - {None}
            odd += [
                f"{card}-{nic}"
                for card in table.cards
                if table.link(card, nic) == "SYS" and len(nodes) == 1 and self.numa(card) in nodes
            ]
        if odd:
            found.append(warning("PF-TOPO-011", f"SYS within one NUMA node: {plain_names(odd, 6)} ({len(odd)} pairs)"))
        return found

    # -------------------------------------------------------------------------------------------- said and kept
    def summary(self) -> str:
        cards, nics = self.table.cards, self.table.nics
        groups = [group for group in self.groups if len(group) > 1]
        parts = [f"{len(cards)} card{'s' if len(cards) != 1 else ''}"]
        if groups:
            sizes = Counter(len(group) for group in groups)
            words = "/".join(
                sorted({self.worst_word(a, b) for g in groups for a, b in combinations(g, 2) if self.linked(a, b)})
            )
            parts.append(
                " + ".join(f"{n} group{'s' if n > 1 else ''} of {size}" for size, n in sizes.items()) + f" ({words})"
            )
        units = self.units
        size = self.context.unit_for(len(cards))
        over = "" if self.direct or size == 1 else " over PCIe"
        presumed = ", presumed" if any(unit.presumed for unit in units) else ""
        parts.append(f"{len(units)} unit{'s' if len(units) != 1 else ''} of {size}{over}{presumed}")
        if nics:
            parts.append(f"{len(nics)} NIC{'s' if len(nics) != 1 else ''}")
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """Units with their processors, and the NIC of each card."""
        found = []
        linked = [group for group in self.groups if len(group) > 1]
        if linked and (len(linked) > 1 or len(linked[0]) < len(self.table.cards)):
            groups = [f"{' '.join(g)} ({self._group_word(g)})" for g in linked]
            found.append(f"NVLink groups: {'; '.join(groups)}")
        for i, unit in enumerate(map(self._unit_facts, self.units), 1):
            parts = [" ".join(unit["cards"])]
            parts += [unit["link"]] if len(unit["cards"]) > 1 else []
            parts += [f"NUMA {', '.join(map(str, unit['numa']))}"] if unit["numa"] else []
            cut = [card for card in unit["cards"] if card in self.cut_lists]
            parts += [f"CPUs {' '.join(unit['cpus'])}{' … (cut)' if cut else ''}"] if unit["cpus"] else []
            found.append(f"unit {i}: {'; '.join(parts)}")
        names = self.table.nic_names
        pairs = [f"{card} {names.get(c.nic, c.nic)} ({c.level})" for card, c in self.nics.items() if c.nic]
        return [*found, f"NIC: {', '.join(pairs)}"] if pairs else found

    def _group_word(self, group: Sequence[str]) -> str:
        words = {self.worst_word(a, b) for a, b in combinations(group, 2) if self.linked(a, b)}
        return "/".join(sorted(words, key=is_nvlink))

    def facts(self) -> dict[str, Any]:
        table, units = self.table, self.units
        counts = Counter(self.worst_word(a, b) for a, b in combinations(table.cards, 2))
        return {
            "cards": table.cards,
            "nics": table.nics,
            "links": dict(counts),
            "groups": [list(group) for group in self.groups],
            "fully_connected": self.fully_connected(),
            "switched": self.switched,
            "units": [self._unit_facts(unit) for unit in units],
            "no_unit": [card for card in table.cards if not any(card in unit.cards for unit in units)],
            "nic_of": self._nic_facts(),
            "affinity": {
                card: {
                    "cpus": each.cpus or None,
                    "cpus_cut": card in self.cut_lists,
                    "numa": sorted(cpu_list(each.numa)) or None,
                    "gpu_numa": whole(each.gpu_numa),
                }
                for card, each in table.affinity.items()
            },
            "rows_missing": table.missing_rows,
            "notes": [f"{note.kind}: {note.text}" for note in table.notes],
        }

    def _unit_facts(self, unit: CardUnit) -> dict[str, Any]:
        words: Sequence[str] = [self.worst_word(a, b) for a, b in combinations(unit.cards, 2)]
        if self.direct:
            link = min(words, key=is_nvlink, default="")
        else:
            link = max(words, key=lambda word: RANK.get(word, 9), default="")
        affinity = [self.table.affinity[card] for card in unit.cards if card in self.table.affinity]
        return {
            "cards": list(unit.cards),
            "link": link,
            "presumed": unit.presumed,
            "numa": sorted({node for each in affinity for node in cpu_list(each.numa)}) or None,
            "cpus": list(dict.fromkeys(each.cpus for each in affinity if each.cpus)) or None,
        }

    def _nic_facts(self) -> dict[str, Any]:
        if word := self.uniform_nics():
            return {card: {"nic": None, "because": f"every NIC shows {word}"} for card in self.table.cards}
        names = self.table.nic_names
        return {
            card: {
                "nic": choice.nic or None,
                "name": names.get(choice.nic),
                "level": choice.level or None,
                "nearest": list(choice.nearest),
                "shared": choice.shared,
                **({} if choice.nic else {"because": self._no_nic_reason(card)}),
            }
            for card, choice in self.nics.items()
        }

    def _no_nic_reason(self, card: str) -> str:
        if not self.table.nics:
            return "the output has no NICs"
        if not any(self.table.link(card, nic) for nic in self.table.nics):
            return "its row is missing"
        return "SYS to every NIC"
