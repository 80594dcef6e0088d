"""Stands between the agent and one engine, so that nothing of the engine outlives the agent.

``python shim.py PARENT_PID STOP_S CPUS MEMORY_NODES PROGRAM ARGUMENTS…`` (``-`` for no binding). Run as a file without
importing the package: it costs some milliseconds and 8 MB.

It makes itself the reaper of all orphans below it (PR_SET_CHILD_SUBREAPER), binds CPUs and memory, and starts the
program in a session of its own. On SIGTERM, which Linux also sends when the agent is gone, even by SIGKILL, the program
gets SIGTERM; what is left after STOP_S, or after the program's end, gets SIGKILL, however it was daemonised. Ends with
the program's exit code, or 128 + signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import time

__all__ = ["main"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_MPOL_BIND = 2  # linux/mempolicy.h
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_SWEEP_S = 0.05


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _numbers(text: str) -> list[int]:
    return [] if text == "-" else [int(number) for number in text.split(",")]


def _bind(cpus: list[int], nodes: list[int]) -> None:
    """A binding that the machine refuses is said and not insisted on: an engine that runs is worth more."""
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
        number = _SET_MEMPOLICY.get(platform.machine())
        if nodes and number is not None:
            mask = sum(1 << node for node in nodes)
            words = (ctypes.c_ulong * 16)(*[(mask >> (64 * k)) & (2**64 - 1) for k in range(16)])
            if ctypes.CDLL(None, use_errno=True).syscall(number, _MPOL_BIND, words, 1024):
                raise OSError(ctypes.get_errno(), "set_mempolicy")
    except OSError as error:
        sys.stderr.write(f"not bound to its NUMA node: {error}\n")


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 -- pathlib is not worth its import here
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:  # noqa: PTH123
                found += [int(child) for child in file.read().split()]
    return found


def _kill_below() -> bool:
    """SIGKILL to everything below this process; whether there was anything."""
    left, seen = _children(os.getpid()), set()
    while left:
        pid = left.pop()
        if pid not in seen:
            seen.add(pid)
            left += _children(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return bool(seen)


def _start(program: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(program[0], program)  # noqa: S606 -- starting the given program is the purpose
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _reap(engine: int) -> int | None:
    """Waits for whatever has ended; the engine's code once it has."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == engine:
                code = os.waitstatus_to_exitcode(status)
    return code


def _watch(engine: int, stop_s: float, watched: set[signal.Signals]) -> int:
    deadline = None
    while True:
        wait_s = 60.0 if deadline is None else max(0.0, deadline - time.monotonic())
        got = signal.sigtimedwait(watched, wait_s)
        if (code := _reap(engine)) is not None:
            return code
        if got is not None and got.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + stop_s
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine, signal.SIGTERM)
        elif deadline is not None and time.monotonic() >= deadline:
            _kill_below()
            deadline = time.monotonic() + _SWEEP_S


def main(args: list[str]) -> None:
    parent, stop_s, program = int(args[0]), float(args[1]), args[4:]
    watched = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:  # it died before the setting took hold
        sys.exit(1)
    _bind(_numbers(args[2]), _numbers(args[3]))
    engine = _start(program)
    code = _watch(engine, stop_s, watched)
    while _kill_below():  # what the program left behind
        time.sleep(_SWEEP_S)
        _reap(engine)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
