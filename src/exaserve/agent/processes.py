"""Child processes that are stopped in order, whose last words are kept, and that never outlive this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from exaserve.agent import launch
from exaserve.config import child_environment

__all__ = ["Child", "stop_all"]

_TAIL_LINES_MAX = 200
_LINE_BYTES_MAX = 65_536
"""A longer line is passed on in pieces."""


class Child:
    """One running program and everything it starts.

    Attributes:
        name: for messages, such as ``node1`` or ``gateway``.
        tail: its last lines of output.
        code: exit code, None while it runs; negative for a signal.
    """

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_line: Callable[[str, str], None] | None
    ) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES_MAX)
        self._process = process
        self._on_line = on_line
        self._swept = False
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        on_line: Callable[[str, str], None] | None = None,
        wrapper: Sequence[str] | None = None,
    ) -> Child:
        """Start ``argv``. ``on_line`` is given each line of its output as (name, line).

        ``wrapper`` stands before it (see :mod:`exaserve.agent.shim`); unless given, the program ends with this process
        by :mod:`exaserve.agent.launch`.

        It gets a session of its own: Ctrl-C in the terminal reaches this process alone, which stops its children in
        order, and all that the program starts can be signalled together.
        """
        if wrapper is None:
            wrapper = (sys.executable, "-S", "-E", str(Path(launch.__file__)), str(os.getpid()))
        command = [*wrapper, *argv]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=child_environment(env or {}),
            pass_fds=pass_fds,
            start_new_session=True,
            limit=2 * _LINE_BYTES_MAX,
        )
        return cls(name, process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit code, once it has ended and its output is read."""
        code = await self._process.wait()
        if not self._swept:
            self.signal(signal.SIGKILL)  # what the program left behind
            self._swept = True
        # A grandchild may hold the pipe open: its output is not worth waiting for.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reader), 1.0)
        return code

    def describe_end(self) -> str:
        """How it ended, in words."""
        code = self.code
        if code is None:
            return "is running"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def signal(self, number: signal.Signals) -> None:
        """To the program and all that it started. Does nothing once they are gone: the id may be another's by now."""
        if self._swept:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        self._reader.cancel()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while data := await self._process.stdout.read(_LINE_BYTES_MAX):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            while len(rest) >= _LINE_BYTES_MAX:  # no end in sight: in pieces, so that memory stays bounded
                self._take(rest[:_LINE_BYTES_MAX])
                rest = rest[_LINE_BYTES_MAX:]
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self.tail.append(text)
        if self._on_line is not None:
            try:
                self._on_line(self.name, text)
            except Exception as error:  # noqa: BLE001 -- a program whose output nobody reads would stop in a write
                self._on_line = None
                self.tail.append(f"(output is not passed on any more: {error!r})")


async def stop_all(children: Sequence[Child], grace_s: float) -> None:
    """SIGTERM to all, SIGKILL to what is left after ``grace_s``; returns when every one has been waited for."""
    for child in children:
        child.signal(signal.SIGTERM)
    waits = [asyncio.ensure_future(child.wait()) for child in children]
    try:
        if waits:
            await asyncio.wait(waits, timeout=grace_s)
    finally:
        for child in children:
            child.signal(signal.SIGKILL)
        await asyncio.gather(*waits, return_exceptions=True)
        for child in children:
            child.close()
