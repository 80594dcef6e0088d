"""Starts an emulator as a process of its own and waits until it really answers."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import queue
import subprocess
import sys
import threading
from typing import Any, Self

from exaserve.domain.errors import ConfigError
from exaserve.emulator.config import EmulatorConfig

__all__ = ["EmulatorProcess", "arguments"]

STOP_S = 5.0
"""From SIGTERM to SIGKILL, seconds."""

CONTROL_S = 5.0
"""How long the control port may take to answer, seconds."""

_FLAGS = {"served_model_names": "served-model-name", "prefix_caching": "prefix-caching"}


def arguments(config: EmulatorConfig) -> list[str]:
    """The command line of ``exaserve emulate`` that stands for a configuration; only what differs from the defaults."""
    default = EmulatorConfig()
    out: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value == getattr(default, field.name):
            continue
        if field.name == "profile":
            raise ConfigError("A measured profile cannot be handed to another process.", param="profile")
        flag = "--" + _FLAGS.get(field.name, field.name.replace("_", "-"))
        if isinstance(value, bool):
            out.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            for one in value:
                out += [flag, one]
        else:
            out += [flag, str(value)]
    return out


class EmulatorProcess:
    """A running emulator process. Use as a context manager, or call :meth:`stop`.

    Args:
        config: a control port is opened whether the configuration asks for one or not.
        timeout_s: how long the process may take until all replicas answer.

    Raises:
        ConfigError: the process refused its configuration (its own message), or was not ready in time.
    """

    def __init__(self, config: EmulatorConfig, timeout_s: float = 30.0) -> None:
        if config.control_port is None:
            config = dataclasses.replace(config, control_port=0)
        self.config = config
        command = [sys.executable, "-m", "exaserve", "emulate", *arguments(config), "--json", "--until-stdin-closes"]
        # Our own interpreter and module.
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The child ends when this pipe closes, so that it does not outlive a parent that was killed.
            stdin=subprocess.PIPE,
            # A session of its own: Ctrl-C in the terminal reaches the parent alone, which stops its children in order.
            start_new_session=True,
        )
        try:
            line = self._first_line(timeout_s)
        except BaseException:
            self.stop()
            raise
        ready = json.loads(line)
        self.urls: list[str] = ready["urls"]
        self.control_url: str = ready["control_url"]

    def _first_line(self, timeout_s: float) -> bytes:
        """The line that the process prints once it listens; what it prints later is read and dropped."""
        lines: queue.Queue[bytes] = queue.Queue(maxsize=1)
        stdout = self._process.stdout
        assert stdout is not None

        def read() -> None:
            lines.put(stdout.readline())
            while stdout.read(65536):
                pass

        threading.Thread(target=read, daemon=True).start()
        try:
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            raise ConfigError(f"The emulator was not ready within {timeout_s:g} s.") from None
        if not line:
            assert self._process.stderr is not None
            said = self._process.stderr.read().decode("utf-8", "replace").strip()
            raise ConfigError(said.removeprefix("error: ") or "The emulator ended at once without a message.")
        return line

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def fault(self, replica: int | list[int] | str = "all", **changes: Any) -> dict[str, Any]:
        """Changes faults through the control port; see :func:`exaserve.emulator.routes.control`. Returns the states."""
        return self._call("/emulator/fault", {"replica": replica, **changes})

    def state(self) -> list[dict[str, Any]]:
        """All replicas' states."""
        states: list[dict[str, Any]] = self._call("/emulator/state", None)["replicas"]
        return states

    def _call(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        host, _, port = self.control_url.removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=CONTROL_S)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer: dict[str, Any] = json.load(response)
        finally:
            connection.close()
        if response.status != 200:
            raise ConfigError(answer["error"]["message"])
        return answer

    def stop(self) -> int:
        """Ends the process and returns its exit code; harmless when it has ended."""
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                # The reader thread may hold stdout's lock while it sees the end.
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
