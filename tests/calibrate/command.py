"""Runs the command line as users do: a process of its own."""

from __future__ import annotations

import subprocess
import sys


def exaserve(*arguments: str, timeout_s: float = 200.0) -> tuple[int, str]:
    """Exit code, and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "exaserve", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())
