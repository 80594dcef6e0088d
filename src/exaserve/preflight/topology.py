"""``nvidia-smi topo -m`` (and ``topo -p2p``) as people really paste it, into tables.

What goes wrong with these outputs between the driver and the reader, and is read all the same: cells glued where a tab
was lost (``SYSSYS``, ``NIC8NIC9``), single spaces, tabs or columns of spaces, terminal escapes in the header, rows and
legends wrapped by a terminal, blank affinity in containers, no affinity columns (old drivers), NICs named ``NIC0`` or
``mlx5_0``, prefixes of mpirun and srun, several tables in one text, rows cut off. What cannot be read is noted, never
guessed: a row with a wrong number of cells gives none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaserve.preflight.text import clean_lines, cpu_list, strip_launcher

__all__ = ["RANK", "Affinity", "Note", "Topology", "is_card", "is_nvlink", "looks_like_topology", "parse_topology"]

RANK: Mapping[str, int] = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3}
"""Distances over PCIe within one socket, nearest first. SYS crosses the sockets."""

_LINK = r"(?:NV\d{1,2}|SYS|SOC|NODE|PHB|PXB|PIX|X)"
_PEER = r"(?:CNS|GNS|TNS|NS|OK|DR|U|X)"
_NAME = r"(?:GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3})"
_OTHER_NAME = r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*\d[a-z0-9]*"
_AFFINITY_WORDS = frozenset({"CPU", "NUMA", "GPU", "Affinity", "ID", "Mem", "NIC"})
_CPUS = r"(?:\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*[,-]?|N/A)"

_LINKS_GLUED = re.compile(rf"(?:{_LINK})+")
_LINKS_THEN_CPUS = re.compile(rf"((?:{_LINK})+)({_CPUS})")
_NAMES_GLUED = re.compile(rf"(?:{_NAME})+(?:CPU)?")
_UNKNOWN_CELL = re.compile(r"[A-Z][A-Z0-9#]{0,5}")
_LEGEND_NIC = re.compile(r"\s*(NIC\d{1,3}):\s*(\S{1,64})\s*")

NoteKind = Literal["glued", "no header", "row unreadable", "row twice", "unknown word", "row without column"]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the reader had to work around, or could not."""

    kind: NoteKind
    text: str


@dataclass(frozen=True, slots=True)
class Affinity:
    """Of one card: CPUs as printed, NUMA nodes, memory node of the card itself. Empty where blank or N/A."""

    cpus: str = ""
    numa: str = ""
    gpu_numa: str = ""


@dataclass(slots=True)
class Topology:
    """One table.

    Attributes:
        kind: "links" (``topo -m``) or "peers" (``topo -p2p``).
        columns: names in header order; cards, then NICs.
        rows: names that have a readable row.
        cells: (row, column) to the word in it, such as NV18 or SYS.
        affinity: of the cards whose row has it.
        has_affinity: the header has affinity columns.
        nic_names: NIC0 to mlx5_0, from the legend.
        notes: in the order found.
    """

    kind: Literal["links", "peers"] = "links"
    columns: tuple[str, ...] = ()
    rows: list[str] = field(default_factory=list)
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity: dict[str, Affinity] = field(default_factory=dict)
    has_affinity: bool = False
    nic_names: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @property
    def cards(self) -> list[str]:
        return [name for name in self.columns if is_card(name)]

    @property
    def nics(self) -> list[str]:
        return [name for name in self.columns if not is_card(name)]

    @property
    def missing_rows(self) -> list[str]:
        return [name for name in self.columns if name not in self.rows]

    def link(self, a: str, b: str) -> str | None:
        """The word between two names, from either row; None where neither row has it."""
        return self.cells.get((a, b)) or self.cells.get((b, a))


def is_card(name: str) -> bool:
    return name.startswith("GPU")


def is_nvlink(word: str | None) -> int:
    """Links of a bonded set: NV18 is 18; 0 for anything else."""
    return int(word[2:]) if word is not None and re.fullmatch(r"NV\d{1,2}", word) else 0


def looks_like_topology(text: str) -> bool:
    """A row with an X among links; a name followed by other words (a table of adapters) is none."""
    rows = (_row_words(strip_launcher(line)) for line in clean_lines(text)[:5000])
    return any(row is not None and "X" in _split_cells(row[1:])[0] for row in rows)


@dataclass(slots=True)
class _Line:
    """A logical line: a header's names, or a row's words."""

    header: bool
    words: list[str]
    affinity: bool = False
    glued: bool = False


def parse_topology(text: str) -> list[Topology]:
    """Every table of the text, in order. Empty where there is none; never raises."""
    tables: list[Topology] = []
    current: Topology | None = None
    pending: list[_Line] = []
    names: dict[str, str] = {}
    for line in _logical_lines(clean_lines(text)):
        if isinstance(line, tuple):
            names[line[0]] = line[1]
            continue
        if line.header:
            if current is not None or pending:
                tables.append(_table(current, pending))
            current = Topology(columns=tuple(dict.fromkeys(line.words)), has_affinity=line.affinity)
            if line.glued:
                current.notes.append(Note("glued", "names in the header were glued together and have been split"))
            pending = []
        else:
            pending.append(line)
    if current is not None or pending:
        tables.append(_table(current, pending))
    for table in tables:
        table.nic_names = {nic: name for nic, name in names.items() if nic in table.columns}
    return [table for table in tables if table.columns]


# ------------------------------------------------------------------------------------------------ lines
def _logical_lines(lines: list[str]) -> list[_Line | tuple[str, str]]:
    """Headers, rows and legend entries; what a terminal wrapped is joined again."""
    found: list[_Line | tuple[str, str]] = []
    columns = 0
    seen: set[str] = set()
    fresh = False  # the line before was a header, so names may go on
    for raw in lines:
        line = strip_launcher(raw)
        legend = _LEGEND_NIC.fullmatch(line) or _LEGEND_NIC.fullmatch(raw)
        if legend:
            found.append((legend[1], legend[2]))
            fresh = False
            continue
        header = _header_words(line)
        if header is not None:
            last = found[-1] if found and fresh else None
            if isinstance(last, _Line) and last.header and not seen & set(header.words):
                last.words += header.words
                last.affinity |= header.affinity
                last.glued |= header.glued
            elif len(header.words) == 1 and header.words[0] in seen and not header.affinity:
                found.append(_Line(header=False, words=header.words))  # a row that was cut after its name
            elif header.words:
                found.append(header)
                seen = set()
            seen |= set(header.words)
            columns = len(seen)
            fresh = True
            continue
        words = _row_words(line)
        fresh = False
        if words is not None:
            found.append(_Line(header=False, words=words))
            continue
        last = found[-1] if found else None
        rest = _continuation_words(line)
        if isinstance(last, _Line) and not last.header and rest and columns and _short(last, columns, rest):
            last.words += rest
    return found


def _short(line: _Line, columns: int, rest: list[str]) -> bool:
    """Whether a row still wants what the next line has."""
    cells = _split_cells(line.words[1:])[0]
    if _LINKS_GLUED.match(rest[0]):
        return len(cells) < columns and len(cells) == sum(_cells_in(word) for word in line.words[1:])
    return len(cells) >= columns and len(line.words) <= columns + 2


def _cells_in(word: str) -> int:
    return len(re.findall(_LINK, word)) if _LINKS_GLUED.fullmatch(word) else 1


def _header_words(line: str) -> _Line | None:
    """Names of the columns if the line is a header (or the rest of a wrapped one), else None."""
    names: list[str] = []
    affinity = glued = False
    words = line.replace("|", " ").split()
    if not words or len(words) > 2000:
        return None
    for word in words:
        if word in _AFFINITY_WORDS:
            affinity = True
        elif affinity:
            return None
        elif _NAMES_GLUED.fullmatch(word):
            parts = re.findall(_NAME, word)
            glued |= len(parts) > 1
            affinity |= word.endswith("CPU")
            names += parts
        elif names and is_card(names[0]) and re.fullmatch(_OTHER_NAME, word):
            names.append(word)
        else:
            return None
    return _Line(header=True, words=names, affinity=affinity, glued=glued)


def _row_words(line: str) -> list[str] | None:
    """Name and cells if the line is a row, else None. The name may be glued to its first cell."""
    words = line.replace("|", " ").split()
    if not words or len(words) > 2000:
        return None
    first = re.fullmatch(rf"({_NAME})((?:{_LINK})*)", words[0])
    if first is None:
        other = len(words) > 2 and re.fullmatch(_OTHER_NAME, words[0])
        return words if other and all(_LINKS_GLUED.fullmatch(word) for word in words[1:]) else None
    words = [first[1], *([first[2]] if first[2] else []), *words[1:]]
    if len(words) < 2:
        return None
    is_cell = _LINKS_GLUED.match(words[1]) or re.fullmatch(_PEER, words[1]) or _UNKNOWN_CELL.fullmatch(words[1])
    return words if is_cell else None


def _continuation_words(line: str) -> list[str]:
    words = line.split()
    fits = all(_LINKS_GLUED.fullmatch(word) or re.fullmatch(_CPUS, word) for word in words)
    return words if fits and len(words) <= 2000 else []


# ------------------------------------------------------------------------------------------------ cells
def _split_cells(words: list[str]) -> tuple[list[str], list[str], bool]:
    """Cells, what follows them (affinity), and whether any were glued."""
    cells: list[str] = []
    glued = False
    for i, word in enumerate(words):
        both = _LINKS_THEN_CPUS.fullmatch(word)
        if _LINKS_GLUED.fullmatch(word):
            parts = re.findall(_LINK, word)
        elif both is not None:
            return cells + re.findall(_LINK, both[1]), [both[2], *words[i + 1 :]], True
        elif _UNKNOWN_CELL.fullmatch(word):
            parts = [word]
        else:
            return cells, words[i:], glued
        glued |= len(parts) > 1
        cells += parts
    return cells, [], glued


def _table(header: Topology | None, lines: list[_Line]) -> Topology:
    table = header if header is not None else _without_header(lines)
    values = {word for line in lines for word in line.words[1:]} - {"X"}
    if values and all(re.fullmatch(_PEER, word) for word in values):
        table.kind = "peers"
    glued: list[str] = []
    for line in lines:
        name, (cells, rest, was_glued) = line.words[0], _split_cells(line.words[1:])
        if was_glued:
            glued.append(name)
        if name not in table.columns:
            table.notes.append(Note("row without column", f"{name} has a row but no column"))
        elif name in table.rows:
            same = all(table.cells.get((name, c)) == v for c, v in zip(table.columns, cells, strict=False))
            if not same:
                table.notes.append(Note("row twice", f"{name} has two rows that differ"))
        else:
            _add_row(table, name, ["SYS" if cell == "SOC" else cell for cell in cells], rest)
    if glued:
        table.notes.append(Note("glued", f"cells glued together in row {', '.join(glued)} have been split"))
    return table


def _add_row(table: Topology, name: str, cells: list[str], rest: list[str]) -> None:
    own = table.columns.index(name)
    if len(cells) != len(table.columns) or cells[own] != "X" or cells.count("X") != 1:
        why = f"{len(cells)} cells for {len(table.columns)} columns"
        if len(cells) == len(table.columns):
            why = "the cell of the row itself is not the X"
        table.notes.append(Note("row unreadable", f"row {name}: {why}"))
        return
    known = _PEER if table.kind == "peers" else _LINK
    strange = [cell for cell in cells if not re.fullmatch(known, cell)]
    if strange:
        table.notes.append(Note("unknown word", f"row {name}: {', '.join(dict.fromkeys(strange))}"))
    table.rows.append(name)
    table.cells.update({(name, column): cell for column, cell in zip(table.columns, cells, strict=True)})
    if is_card(name):
        table.affinity[name] = _affinity(rest)


def _affinity(words: list[str]) -> Affinity:
    """CPU list, NUMA nodes, the card's own memory node. In a container the first two are blank and only N/A is left."""
    cpus = numa = own = ""
    if len(words) >= 3:
        cpus, numa, own = words[:3]
    elif len(words) == 2:
        cpus, numa = words
        # Two words are CPUs and node on old drivers, or CPUs and the card's N/A where the node is blank.
        if numa == "N/A":
            numa, own = "", "N/A"
    elif len(words) == 1 and words[0] != "N/A":
        cpus = words[0]
    if not numa and re.fullmatch(r"\d{1,2}", cpus):
        # A lone small number is the node of a table whose CPU column is blank: no node has one processor.
        cpus, numa = "", cpus
    return Affinity(
        cpus if cpu_list(cpus) else "", numa if cpu_list(numa) else "", own if re.fullmatch(r"\d{1,4}", own) else ""
    )


def _without_header(lines: list[_Line]) -> Topology:
    """Columns from the rows alone: the X of row GPUi stands at i, that of NICk at cards + k."""
    table = Topology(notes=[Note("no header", "the header row is missing; columns are inferred from the rows")])
    width, cards = 0, 0
    for line in lines:
        name, cells = line.words[0], _split_cells(line.words[1:])[0]
        match = re.fullmatch(r"(GPU|NIC)(\d{1,3})", name)
        if match is None or "X" not in cells:
            continue
        width = max(width, len(cells))
        linked = [i for i, cell in enumerate(cells) if is_nvlink(cell)]
        if match[1] == "NIC":
            cards = max(cards, cells.index("X") - int(match[2]))
        else:
            cards = max(cards, int(match[2]) + 1, *(i + 1 for i in linked), 0)
            table.has_affinity |= bool(_split_cells(line.words[1:])[1])
    cards = min(cards, width)
    table.columns = tuple([f"GPU{i}" for i in range(cards)] + [f"NIC{i}" for i in range(width - cards)])
    return table
