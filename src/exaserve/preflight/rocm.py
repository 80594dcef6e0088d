"""``rocm-smi --showtopo…`` and ``amd-smi topology``: weights, hops, link types, access, NUMA nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from exaserve.preflight.links import groups_of, is_full, pack_units
from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, number, plain_names, strip_launcher

__all__ = ["RocmTopology", "judge_rocm", "looks_like_rocm", "parse_rocm"]

_BDF = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d"
_NAME = re.compile(rf"GPU\d{{1,3}}|{_BDF}")
_SECTIONS = (
    ("weight", re.compile(r"weight", re.IGNORECASE)),
    ("hops", re.compile(r"hops", re.IGNORECASE)),
    ("type", re.compile(r"link\s*type", re.IGNORECASE)),
    ("access", re.compile(r"access", re.IGNORECASE)),
)
_TITLE = re.compile(
    r"^\s*=*\s*((?:Weight|Hops|Link Type|Link accessib)[^=]*?)\s*=*\s*$|^\s*([A-Z][A-Z -]+ TABLE):?\s*$",
    re.IGNORECASE,
)
_NUMA = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*(?:\(Topology\)\s*)?Numa (Node|Affinity):\s*(-?\d{1,4})", re.IGNORECASE)
_PRODUCT = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*Card [Ss]eries:\s*(\S.{0,80}?)\s*$")
XGMI_WEIGHT = 15
"""The driver's weight of one XGMI hop; PCIe within a socket is 40 and more (20 for each of its two hops)."""

PCIE_WEIGHT = 40


@dataclass(slots=True)
class RocmTopology:
    """What the text had.

    Attributes:
        products: card to product name, where the text has them.
        cards: names in order, from headers, rows and the NUMA list.
        tables: section to (row, column) to word.
        rows: section to names that have a complete row.
        headers: section to names of the header.
        numa: card to NUMA node.
        notes: rows that could not be read.
    """

    cards: list[str] = field(default_factory=list)
    products: dict[str, str] = field(default_factory=dict)
    tables: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    rows: dict[str, list[str]] = field(default_factory=dict)
    headers: dict[str, list[str]] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_card(self, name: str) -> None:
        if name not in self.cards:
            self.cards.append(name)


def looks_like_rocm(text: str) -> bool:
    lines = clean_lines(text)[:5000]
    return any(_NUMA.search(line) for line in lines) or any(_TITLE.match(strip_launcher(line)) for line in lines)


def parse_rocm(text: str) -> RocmTopology:
    """Never raises; a section without a title is not read, a row of a wrong length is noted and left out."""
    found = RocmTopology()
    section = ""
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        numa = _NUMA.search(line)
        if numa:
            name = f"GPU{int(numa[1])}"
            found.add_card(name)
            if numa[2].lower() == "node" or name not in found.numa:
                found.numa[name] = int(numa[3])
            continue
        if product := _PRODUCT.search(line):
            found.products.setdefault(f"GPU{int(product[1])}", product[2])
            continue
        title = _TITLE.match(line)
        if title:
            words = title[1] or title[2]
            section = next((name for name, pattern in _SECTIONS if pattern.search(words)), "")
            continue
        if line.strip().startswith("==="):
            section = ""
        words_ = line.split()
        if section and words_ and _NAME.fullmatch(words_[0]) and len(words_) <= 1000:
            _add_line(found, section, words_)
    return found


def _add_line(found: RocmTopology, section: str, words: list[str]) -> None:
    if all(_NAME.fullmatch(word) for word in words) and (len(words) > 1 or section not in found.headers):
        if section not in found.headers:
            found.headers[section] = list(dict.fromkeys(words))
            for name in words:
                found.add_card(name)
        return
    name, cells, header = words[0], words[1:], found.headers.get(section, [])
    if len(cells) != len(header) or name not in header or name in found.rows.get(section, []):
        found.notes.append(f"{section}, row {name}: {len(cells)} cells for {len(header)} columns")
        return
    found.rows.setdefault(section, []).append(name)
    table = found.tables.setdefault(section, {})
    table.update({(name, column): cell for column, cell in zip(header, cells, strict=True)})


def judge_rocm(text: str, context: Context) -> Judgement:
    """Links, groups and units of AMD cards."""
    topology = parse_rocm(text)
    if not topology.cards:
        return not_understood("topology of AMD cards")
    return _Judge(topology, context).all()


@dataclass(slots=True)
class _Judge:
    topology: RocmTopology
    context: Context

    def cell(self, section: str, a: str, b: str) -> str | None:
        table = self.topology.tables.get(section, {})
        return table.get((a, b)) or table.get((b, a))

    def kind(self, a: str, b: str) -> str | None:
        """XGMI, PCIE, … from the link types, or from the weight where it can only be XGMI; None where unknown."""
        word = self.cell("type", a, b)
        if word is not None:
            return word.upper()
        weight = number(self.cell("weight", a, b) or "")
        return "XGMI" if weight == XGMI_WEIGHT else None

    def said(self, a: str, b: str) -> str:
        """The kind, or where only a weight is known its rank among them: the smaller, the nearer."""
        kind, weight = self.kind(a, b), number(self.cell("weight", a, b) or "")
        if kind is not None or weight is None:
            return kind or "unknown"
        return f"{'nearest' if weight == min(self.weights) else 'farther'}, weight {weight:g}"

    @property
    def weights(self) -> set[float]:
        pairs = combinations(self.topology.cards, 2)
        return {w for pair in pairs if (w := number(self.cell("weight", *pair) or ""))}

    def linked(self, a: str, b: str) -> bool:
        return self.kind(a, b) == "XGMI"

    def near(self, a: str, b: str) -> bool:
        weights = self.weights
        weight = number(self.cell("weight", a, b) or "")
        # All alike and heavy is PCIe with nothing nearer.
        ranked = len(weights) > 1 or (bool(weights) and min(weights) < PCIE_WEIGHT)
        return weight is not None and ranked and weight == min(weights)

    def all(self) -> Judgement:
        cards = self.topology.cards
        pairs = list(combinations(cards, 2))
        direct = any(self.linked(a, b) for a, b in pairs)
        joined = self.linked if direct or not self.topology.tables.get("weight") else self.near
        groups = groups_of(cards, joined)
        size = self.context.unit_for(len(cards))
        nodes = self.topology.numa
        order = {card: (nodes.get(card, 0) if len(nodes) == len(cards) else 0, i) for i, card in enumerate(cards)}
        units = [
            unit for group in groups for unit in pack_units(group, size, joined, lambda _a, _b: 1.0, order.__getitem__)
        ]
        findings = self._findings(pairs, direct, groups, units, size)
        kinds = Counter(self.said(a, b) for a, b in pairs)
        full = None if any(self.kind(a, b) is None for a, b in pairs) or len(cards) < 2 else is_full(cards, self.linked)
        large = [group for group in groups if len(group) > 1]
        parts = [f"{len(cards)} cards"]
        if large:
            parts.append(
                f"{len(large)} {'group' if direct else 'island'}{'s' if len(large) > 1 else ''} of {len(large[0])}"
            )
        ranked = sorted(kinds.items(), key=lambda each: (each[0].startswith("farther"), -each[1], each[0]))
        said = ", ".join(f"{kind} x {count}" for kind, count in ranked)
        parts += [said or "no pairs", f"{len(units)} unit{'s' if len(units) != 1 else ''} of {size}"]
        facts = {
            "cards": cards,
            "links": dict(kinds),
            "groups": [list(group) for group in groups] if direct else [[card] for card in cards],
            "islands": [] if direct else [list(group) for group in large],
            "fully_connected": full,
            "units": [
                {"cards": list(unit), "link": "XGMI" if direct else "near", "numa": self._nodes(unit)} for unit in units
            ],
            "no_unit": [card for card in cards if not any(card in unit for unit in units)],
            "numa": nodes,
            "sections": sorted(self.topology.tables),
            "notes": self.topology.notes,
        }
        products = dict(Counter(self.topology.products.values()))
        lines = tuple(f"unit {i}: {' '.join(unit)}" for i, unit in enumerate(units, 1))
        return Judgement(", ".join(parts), tuple(findings), {"tables": [facts], "products": products}, lines)

    def _nodes(self, unit: Sequence[str]) -> list[int] | None:
        return sorted({self.topology.numa[card] for card in unit if card in self.topology.numa}) or None

    def _findings(
        self,
        pairs: list[tuple[str, str]],
        direct: bool,
        groups: list[tuple[str, ...]],
        units: list[tuple[str, ...]],
        size: int,
    ) -> list[CheckFinding]:
        top, cards = self.topology, self.topology.cards
        found = []
        for section, header in sorted(top.headers.items()):
            missing = [name for name in header if name not in top.rows.get(section, [])]
            if missing or set(header) != set(cards):
                lost = missing or sorted(set(cards) - set(header))
                found.append(unknown("PF-ROCM-001", f"no readable {section} row for {plain_names(lost)}"))
        if top.notes and not found:
            found.append(unknown("PF-ROCM-001", plain_names(top.notes, 3)))
        if "type" not in top.headers:
            found.append(
                unknown("PF-ROCM-002", "the table of link types is not in the output (rocm-smi --showtopotype)")
            )
        if not top.numa and len(cards) > 1:
            found.append(unknown("PF-ROCM-003", "the NUMA nodes are not in the output (rocm-smi --showtoponuma)"))
        elif set(top.numa) - set(cards) or (len(top.numa) < len(cards)) or any(node < 0 for node in top.numa.values()):
            lost = [card for card in cards if top.numa.get(card, -1) < 0]
            found.append(unknown("PF-ROCM-003", f"no NUMA node for {plain_names(lost)}"))
        found += self._differences()
        found += self._expected(pairs, direct)
        if direct and (left := [g[0] for g in groups if len(g) == 1]):
            found.append(failed("PF-ROCM-005", f"{plain_names(left)} without XGMI, while other cards have it"))
        none = [card for card in cards if not any(card in unit for unit in units)]
        if none and top.headers:
            found.append(warning("PF-TOPO-005", f"{plain_names(none)} in no unit of {size}"))
        return found

    def _differences(self) -> list[CheckFinding]:
        odd = []
        for section, table in sorted(self.topology.tables.items()):
            odd += [
                f"{a}-{b} {section} ({word} one way, {table[b, a]} the other)"
                for (a, b), word in table.items()
                if a < b and (b, a) in table and table[b, a] != word
            ]
        wrong = [
            f"{a}-{a} {section} ({word})"
            for section, table in sorted(self.topology.tables.items())
            for (a, b), word in table.items()
            if a == b and word.upper() not in {"0", "SELF", "N/A", "X", "TRUE", "ENABLED"}
        ]
        no = [
            f"{a}-{b}"
            for (a, b), word in self.topology.tables.get("access", {}).items()
            if a < b and word.upper() in {"FALSE", "DISABLED"}
        ]
        found = (
            [failed("PF-ROCM-004", f"the two directions differ: {plain_names(odd + wrong, 6)}")] if odd or wrong else []
        )
        return found + ([warning("PF-TOPO-013", f"no peer access between {plain_names(no, 6)}")] if no else [])

    def _expected(self, pairs: list[tuple[str, str]], direct: bool) -> list[CheckFinding]:
        machine, cards = self.context.machine, self.topology.cards
        found = []
        if machine is not None and machine.cards and len(cards) != machine.cards:
            found.append(failed("PF-TOPO-012", f"{len(cards)} cards, but {machine.name} has {machine.cards}"))
        known = [pair for pair in pairs if self.kind(*pair) is not None]
        weak = [f"{a}-{b} {self.kind(a, b)}" for a, b in known if not self.linked(a, b)]
        promised = machine is not None and machine.link == "XGMI" and machine.group >= len(cards)
        if weak and (direct or promised):
            found.append(failed("PF-ROCM-005", f"lost link: {plain_names(weak, 8)}, while other pairs are XGMI"))
        elif known and not direct and len(cards) > 1:
            found.append(
                warning("PF-ROCM-006", f"no XGMI between the {len(cards)} cards: tensor parallelism runs over PCIe")
            )
        hops = {h for a, b in known if self.linked(a, b) and (h := number(self.cell("hops", a, b) or ""))}
        far = [f"{a}-{b}" for a, b in known if self.linked(a, b) and (number(self.cell("hops", a, b) or "") or 1) > 1]
        if hops and far and 1.0 in hops:
            found.append(warning("PF-ROCM-007", f"more than one XGMI hop between {plain_names(far, 6)}"))
        return found
