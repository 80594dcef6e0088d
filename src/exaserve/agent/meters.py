"""The machine's own figures: network rates from the kernel's and InfiniBand's counters, accelerators through NVML.

Read once a second in a thread, since sysfs and NVML may block for milliseconds, and shared by all units of a machine.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from exaserve.agent.tasks import where_failed
from exaserve.domain.replica import Report
from exaserve.wire import Card
from exaserve.wire.messages import CARDS_MAX

__all__ = ["Counters", "Meters", "Nvml", "memory_mb", "network_bytes", "rate_mb_s"]

EVERY_S = 1.0
MEAN_S = 5.0
"""A1 asks for the network rate as a mean over five seconds."""
_THROTTLED = 0x08 | 0x20 | 0x40 | 0x80 | 0x04
"""NVML's bits for clocks held down: hardware slowdown, by heat in software, by heat or the power brake in hardware, and
by the power cap (nvml.h, nvmlClocksEventReason*)."""
_SILENT = Card()
_VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tap", "tun", "dummy")


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes through a machine's network interfaces since boot, both directions."""

    ethernet: int
    infiniband: int


def network_bytes(root: Path = Path("/")) -> Counters:
    """Reads ``/proc/net/dev`` (physical interfaces only) and InfiniBand's port counters, which count 4-byte words."""
    ethernet = 0
    try:
        lines = (root / "proc/net/dev").read_text().splitlines()[2:]
    except OSError:
        lines = []
    for line in lines:
        name, _, figures = line.partition(":")
        fields = figures.split()
        if len(fields) >= 9 and not name.strip().startswith(_VIRTUAL):
            ethernet += int(fields[0]) + int(fields[8])
    infiniband = 0
    for counter in ("port_rcv_data", "port_xmit_data"):
        for path in (root / "sys/class/infiniband").glob(f"*/ports/*/counters/{counter}"):
            try:
                infiniband += 4 * int(path.read_text())
            except (OSError, ValueError):
                continue
    return Counters(ethernet, infiniband)


def rate_mb_s(history: Sequence[tuple[float, int]]) -> float | None:
    """MB/s between the oldest and the newest of ``(time, bytes)``; None with fewer than two, or after a reset."""
    if len(history) < 2 or history[-1][0] <= history[0][0] or history[-1][1] < history[0][1]:
        return None
    return (history[-1][1] - history[0][1]) / (history[-1][0] - history[0][0]) / 1e6


def memory_mb(pids: Iterable[int]) -> float:
    """Resident memory of processes and everything below them, MB."""
    left, seen, total_kb = list(pids), set(), 0
    while left:
        pid = left.pop()
        if pid in seen:
            continue
        seen.add(pid)
        try:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total_kb += int(line.split()[1])
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return total_kb * 1024 / 1e6


class Nvml:
    """NVIDIA cards by NVML, if the optional package ``nvidia-ml-py`` and a driver are there; else no cards.

    Args:
        module: ``pynvml`` unless given.

    Attributes:
        problem: why there are no cards although the package is there, or which card says nothing; "" else.
    """

    def __init__(self, module: Any = None) -> None:
        self.problem = self._problem = ""
        self._nvml = module
        self._handles: list[Any] = []
        if module is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                return
        try:
            self._nvml.nvmlInit()
            count = min(int(self._nvml.nvmlDeviceGetCount()), CARDS_MAX)
        except Exception as error:  # noqa: BLE001 -- NVML's errors derive from Exception alone
            self.problem = self._problem = f"NVML: {error}"
            return
        for index in range(count):
            try:
                self._handles.append(self._nvml.nvmlDeviceGetHandleByIndex(index))
            except Exception as error:  # noqa: BLE001 -- likewise; a lost card keeps its place
                self._handles.append(None)
                self.problem = self._problem = f"NVML, card {index}: {error}"

    def read(self) -> tuple[Card, ...]:
        """Every card in NVML's order, which is the PCI bus's. A figure that a card does not know is None."""
        cards = tuple(Card() if handle is None else self._one(handle) for handle in self._handles)
        silent = [str(index) for index, card in enumerate(cards) if card == _SILENT]
        self.problem = self._problem or (f"NVML: card {', '.join(silent)} gives no figures" if silent else "")
        return cards

    def _one(self, handle: Any) -> Card:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        celsius = self._ask("nvmlDeviceGetTemperature", handle, self._constant("NVML_TEMPERATURE_GPU", 0))
        ecc = self._ask(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            self._constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),
            self._constant("NVML_VOLATILE_ECC", 0),
        )
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # its name before NVML 12.2
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return Card(
            free_gb=None if memory is None else round(memory.free / 1e9, 1),
            total_gb=None if memory is None else round(memory.total / 1e9, 1),
            use=None if use is None else use.gpu / 100,
            celsius=None if celsius is None else float(celsius),
            ecc_errors=None if ecc is None else int(ecc),
            throttled=None if reasons is None else bool(reasons & _THROTTLED),
        )

    def _ask(self, name: str, *args: Any) -> Any:
        """None where this NVML has no such call, the card does not know the figure, or the card is lost."""
        try:
            return getattr(self._nvml, name)(*args)
        except Exception:  # noqa: BLE001 -- likewise
            return None

    def _constant(self, name: str, value: int) -> int:
        return int(getattr(self._nvml, name, value))


class Meters:
    """Keeps the newest figures of one machine.

    Args:
        root: of the file system that is read.
        nvml: cards; one is opened at :meth:`start` unless given.
    """

    def __init__(self, clock: Callable[[], float], root: Path = Path("/"), nvml: Nvml | None = None) -> None:
        self._clock = clock
        self._root = root
        self._nvml = nvml
        size = int(MEAN_S / EVERY_S) + 1
        self._ethernet: deque[tuple[float, int]] = deque(maxlen=size)
        self._infiniband: deque[tuple[float, int]] = deque(maxlen=size)
        self._task: asyncio.Task[None] | None = None
        self.net_mb_s: float | None = None
        self.cards: tuple[Card, ...] = ()
        self.problem = ""
        """Why there are no figures of cards, "" where that is no problem."""
        self._wanted: dict[str, list[int]] = {}
        self.memory: dict[str, float] = {}

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def want_memory(self, replica: str, pids: list[int]) -> None:
        """Memory of these processes is measured once, in the next round."""
        self._wanted[replica] = pids

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(None, self.read)
            except Exception as error:  # noqa: BLE001 -- gateways hear of it, and the next round may be better
                self.problem = f"figures of this machine cannot be read: {where_failed(error)}"
            await asyncio.sleep(EVERY_S)

    def read(self) -> None:
        """One round; blocks for milliseconds."""
        if self._nvml is None:
            self._nvml = Nvml()
        now = self._clock()
        counters = network_bytes(self._root)
        self._ethernet.append((now, counters.ethernet))
        self._infiniband.append((now, counters.infiniband))
        rates = [rate for rate in (rate_mb_s(self._ethernet), rate_mb_s(self._infiniband)) if rate is not None]
        self.net_mb_s = _coarse(sum(rates)) if rates else None
        self.cards = self._nvml.read()
        self.problem = self._nvml.problem
        wanted, self._wanted = self._wanted, {}
        for replica, pids in wanted.items():
            self.memory[replica] = memory_mb(pids)

    def fill(self, report: Report, devices: Sequence[int]) -> Report:
        """The report with what the engine cannot know of itself."""
        free = [self.cards[d].free_gb for d in devices if d < len(self.cards)]
        known = [each for each in free if each is not None]
        free_gb = round(sum(known), 1) if known and len(known) == len(devices) else report.free_mem_gb
        if free_gb == report.free_mem_gb and self.net_mb_s == report.net_mb_s:
            return report
        return msgspec.structs.replace(report, free_mem_gb=free_gb, net_mb_s=self.net_mb_s)


def _coarse(rate: float) -> float:
    """Two significant digits, and nothing below 0.5 MB/s: noise must not make every report a new one."""
    return 0.0 if rate < 0.5 else float(f"{rate:.2g}")
