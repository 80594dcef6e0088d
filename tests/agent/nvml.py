"""NVML as the reader sees it: functions that return figures or raise, in a module of its own."""

# ruff: noqa: N802 -- the functions have NVML's own names
from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What pynvml raises, whatever the reason."""


NOT_SUPPORTED = NVMLError("Not Supported")
LOST = NVMLError("GPU is lost")
NO_DRIVER = NVMLError("Driver Not Loaded")


@dataclass
class FakeCard:
    free: float = 60.25e9
    total: float = 85.0e9
    gpu: int = 73
    celsius: int = 61
    ecc: int | Exception = 0
    reasons: int | Exception = 0
    lost: bool = False
    lost_at_start: bool = False


@dataclass
class FakeNvml:
    """Names and values are those of nvml.h; ``old`` has the names from before NVML 12.2 only."""

    cards: list[FakeCard] = field(default_factory=list)
    init: Exception | None = None
    old: bool = False
    NVML_TEMPERATURE_GPU: int = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED: int = 1
    NVML_VOLATILE_ECC: int = 0

    def nvmlInit(self) -> None:
        if self.init is not None:
            raise self.init

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        if self.cards[index].lost_at_start:
            raise LOST
        return self.cards[index]

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard) -> SimpleNamespace:
        return SimpleNamespace(free=self._value(card, card.free), total=card.total, used=card.total - card.free)

    def nvmlDeviceGetUtilizationRates(self, card: FakeCard) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._value(card, card.gpu), memory=0)

    def nvmlDeviceGetTemperature(self, card: FakeCard, sensor: int) -> Any:
        assert sensor == 0
        return self._value(card, card.celsius)

    def nvmlDeviceGetTotalEccErrors(self, card: FakeCard, kind: int, counter: int) -> Any:
        assert (kind, counter) == (1, 0)
        return self._value(card, card.ecc)

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: FakeCard) -> Any:
        if self.old:
            raise AttributeError("nvmlDeviceGetCurrentClocksEventReasons")
        return self._value(card, card.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: FakeCard) -> Any:
        if not self.old:
            raise AssertionError("the name of today comes first")
        return self._value(card, card.reasons)

    @staticmethod
    def _value(card: FakeCard, value: Any) -> Any:
        if card.lost:
            raise LOST
        if isinstance(value, Exception):
            raise value
        return value
