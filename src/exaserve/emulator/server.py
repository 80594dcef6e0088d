"""Several emulated replicas in one process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Callable
from typing import Any, Self

from exaserve.config import join_address
from exaserve.domain.errors import ConfigError
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.http import Connection, HttpRequest
from exaserve.emulator.replica import Replica
from exaserve.emulator.routes import control, dispatch

__all__ = ["Emulator", "serve"]


class _ControlPort:
    """Answers on the control port, which stays open whatever the replicas do."""

    body_bytes_max = 1024 * 1024

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def connected(self, connection: Connection) -> None:
        self._emulator.control_connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self._emulator.control_connections.discard(connection)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        control(self._emulator.replicas, connection, request)


class Emulator:
    """The replicas of one process, and the Python API to their faults.

    Args:
        config: checked here: ConfigError for values that cannot work.
    """

    def __init__(self, config: EmulatorConfig) -> None:
        config.check()
        profile = config.engine_profile()
        self.config = config
        self.profile = profile
        self.replicas = [
            Replica(i, config, profile, host, port, dispatch) for i, (host, port) in enumerate(config.addresses())
        ]
        self.control_connections: set[Connection] = set()
        self.control_url: str | None = None
        self._control: asyncio.Server | None = None

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]

    async def open(self) -> None:
        """Listens everywhere. ConfigError where an address is taken or cannot be used; then nothing is left open."""
        try:
            for replica in self.replicas:
                await _listen(replica.open(), replica.host, replica.port)
            port = self.config.control_port
            if port is not None:
                server = asyncio.get_running_loop().create_server(
                    Connection.factory(_ControlPort(self)), self.config.host, port
                )
                self._control = await _listen(server, self.config.host, port)
                self.control_url = f"http://{join_address(self.config.host, self._control.sockets[0].getsockname()[1])}"
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Closes listeners and connections."""
        for replica in self.replicas:
            replica.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        for connection in list(self.control_connections):
            connection.transport.close()

    def fault(self, replica: int, **changes: Any) -> None:
        """Changes faults of one replica; see :class:`exaserve.emulator.faults.Faults`."""
        self.replicas[replica].set_faults(changes)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
        # Transports close in the loop's next turns.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def _listen(opening: Any, host: str, port: int) -> Any:
    try:
        return await opening
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"Port {port} on {host} is in use. Choose another with --port.", param="port") from None
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio wraps the system's words in its own
        raise ConfigError(f"Cannot listen on {join_address(host, port)}: {why}.", param="host") from None


async def serve(
    config: EmulatorConfig,
    ready: Callable[[list[str]], None] | None = None,
    *,
    on_open: Callable[[Emulator], None] | None = None,
    stop_with: int | None = None,
) -> None:
    """Runs the replicas until SIGINT, SIGTERM or cancellation.

    Args:
        ready: called with the replicas' URLs once all of them listen.
        on_open: called with the emulator at the same moment, for callers that set faults themselves.
        stop_with: file descriptor of a pipe or terminal; its end ends the emulator too.

    Raises:
        ConfigError: the configuration cannot work, or an address is taken.
    """
    emulator = Emulator(config)
    await emulator.open()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not on the main thread: then the caller ends it by cancellation.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, stop.set)
        if stop_with is not None:
            loop.add_reader(stop_with, _stop_at_end, stop_with, stop)
        if ready is not None:
            ready(emulator.urls)
        if on_open is not None:
            on_open(emulator)
        await stop.wait()
    finally:
        if stop_with is not None:
            loop.remove_reader(stop_with)
        emulator.close()
        await asyncio.sleep(0)


def _stop_at_end(fd: int, stop: asyncio.Event) -> None:
    try:
        ended = not os.read(fd, 4096)
    except OSError:
        ended = True
    if ended:
        stop.set()
