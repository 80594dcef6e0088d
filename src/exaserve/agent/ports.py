"""Ports that are held before an engine starts, so that two engines never meet on one.

Two holds, because one is not enough. A name in the abstract socket space is exclusive between agents of this machine
and gone with the process that has it. A bound socket that does not listen finds out whether somebody else listens
there, and keeps the kernel from giving the port to an outgoing connection; with SO_REUSEADDR on both sides an engine
may bind beside it, as every server that can be restarted does.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable

from exaserve.domain.errors import ConfigError

__all__ = ["Hold"]


class Hold:
    """Holds ports of one address until :meth:`close`.

    Raises:
        ConfigError: somebody else has one of them; nothing is held then.
    """

    def __init__(self, host: str, ports: Iterable[int]) -> None:
        self._sockets: list[socket.socket] = []
        port = 0
        try:
            for port in ports:
                self._take(host, port)
        except OSError as error:
            self.close()
            what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror or error}"
            raise ConfigError(f"port {port} of {host} {what}", param="base_port") from None

    def _take(self, host: str, port: int) -> None:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(name)
        name.bind(f"\0exaserve/{host}/{port}")
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(info[0], socket.SOCK_STREAM)
        self._sockets.append(bound)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(info[4])

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.close()
        self._sockets.clear()
