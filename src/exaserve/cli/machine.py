"""How busy this machine and single processes are, from the kernel's own accounting."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuMeter", "CpuUse", "raise_file_limit"]


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Between two readings.

    Attributes:
        machine: share of all cores that was busy, 0..1.
        processes_s: CPU seconds by the name given, children of a process not included.
    """

    machine: float
    processes_s: dict[str, float]


class CpuMeter:
    """Reads now; :meth:`use` says what was used since.

    Args:
        processes: name to process ids.
    """

    def __init__(self, processes: dict[str, list[int]]) -> None:
        self._processes = processes
        self._machine = _machine_ticks()
        self._before = self._read()

    def use(self) -> CpuUse:
        busy, total = (now - before for now, before in zip(_machine_ticks(), self._machine, strict=True))
        used = {name: max(0.0, seconds - self._before[name]) for name, seconds in self._read().items()}
        return CpuUse(busy / total if total else 0.0, used)

    def _read(self) -> dict[str, float]:
        return {name: sum(_process_s(pid) for pid in pids) for name, pids in self._processes.items()}


def _machine_ticks() -> tuple[int, int]:
    """Busy and all ticks of all cores since boot (proc_stat(5): user nice system idle iowait irq softirq steal)."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _process_s(pid: int) -> float:
    """User and system seconds of a process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raise_file_limit() -> int:
    """Allows this process as many open files as the hard limit does; returns that number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
