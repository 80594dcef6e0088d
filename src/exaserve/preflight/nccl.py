"""nccl-tests (and rccl-tests) results: bus bandwidth at size, corruption, and runs that are not what they seem.

Rows are read by their arithmetic, not by their position: bandwidth times duration is the size. So columns may be
missing or renamed, sizes may carry ``_``, lines a launcher's prefix, and a line that two ranks wrote into at once is
left out and said so. "Avg bus bandwidth" is never compared with a link: it averages sizes from a few bytes up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exaserve.preflight.machines import MachineType, find_machine
from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, number, plain_names, strip_launcher, whole

__all__ = ["NcclRow", "NcclRun", "judge_nccl", "looks_like_nccl", "parse_nccl", "start_command"]

_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,5})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[\S+\]\s*(.*?)\s*$"
)
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s*(OK|FAILED)?", re.IGNORECASE)
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
_BEGIN = re.compile(r"#\s*nThread\s+\d+.*minBytes\s+(\d+)\s+maxBytes\s+(\d+)")
_NAME = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|gather|scatter)_perf\b")
_TYPES = re.compile(r"(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e\dm\d|fp8_\w+|all)")
_OPS = frozenset({"sum", "prod", "min", "max", "avg", "mulsum", "none", "all"})
_INSIDE = re.compile(r"\[\d+,\d+\](?:<std(?:out|err|diag)>)?:?")
"""mpirun's mark of a rank, wherever in a line it was written."""
_SPEAKER = re.compile(r"\[?[A-Za-z][\w.-]*(?::\d+)?\]?:|\d{1,5}:")
_TYPE_WORD = r"(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e\dm\d|fp8_\w+)"
_ROW_START = re.compile(rf"(?<=\s)(?=\d+\s+\d+\s+{_TYPE_WORD}\s)")
_BARE_ROW = re.compile(
    rf"\b\d+\s+\d+\s+{_TYPE_WORD}\s+(?:sum|prod|min|max|avg|mulsum|none)\s+-?\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\s"
)
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n}
"""busbw = algbw x factor; reduce_scatter and alltoall are like all_gather, broadcast and sendrecv have 1."""
LARGE_BYTES = 1 << 28
"""Below 256 MiB the figure is latency, not bandwidth."""


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One size. Time in µs, bandwidths in 10^9 bytes/s; ``wrong`` is None where results were not checked."""

    size_bytes: int
    time_us: float
    algbw: float
    busbw: float
    in_place_busbw: float | None = None
    wrong: int | None = None

    @property
    def best(self) -> float:
        return max(self.busbw, self.in_place_busbw or 0.0)


@dataclass(slots=True)
class NcclRun:
    """What the text had; several independent runs written into one text are kept apart only by ``begins``."""

    rows: list[NcclRow] = field(default_factory=list)
    ranks: list[tuple[int, str, str]] = field(default_factory=list)
    begins: int = 0
    collective: str = ""
    redop_none: bool = False
    out_of_bounds: list[tuple[int, bool]] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    damaged: int = 0
    header: bool = False
    problems: list[str] = field(default_factory=list)


def looks_like_nccl(text: str) -> bool:
    begin = text[:2_000_000]
    if re.search(r"algbw\s+busbw|Avg bus bandwidth|#\s*nThread\s+\d+|Out of bounds values", begin):
        return True
    # Rows alone: size, count, type, operation, root, and the three figures of a result.
    return bool(_BARE_ROW.search(_INSIDE.sub(" ", begin)))


def parse_nccl(text: str) -> NcclRun:
    """Never raises."""
    run = NcclRun()
    for raw in clean_lines(text):
        line = _INSIDE.sub(" ", strip_launcher(raw))
        if begin := _BEGIN.search(line):
            run.begins += bool(begin[1])
        elif rank := _RANK.search(line):
            run.ranks.append((int(rank[1]), rank[2], rank[4]))
        elif bounds := _BOUNDS.search(line):
            run.out_of_bounds.append((int(bounds[1][:18]), (bounds[2] or "OK").upper() == "OK"))
        elif average := _AVERAGE.search(line):
            value = number(average[1])
            if value is not None:
                run.averages.append(value)
        elif "algbw" in line:
            run.header = True
        elif re.search(r"NCCL (?:WARN|failure)|Test (?:NCCL|CUDA) failure|unhandled (?:cuda|system) error|misc/", line):
            run.problems.append(line.strip()[:200])
        else:
            # Several ranks may have written whole rows into one line: each begins with size, count and type.
            for piece in _ROW_START.split(f" {line}"):
                _add_row(run, piece)
        if name := _NAME.search(line):
            run.collective = run.collective or name[1]
    return run


def _add_row(run: NcclRun, line: str) -> None:
    text = re.sub(r"^\s*[#>]?\s*", "", line).replace("|", " ")
    words = [word for word in text.split() if not _SPEAKER.fullmatch(word)]
    size = whole(words[0]) if words and len(words) <= 40 else None
    if size is None or size <= 0:
        return
    # A table's row by its header, or by the type in its third column where the header was cut off.
    known = run.header or (len(words) > 2 and _TYPES.fullmatch(words[2]) is not None and whole(words[1]) is not None)
    if len(words) < 4:
        run.damaged += known and not run.header
        return
    numbers: list[float | None] = []
    none = typed = False
    for word in words[1:]:
        value = number(word)
        if value is None and (_TYPES.fullmatch(word) or word in _OPS):
            none |= word == "none"
            typed = True
            numbers.clear()  # the number of elements stands before its type
        elif value is None and word != "N/A":
            # Foreign text inside a row that starts like one: another process wrote into the line.
            run.damaged += known and (len(numbers) >= 3 or typed)
            return
        else:
            numbers.append(value)
    row = _read_groups(size, numbers)
    if row is None:
        run.damaged += known and (len(numbers) >= 3 or typed)
    else:
        run.rows.append(row)
        run.redop_none |= none


def _read_groups(size: int, numbers: Sequence[float | None]) -> NcclRow | None:
    """Finds (time, algbw, busbw[, wrong]) twice or once; a count, a root or nothing may stand before."""
    for start in range(min(3, len(numbers) - 2)):
        time, algbw, busbw = numbers[start : start + 3]
        if time is None or algbw is None or busbw is None or not _fits(size, time, algbw):
            continue
        rest = list(numbers[start + 3 :])
        wrong: int | None = None
        for skip in (0, 1):
            if len(rest) >= skip + 2:
                t, a = rest[skip : skip + 2]
                if t is not None and a is not None and _fits(size, t, a):
                    b = rest[skip + 2] if len(rest) > skip + 2 else None
                    checked = [rest[i] for i in ([0] if skip else []) + ([4] if len(rest) > 4 and skip else [])]
                    wrong = _wrong(checked)
                    return NcclRow(size, time, algbw, busbw, b, wrong)
        return NcclRow(size, time, algbw, busbw, None, _wrong(rest[:1]))
    return None


def _wrong(cells: Sequence[float | None]) -> int | None:
    """Wrong elements; the old column "error" is a float, where up to rounding (1e-3) all is well."""
    known = [cell for cell in cells if cell is not None]
    return None if not known else int(max(known)) if max(known) >= 1 else int(max(known) > 1e-3)


def _fits(size: int, time_us: float, algbw: float) -> bool:
    if time_us <= 0 or algbw < 0:
        return False
    expected = size / time_us / 1000
    return abs(expected - algbw) <= max(0.006, 0.02 * expected)


def start_command(hosts: Mapping[str, int], settings: Mapping[str, str]) -> str:
    """How to run all_reduce over all cards of some hosts; its output is what this module reads.

    Args:
        hosts: name to number of cards.
        settings: NCCL's environment, such as the recommended NCCL_IB_HCA.
    """
    where = ",".join(f"{host}:{cards}" for host, cards in hosts.items())
    exports = "".join(f" -x {name}={value}" for name, value in settings.items())
    return f"mpirun -np {sum(hosts.values())} -H {where}{exports} all_reduce_perf -b 256M -e 8G -f 2 -g 1"


# ------------------------------------------------------------------------------------------------ judge
def judge_nccl(text: str, context: Context) -> Judgement:
    """Bandwidth at the largest sizes against what the machine type, or the NICs, can do."""
    run = parse_nccl(text)
    if not (
        run.rows
        or run.ranks
        or run.header
        or run.out_of_bounds
        or run.averages
        or run.problems
        or run.begins
        or run.damaged
    ):
        return not_understood("nccl-tests table")
    view = _View(run, context)
    findings = view.findings()
    return Judgement(view.summary(), tuple(findings), view.facts())


@dataclass(slots=True)
class _View:
    run: NcclRun
    context: Context

    @property
    def peak(self) -> NcclRow | None:
        return max(self.run.rows, key=lambda row: (row.size_bytes, row.best), default=None)

    @property
    def ratio(self) -> float | None:
        """busbw / algbw: tells the number of ranks even where the device lines are cut."""
        row = max(self.run.rows, key=lambda each: each.algbw, default=None)
        return row.busbw / row.algbw if row is not None and row.algbw >= 0.5 else None

    @property
    def collective(self) -> str:
        ratio = self.ratio
        if self.run.collective:
            return self.run.collective
        if self.run.redop_none and ratio is not None and 0.4 < ratio < 0.99:
            return "all_gather"
        return "all_reduce" if not self.run.redop_none else ""

    @property
    def ranks(self) -> int | None:
        """From the device lines, else from busbw / algbw; None where neither tells."""
        if self.run.ranks:
            return max(rank for rank, _, _ in self.run.ranks) + 1
        ratio = self.ratio
        if ratio is None or self.collective not in FACTORS:
            return None
        fitting = [n for n in range(1, 65) if abs(FACTORS[self.collective](n) - ratio) < 0.002 + 0.003 * ratio]
        return fitting[0] if fitting and fitting[0] <= 32 else None

    @property
    def hosts(self) -> int | None:
        return len({host for _, host, _ in self.run.ranks}) if self.run.ranks else None

    @property
    def independent(self) -> bool:
        """Several copies of a run of one rank instead of one run of several."""
        numbers = [rank for rank, _, _ in self.run.ranks]
        if numbers:
            # Two tests one after the other also print rank 0 twice, but their other ranks too.
            return len(numbers) > 1 and not any(numbers)
        return self.run.begins > 1 and not any(row.busbw > 0 for row in self.run.rows)

    def findings(self) -> list[CheckFinding]:
        run = self.run
        found: list[CheckFinding] = []
        bad = [count for count, ok in run.out_of_bounds if not ok or count]
        wrong = [row for row in run.rows if row.wrong]
        if bad or wrong:
            said = f"{max(bad)} values out of bounds" if bad else f"#wrong is not 0 at {len(wrong)} sizes"
            found.append(failed("PF-NCCL-001", f"data arrived damaged: {said}"))
        if run.problems:
            found.append(failed("PF-NCCL-002", f"the run failed: {run.problems[0]}"))
        if self.independent:
            text = f"{max(run.begins, 2)} independent runs of one rank, not one run of several: built without MPI"
            found.append(failed("PF-NCCL-003", text))
            return found
        if run.damaged:
            found.append(
                warning("PF-NCCL-004", f"{run.damaged} lines mix the output of several ranks and were left out")
            )
        if not run.rows:
            found.append(unknown("PF-NCCL-005", "the output has no result rows"))
            return found
        if not run.out_of_bounds and all(row.wrong is None for row in run.rows):
            found.append(
                unknown("PF-NCCL-006", "results were not checked (no #wrong column and no 'Out of bounds' line)")
            )
        if len(run.ranks) and len({rank for rank, _, _ in run.ranks}) < (self.ranks or 0):
            found.append(unknown("PF-NCCL-004", f"{len(run.ranks)} device lines for {self.ranks} ranks"))
        found += self._bandwidth()
        found += self._drops()
        return found

    def _bandwidth(self) -> list[CheckFinding]:
        peak, ranks = self.peak, self.ranks
        assert peak is not None
        if ranks == 1:
            return [unknown("PF-NCCL-007", "one rank sends nothing, its bus bandwidth is 0")]
        if peak.size_bytes < LARGE_BYTES:
            because = f"the largest size is {_size(peak.size_bytes)}; below {_size(LARGE_BYTES)} latency dominates"
            return [unknown("PF-NCCL-008", because)]
        expected, failing, why = self._expectation(peak)
        if expected is None:
            return [unknown("PF-NCCL-009", why)]
        said = f"{peak.best:.1f} GB/s at {_size(peak.size_bytes)}, expected {expected:.0f} ({why})"
        if peak.best < failing:
            return [failed("PF-NCCL-010", f"bus bandwidth far too low: {said}")]
        if peak.best < expected:
            return [warning("PF-NCCL-010", f"bus bandwidth low: {said}")]
        return []

    def _expectation(self, peak: NcclRow) -> tuple[float | None, float, str]:
        machine, ranks, hosts = self._known_machine(), self.ranks, self.hosts
        if ranks is None:
            return None, 0.0, "the number of ranks is not in the output"
        if self.collective not in FACTORS and self.collective != "reduce_scatter":
            return None, 0.0, f"there is no expectation for {self.collective or 'this collective'}"
        if (hosts or 1) > 1 or (hosts is None and machine is not None and 0 < machine.cards < ranks):
            return self._across(machine, ranks // hosts if hosts else machine.cards if machine else 0)
        if machine is None:
            return None, 0.0, "the machine type is not known (give --machine)"
        if machine.cards and ranks < machine.cards:
            return None, 0.0, f"{ranks} ranks of a machine with {machine.cards} cards: no expectation for a part"
        fitting = [each for each in machine.nccl if each.size_bytes <= peak.size_bytes]
        if not fitting:
            return None, 0.0, f"there is no expectation for {machine.name} at {_size(peak.size_bytes)}"
        return fitting[-1].good_gb_s, fitting[-1].failed_gb_s, machine.name

    def _across(self, machine: MachineType | None, per_host: int) -> tuple[float | None, float, str]:
        """Between machines the NICs of one machine are the limit, one NIC per rank at most."""
        rate = self.context.facts.get("ibstat", {}).get("active_gbit_s")
        if isinstance(rate, list) and rate:
            total = sum(sorted(rate, reverse=True)[:per_host]) / 8
            return total * 0.9, total * 0.6, f"{min(len(rate), per_host)} active NICs of this host"
        if machine is not None and machine.nics and machine.nic_gbit_s and per_host >= machine.nics:
            total = machine.nics * machine.nic_gbit_s / 8
            usual = f"{machine.nics} x {machine.nic_gbit_s:.0f} Gbit/s, as {machine.name} usually has"
            return total * 0.9, total * 0.45, usual
        return None, 0.0, "the NICs between the machines are not known (run ibstat on them)"

    def _known_machine(self) -> MachineType | None:
        """The host's type, or the one whose cards the device lines name."""
        if self.context.machine is not None or not self.run.ranks:
            return self.context.machine
        first = self.run.ranks[0][1]
        mine = [product for _, host, product in self.run.ranks if host == first]
        return find_machine(self.context.machines, {product: mine.count(product) for product in mine if product})

    def _drops(self) -> list[CheckFinding]:
        """Bandwidth grows with size; a large size far below a smaller one is a fault of its own."""
        rows = sorted(
            {row.size_bytes: row for row in self.run.rows if row.size_bytes >= 1 << 24}.values(), key=_by_size
        )
        best, found = 0.0, []
        for row in rows:
            if row.best < 0.6 * best and best > 1:
                found.append(f"{row.best:.1f} GB/s at {_size(row.size_bytes)} after {best:.1f}")
            best = max(best, row.best)
        return [warning("PF-NCCL-011", f"bandwidth falls with size: {plain_names(found, 3)}")] if found else []

    def summary(self) -> str:
        peak = self.peak
        ranks, hosts = self.ranks, self.hosts
        where = f"{ranks} ranks" if ranks and ranks != 1 else "1 rank" if ranks else "ranks unknown"
        if hosts:
            where += f" on {hosts} host{'s' if hosts > 1 else ''}"
        if peak is None or self.independent:
            return f"{self.collective or 'nccl-tests'}, {where}, no usable result"
        return f"{self.collective or 'nccl-tests'}, {where}: {peak.best:.1f} GB/s at {_size(peak.size_bytes)}"

    def facts(self) -> dict[str, Any]:
        peak = self.peak
        return {
            "collective": self.collective or None,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "products": sorted({product for _, _, product in self.run.ranks if product}),
            "rows": len(self.run.rows),
            "peak_size_bytes": peak.size_bytes if peak else None,
            "busbw_gb_s": peak.best if peak else None,
            "average_gb_s": self.run.averages,
            "damaged_lines": self.run.damaged,
        }


def _by_size(row: NcclRow) -> int:
    return row.size_bytes


def _size(size: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} B"
