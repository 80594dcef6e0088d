"""Structured events: one ``key=value`` line each, injected wherever something is worth telling, never global.

Bounded twice: each event name may appear ``burst_max`` times per second (what is held back is counted and told later),
and :class:`LineSink` keeps at most ``lines_max`` lines for a reader of stderr that has stopped reading, then drops and
counts. A log must not be what stops a gateway.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["LEVELS", "EventLog", "LineSink", "format_event", "null_log"]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:+@%,[]()~*")


def _value(value: object) -> str:
    """``value`` as logfmt: bare where it needs no quotes, one line always."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else str(value)
    if text and all(char in _PLAIN for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return '"' + "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in escaped) + '"'


def format_event(timestamp_s: float, level: str, event: str, fields: dict[str, Any]) -> str:
    """One logfmt line without its newline; ``timestamp_s`` is Unix time."""
    millis = int(timestamp_s * 1000) % 1000
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(timestamp_s))
    tail = "".join(f" {key}={_value(value)}" for key, value in fields.items() if value is not None)
    return f"ts={stamp}.{millis:03d}Z level={level} event={event}{tail}"


class EventLog:
    """Writes events at or above ``level`` to ``write``, which takes one line without its newline and must not block.

    Args:
        burst_max: lines of one event name per second; the rest is counted in the next line's ``suppressed``.
        clock: Unix time in seconds; only for time stamps and the rate bound.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        level: str = "info",
        burst_max: int = 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._threshold = LEVELS[level]
        self._burst_max = burst_max
        self._clock = clock
        self._windows: dict[str, list[int]] = {}
        """event → [second, lines in it, suppressed]; event names are literals in the source, so this is small."""

    def event(self, level: str, event: str, **fields: Any) -> None:
        if LEVELS[level] < self._threshold:
            return
        now = self._clock()
        second = int(now)
        window = self._windows.setdefault(event, [second, 0, 0])
        if window[0] != second:
            window[0] = second
            window[1] = 0
        if window[1] >= self._burst_max:
            window[2] += 1
            return
        window[1] += 1
        if window[2]:
            fields["suppressed"] = window[2]
            window[2] = 0
        self._write(format_event(now, level, event, fields))

    def line(self, text: str) -> None:
        """One line as it is, of any number in a second: for records that the operator has asked for."""
        self._write(text)

    def debug(self, event: str, **fields: Any) -> None:
        self.event("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self.event("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.event("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self.event("error", event, **fields)


def null_log() -> EventLog:
    """A log that says nothing: for tests and library use."""
    return EventLog(lambda _line: None, level="error")


class LineSink:
    """Hands lines to a thread that writes them, so that a blocked stderr blocks nobody.

    ``close`` waits at most ``timeout_s`` for what is queued.
    """

    def __init__(self, stream: TextIO, lines_max: int = 4096) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(lines_max)
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="exaserve-log", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1

    def close(self, timeout_s: float = 1.0) -> None:
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)
