"""Runs a program that ends when its parent does: ``python launch.py PARENT_PID PROGRAM ARGUMENTS…``.

Linux sends SIGTERM to this process when the parent is gone, even by SIGKILL; the setting survives ``exec``. Run as a
file, without importing the package: it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def main(args: list[str]) -> None:
    parent, program = int(args[0]), args[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it died before the setting took hold
        sys.exit(1)
    try:
        os.execvp(program[0], program)  # noqa: S606 -- starting the given program is the purpose
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


if __name__ == "__main__":
    main(sys.argv[1:])
