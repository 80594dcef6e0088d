"""Processes for benchmarks: started on chosen cores, accounted for by the kernel, and gone afterwards."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def raise_file_limit() -> int:
    """Allow this process and its children as many files as the hard limit allows; returns that number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def cores() -> tuple[int, int]:
    """The core for what is measured, and the core for everything else. The same where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1], usable[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def description() -> dict[str, object]:
    """What a reader needs to know of the machine to compare figures."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


@dataclass
class Child:
    """A started process. ``stop`` ends it, first kindly."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, wait_s: float = 5.0) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def environment() -> dict[str, str]:
    """For a process of ours: Python finds this tree's package, unless PYTHONPATH names another one before it (the
    compiled one, say)."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def start(name: str, command: Sequence[str], core: int | None, directory: Path, *, stdout: int | None = None) -> Child:
    """Start a process that may run on one core only (None: on any), with its output in ``directory``."""
    log = directory / f"{name.replace(' ', '-')}.log"
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(
        0, mine if core is None else {core}
    )  # inherited, so that programs that count cores at their start count one
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                list(command),
                stdout=file if stdout is None else stdout,
                stderr=file,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment(),
            )
    finally:
        os.sched_setaffinity(0, mine)
    return Child(name, process, log)


def start_stub(core: int, directory: Path, *, ports: int, gap_ms: int, events: int) -> tuple[Child, list[str]]:
    """The replicas; returns the process and their URLs."""
    command = [sys.executable, "-m", "benchmarks.stub", f"--ports={ports}", f"--gap-ms={gap_ms}", f"--events={events}"]
    child = start("stub", command, core, directory, stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    line = child.process.stdout.readline()
    if not line:
        raise RuntimeError(f"the stub did not start:\n{child.log_tail()}")
    return child, [f"http://127.0.0.1:{port}" for port in json.loads(line)]


def _family(pid: int) -> list[int]:
    family = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            family += _family(int(child))
    return family


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process, its threads and its children, by the kernel's accounts."""
    ticks = 0
    for member in _family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Resident memory of a process and its children, MB (10^6 bytes)."""
    total_kb = 0
    for member in _family(pid):
        for line in Path(f"/proc/{member}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total_kb += int(line.split()[1])
    return total_kb * 1024 / 1e6


def find_program(name: str, chosen: str | None, variable: str) -> str | None:
    """A program by flag, environment variable or PATH (and the directories for system programs)."""
    for candidate in (chosen, os.environ.get(variable), name):
        if candidate and (
            found := shutil.which(candidate, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        ):
            return found
    return None


def install_peer(requirement: str, program: str) -> str | None:
    """Install a Python package into a virtual environment, ``.venv-peers`` beside this folder. None on failure."""
    home = ROOT / ".venv-peers"
    found = home / "bin" / program
    if found.exists():
        return str(found)
    print(f"installing {requirement} into {home.name}/ (once) ...", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True)
        (home / ".gitignore").write_text("*\n")
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", requirement], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"could not install {requirement}: {error}")
        return None
    return str(found) if found.exists() else None
