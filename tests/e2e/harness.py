"""Real processes: an emulator and a gateway, as a user starts them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess

__all__ = ["MODEL", "GatewayProcess", "emulator", "run", "until"]

MODEL = "tiny"


def emulator(replicas: int = 3, **changes: Any) -> EmulatorProcess:
    """Replicas of one model, fast enough that tests do not wait for them."""
    defaults: dict[str, Any] = {"speed": 20.0, "load_s": 1.0, "served_model_names": (MODEL,)}
    return EmulatorProcess(EmulatorConfig(replicas=replicas, port=0, **defaults | changes))


def until(condition: Callable[[], Any], timeout_s: float = 30.0, what: str = "") -> Any:
    """Waits for a true value and returns it."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.02)
    return value


def run(*args: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """``exaserve`` with ``args`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "exaserve", *args], capture_output=True, text=True, timeout=timeout_s, check=False
    )


class GatewayProcess:
    """``exaserve gateway`` on free ports, ended with the block. ``lines`` is its log so far."""

    def __init__(self, urls: Sequence[str], *args: str, config: Path | None = None) -> None:
        command = [sys.executable, "-m", "exaserve", "gateway", "--port", "0", "--admin-port", "0", *args]
        command += ["--config", str(config)] if config else []
        for url in urls:
            command += ["--replica", url]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self.wait_for("event=listening")
        match = re.search(r"url=(\S+) admin=(\S+)", line)
        assert match is not None, line
        self.url, self.admin_url = match[1], match[2]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def wait_for(self, text: str, timeout_s: float = 30.0) -> str:
        """The first log line with ``text``."""

        def look() -> str:
            if self.process.poll() is not None:
                time.sleep(0.1)
            found = next((line for line in list(self.lines) if text in line), "")
            assert found or self.process.poll() is None, "\n".join(self.lines)
            return found

        return str(until(look, timeout_s, text))

    def ready(self) -> Self:
        self.wait_for("event=ready")
        return self

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, timeout=30)

    def admin(self, path: str, body: Any = None) -> Any:
        """GET, or POST with ``body``, on the admin API; the decoded answer."""
        if body is None:
            answer = httpx.get(self.admin_url + path, trust_env=False, timeout=30)
        else:
            answer = httpx.post(self.admin_url + path, content=json.dumps(body), trust_env=False, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def gauge(self, name: str) -> float:
        """Sum of all samples of ``name`` in the gateway's own metrics."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
