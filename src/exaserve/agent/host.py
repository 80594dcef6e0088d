"""Where engines run: as processes of their own, or (null engines) inside this process. One interface for both."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO, cast

from exaserve.agent import shim
from exaserve.agent.plan import StagePlan, UnitPlan
from exaserve.agent.policy import alarming
from exaserve.agent.ports import Hold
from exaserve.agent.processes import Child
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import Report
from exaserve.observe import LineSink

__all__ = ["EngineHost", "ProcessHost", "RunningEngine", "sweep"]

_MARK = "EXASERVE_UNIT"
_STAGE_START_S = 600.0
_KILL_AFTER_S = 2.0
"""Beyond the shim's own time for a stop: then the shim itself is at fault."""


class RunningEngine(Protocol):
    """One started engine."""

    pid: int
    """0 without a process of its own."""
    log_bytes: int
    """Bytes of output so far."""
    alarm: bool
    """Whether its output has given cause to ask it at once; whoever has asked sets it back."""

    @property
    def log_problem(self) -> str:
        """Why its output cannot be written to its log now, "" where it can."""
        ...

    def ended(self) -> str:
        """How it ended, in words; "" while it runs."""
        ...

    def tail(self, lines_max: int) -> list[str]: ...

    def pids(self) -> list[int]:
        """Processes whose memory counts as the engine's."""
        ...

    def sample(self) -> Report | None:
        """Figures of an engine inside this process; None where its ``/metrics`` has to be asked. The same object as
        before says that nothing has changed."""
        ...

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when nothing of it is left."""
        ...


class EngineHost(Protocol):
    """Starts engines."""

    async def start(self, plan: UnitPlan, on_end: Callable[[], None]) -> RunningEngine:
        """Returns when the process exists; ``on_end`` is called when it ends. ConfigError where a port is taken."""
        ...


class _LogFile:
    """A file that is moved aside when it is full, used by one thread of its own (:class:`LineSink`).

    An engine must not depend on its log, so nothing here raises: a line that cannot be written is lost, ``problem``
    says why, and the next line tries again. A symbolic link in the file's place is not followed.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.problem = ""
        self._path = path
        self._bytes_max = bytes_max
        self._file = -1
        self._size = 0

    def write(self, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            if self._size > self._bytes_max:
                self.close()
                self._path.replace(self._path.with_suffix(".log.1"))
            if self._file < 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o640)
                self._size = os.fstat(self._file).st_size
            while data:
                written = os.write(self._file, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            self.close()
            linked = error.errno == errno.ELOOP
            self.problem = f"{self._path}: {'is a symbolic link' if linked else error.strerror or error}"
        else:
            self.problem = ""

    def flush(self) -> None:
        """Every write goes through at once."""

    def close(self) -> None:
        file, self._file, self._size = self._file, -1, 0
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)


class ProcessHost:
    """Engines as child processes, each behind a shim that ends it when this process is gone.

    Args:
        stop_s: from SIGTERM to SIGKILL.
        log_bytes_max: of an engine's log file before it is moved aside.
    """

    def __init__(self, stop_s: float, log_bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop_s = stop_s
        self._log_bytes_max = log_bytes_max
        self._clock = clock

    async def start(self, plan: UnitPlan, on_end: Callable[[], None]) -> RunningEngine:
        loop = asyncio.get_running_loop()
        hold = await loop.run_in_executor(None, Hold, plan.host, plan.ports)
        engine = _ProcessEngine(plan, hold, self._stop_s)
        try:
            await loop.run_in_executor(None, engine.prepare, self._log_bytes_max)
            for stage in plan.stages:
                await engine.launch(stage.name, stage.argv)
                await self._until_open(plan.host, stage, engine)
            await engine.launch("engine", plan.argv)
        except BaseException:
            await engine.stop()
            raise
        engine.watch(on_end)
        return engine

    async def _until_open(self, host: str, stage: StagePlan, engine: _ProcessEngine) -> None:
        end = self._clock() + _STAGE_START_S
        while self._clock() < end:
            if how := engine.ended():
                raise ConfigError(how, param="stage_command")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, stage.port)
                writer.close()
                return
            await asyncio.sleep(0.05)
        raise ConfigError(f"{stage.name} did not listen within {_STAGE_START_S:g} s", param="stage_command")


class _ProcessEngine:
    def __init__(self, plan: UnitPlan, hold: Hold, stop_s: float) -> None:
        self._plan = plan
        self._hold = hold
        self._stop_s = stop_s
        self._children: list[Child] = []
        self._sink: LineSink | None = None
        self._log: _LogFile | None = None
        self._waits: list[asyncio.Task[int]] = []
        self._mark = f"{plan.spec.id}@{os.getpid()}"
        self._cpus = ",".join(map(str, plan.binding.cpus)) or "-"
        self._memory = ",".join(map(str, plan.binding.memory)) or "-"
        self._on_alarm: Callable[[], None] | None = None
        self.alarm = False
        self.log_bytes = 0
        self.pid = 0

    def prepare(self, log_bytes_max: int) -> None:
        """Folders and files; blocks. OSError where they cannot be made: then the engine could not use them either."""
        self._plan.cache_dir.mkdir(parents=True, exist_ok=True)
        for path, text in self._plan.files.items():
            file = Path(path)
            if not file.is_file() or file.read_text() != text:  # a full disk must not keep back what is there already
                file.write_text(text)
        self._log = _LogFile(self._plan.log_path, log_bytes_max)
        self._sink = LineSink(cast("TextIO", self._log))

    async def launch(self, name: str, argv: Sequence[str]) -> None:
        wrapper = [sys.executable, "-S", "-E", str(Path(shim.__file__)), str(os.getpid())]
        wrapper += [f"{self._stop_s:g}", self._cpus, self._memory]
        child = await Child.start(
            name, argv, env={**self._plan.env, _MARK: self._mark}, on_line=self._line, wrapper=wrapper
        )
        self._children.append(child)
        self.pid = child.pid

    def watch(self, on_end: Callable[[], None]) -> None:
        """Calls ``on_end`` when any of the processes ends (a lost stage takes the whole engine with it), or says so."""
        self._on_alarm = on_end
        for child in self._children:
            wait = asyncio.ensure_future(child.wait())
            wait.add_done_callback(lambda _wait: on_end())
            self._waits.append(wait)

    def _line(self, name: str, line: str) -> None:
        self.log_bytes += len(line) + 1
        if not self.alarm and alarming(line):
            self.alarm = True
            if self._on_alarm is not None:
                self._on_alarm()
        if self._sink is not None:
            self._sink(line if name == "engine" else f"{name} | {line}")

    @property
    def log_problem(self) -> str:
        return self._log.problem if self._log is not None else ""

    def ended(self) -> str:
        for child in self._children:
            if child.code is not None:
                name = "" if child.name == "engine" else f"{child.name} "
                return name + _describe(child.code)
        return ""

    def tail(self, lines_max: int) -> list[str]:
        ended = next((child for child in self._children if child.code is not None), None)
        child = ended or (self._children[-1] if self._children else None)
        return list(child.tail)[-lines_max:] if child is not None and lines_max > 0 else []

    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def sample(self) -> Report | None:
        return None

    async def stop(self) -> None:
        """The engine first, then its stages, last started first."""
        killed = False
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_s + _KILL_AFTER_S):
                    await child.wait()
            except TimeoutError:
                child.signal(signal.SIGKILL)
                killed = True
                await child.wait()
            killed = killed or child.code == -signal.SIGKILL
        if killed:
            await asyncio.get_running_loop().run_in_executor(None, sweep, self._mark)
        for child in self._children:
            child.close()
        await asyncio.gather(*self._waits, return_exceptions=True)
        self._hold.close()
        await asyncio.get_running_loop().run_in_executor(None, self._end_log)

    def _end_log(self) -> None:
        if self._sink is not None:
            self._sink.close()
        if self._log is not None:
            self._log.close()


def _describe(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number > 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit code {code}"


def sweep(mark: str) -> int:
    """SIGKILL to every process that carries this mark in its environment; how many. For when a shim was killed."""
    found = 0
    needle = f"{_MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0") and int(path.name) != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(path.name), signal.SIGKILL)
                found += 1
    return found
