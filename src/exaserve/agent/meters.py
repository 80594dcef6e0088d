"""The machine's own figures: network rates from the kernel's and InfiniBand's counters, accelerators through NVML.

Read once a second in a thread, since sysfs and NVML may block for milliseconds, and shared by all units of a machine.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from exaserve.domain.replica import Report
from exaserve.observe import Family, labels

__all__ = ["Accelerator", "Counters", "Meters", "Nvml", "memory_mb", "network_bytes", "rate_mb_s"]

EVERY_S = 1.0
MEAN_S = 5.0
"""A1 asks for the network rate as a mean over five seconds."""
_VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tap", "tun", "dummy")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One card, as NVML says; None where it does not.

    Attributes:
        free_gb / total_gb: memory, GB (10^9 bytes).
        use: share of the last period in which a kernel ran, 0..1.
        celsius: of the chip.
        ecc_errors: uncorrected, since the last reboot.
        throttled: whether clocks are held down by heat or power.
    """

    free_gb: float | None = None
    total_gb: float | None = None
    use: float | None = None
    celsius: float | None = None
    ecc_errors: int | None = None
    throttled: bool | None = None


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
    """NVIDIA cards by NVML, if the optional package ``nvidia-ml-py`` and a driver are there; else no cards."""

    def __init__(self, module: Any = None) -> None:
        self._nvml = module
        self._handles: list[Any] = []
        if module is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                return
        try:
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except Exception as error:  # noqa: BLE001 -- NVML's errors derive from Exception alone
            self.problem = str(error)

    problem = ""

    def read(self) -> tuple[Accelerator, ...]:
        return tuple(self._one(handle) for handle in self._handles)

    def _one(self, handle: Any) -> Accelerator:
        nvml = self._nvml
        memory = self._try(nvml.nvmlDeviceGetMemoryInfo, handle)
        use = self._try(nvml.nvmlDeviceGetUtilizationRates, handle)
        reasons = self._try(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        slow = (
            nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonSwPowerCap
        )
        return Accelerator(
            free_gb=None if memory is None else memory.free / 1e9,
            total_gb=None if memory is None else memory.total / 1e9,
            use=None if use is None else use.gpu / 100,
            celsius=self._try(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            ecc_errors=self._try(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            throttled=None if reasons is None else bool(reasons & slow),
        )

    @staticmethod
    def _try(call: Callable[..., Any], *args: Any) -> Any:
        """A card that does not know a figure says so by an exception."""
        try:
            return call(*args)
        except Exception:  # noqa: BLE001 -- likewise
            return None


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
        self.cards: tuple[Accelerator, ...] = ()
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
            await loop.run_in_executor(None, self.read)
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

    def families(self) -> list[Family]:
        """For the agent's own metrics."""
        families: Mapping[str, Family] = {
            name: Family(f"exaserve_accelerator_{name}", "gauge", text)
            for name, text in (
                ("memory_free_gb", "Free memory of an accelerator, GB."),
                ("use_ratio", "Share of time in which a kernel ran."),
                ("temperature_celsius", "Temperature of an accelerator."),
                ("ecc_errors", "Uncorrected memory errors since the last reboot."),
                ("throttled", "1 while clocks are held down by heat or power."),
            )
        }
        for index, card in enumerate(self.cards):
            head = labels(device=str(index))
            values = (card.free_gb, card.use, card.celsius, card.ecc_errors, card.throttled)
            for family, value in zip(families.values(), values, strict=True):
                if value is not None:
                    family.add(float(value), head)
        net = Family("exaserve_node_network_mb_per_second", "gauge", "Network traffic, mean over 5 s, MB/s.")
        if self.net_mb_s is not None:
            net.add(self.net_mb_s)
        return [*families.values(), net]


def _coarse(rate: float) -> float:
    """Two significant digits, and nothing below 0.5 MB/s: noise must not make every report a new one."""
    return 0.0 if rate < 0.5 else float(f"{rate:.2g}")
