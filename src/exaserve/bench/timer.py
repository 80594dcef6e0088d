"""A timer of some ten microseconds' grain. The event loop's own has a millisecond, as long as a fast answer takes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable

__all__ = ["Alarm"]

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Calls back once at an instant of ``time.monotonic()``, never before it.

    On Linux the kernel's timerfd wakes the loop; elsewhere the loop's own timer does, rounded up to its milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            with contextlib.suppress(AttributeError, OSError):
                self._libc = ctypes.CDLL(None, use_errno=True)
                self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._ring)

    def set(self, at: float) -> None:
        """Ring at ``at``; replaces what was set before."""
        if self._fd < 0:
            self.clear()
            wait_s = max(0.0, at - time.monotonic())
            self._handle = self._loop.call_later(math.ceil(wait_s * 1000.0) / 1000.0, self._callback)
            return
        # Zero would disarm it.
        whole = math.floor(at)
        value = _Timespec(whole, max(1, math.ceil((at - whole) * 1e9)))
        if value.nsec >= 1_000_000_000:
            value = _Timespec(whole + 1, 1)
        self._arm(value)

    def clear(self) -> None:
        """Do not ring."""
        if self._fd >= 0:
            self._arm(_Timespec(0, 0))
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _arm(self, value: _Timespec) -> None:
        spec = _Itimerspec(_Timespec(0, 0), value)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._callback()
