"""What creeps: memory that grows over hours, KV that an idle engine does not give back, a log that fills a disk.

Pure: samples and times in, findings out. Each finding is told once when it begins and once when it ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Creep", "IdleKv", "KvAge", "LogGrowth", "LogWrites", "WatchFinding"]


@dataclass(frozen=True, slots=True)
class WatchFinding:
    """Something begins (``bad``) or has ended; ``detail`` has the figures."""

    what: str
    bad: bool
    detail: str


class _Watch:
    """Turns a level into edges."""

    what = ""

    def __init__(self) -> None:
        self.bad = False

    def _edge(self, detail: str, *, bad: bool) -> WatchFinding | None:
        if bad == self.bad:
            return None
        self.bad = bad
        return WatchFinding(self.what, bad, detail)


class Creep(_Watch):
    """Memory of an engine's processes, by the slope of a line through samples of ``window_s``.

    A slope needs half a window of samples, and counts where it would add ``share_max`` of the memory in a day and is no
    noise (the line explains most of the variance). Caches that fill up flatten out, leaks do not.
    """

    what = "memory_creep"

    def __init__(self, window_s: float = 4 * 3600.0, every_s: float = 60.0, share_max: float = 0.2) -> None:
        super().__init__()
        self._window_s = window_s
        self._every_s = every_s
        self._share_max = share_max
        self._samples: deque[tuple[float, float]] = deque(maxlen=max(8, int(window_s / every_s) + 1))
        self.slope_mb_per_h = 0.0

    def due(self, now: float) -> bool:
        """Whether the next sample is wanted."""
        return not self._samples or now - self._samples[-1][0] >= self._every_s

    def reset(self) -> None:
        """A new process."""
        self._samples.clear()
        self.slope_mb_per_h = 0.0

    def sampled(self, memory_mb: float, now: float) -> WatchFinding | None:
        samples = self._samples
        if samples and now - samples[-1][0] < self._every_s:
            return None
        samples.append((now, memory_mb))
        while now - samples[0][0] > self._window_s:
            samples.popleft()
        if len(samples) < 8 or now - samples[0][0] < self._window_s / 2:
            return None
        slope_s, fit = _line(samples)
        self.slope_mb_per_h = slope_s * 3600.0
        day = slope_s * 86_400.0
        grows = day > self._share_max * memory_mb and fit > 0.7
        return self._edge(f"{self.slope_mb_per_h:.1f} MB/h at {memory_mb:.0f} MB", bad=grows)


def _line(samples: deque[tuple[float, float]]) -> tuple[float, float]:
    """Slope per second of the least-squares line, and the share of variance it explains (0..1)."""
    n = len(samples)
    mean_t = sum(t for t, _ in samples) / n
    mean_v = sum(v for _, v in samples) / n
    tt = sum((t - mean_t) ** 2 for t, _ in samples)
    tv = sum((t - mean_t) * (v - mean_v) for t, v in samples)
    vv = sum((v - mean_v) ** 2 for _, v in samples)
    if tt == 0.0 or vv == 0.0:
        return 0.0, 0.0
    return tv / tt, tv * tv / (tt * vv)


class IdleKv(_Watch):
    """KV blocks still held by an engine in which nothing runs or waits.

    Prefix caches are no leak: engines count blocks that may be evicted as free.
    """

    what = "kv_not_returned"

    def __init__(self, idle_s: float = 10.0, use_max: float = 0.02) -> None:
        super().__init__()
        self._idle_s = idle_s
        self._use_max = use_max
        self._idle_since: float | None = None

    def sampled(
        self, running: int | None, waiting: int | None, kv_use: float | None, now: float
    ) -> WatchFinding | None:
        if kv_use is None or running is None or running or waiting:
            self._idle_since = None
            return self._edge("requests run", bad=False) if self.bad and running else None
        if self._idle_since is None:
            self._idle_since = now
        held = kv_use > self._use_max and now - self._idle_since >= self._idle_s
        return self._edge(f"{kv_use:.1%} of the KV cache held, idle for {now - self._idle_since:.0f} s", bad=held)


class LogGrowth(_Watch):
    """Bytes of log per second over ``window_s``: a log that repeats an error fills a disk within hours."""

    what = "log_growth"

    def __init__(self, window_s: float = 60.0, bytes_per_s_max: float = 1_000_000.0) -> None:
        super().__init__()
        self._window_s = window_s
        self._limit = bytes_per_s_max
        self._at: tuple[float, int] | None = None

    def sampled(self, bytes_total: int, now: float) -> WatchFinding | None:
        if self._at is None:
            self._at = (now, bytes_total)
            return None
        began, before = self._at
        if now - began < self._window_s:
            return None
        self._at = (now, bytes_total)
        rate = (bytes_total - before) / (now - began)
        return self._edge(f"{rate / 1e6:.2f} MB/s of log", bad=rate > self._limit)


class LogWrites(_Watch):
    """Output of an engine that cannot be written to its log, such as on a full disk. The engine goes on."""

    what = "log_not_written"

    def sampled(self, problem: str) -> WatchFinding | None:
        return self._edge(problem or "written again", bad=bool(problem))


class KvAge:
    """Mean time since the first token of what the cache holds, from the count of running requests alone.

    Engines do not say when each request began. Requests end about in the order they came, so a growing count is taken
    as arrivals now and a shrinking one as the oldest leaving. Ages are differences of this machine's monotonic clock.
    """

    def __init__(self, requests_max: int = 4096) -> None:
        self._began: deque[float] = deque(maxlen=requests_max)
        self._sum = 0.0

    def sampled(self, running: int | None, now: float) -> float | None:
        """Mean age in ms, 0.0 where nothing runs, None where that is unknown."""
        began = self._began
        if running is None:
            began.clear()
            self._sum = 0.0
            return None
        running = min(running, began.maxlen or 0)
        while len(began) > running:
            self._sum -= began.popleft()
        while len(began) < running:
            began.append(now)
            self._sum += now
        if not began:
            self._sum = 0.0
            return 0.0
        return (now - self._sum / len(began)) * 1e3
