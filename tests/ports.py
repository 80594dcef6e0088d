"""Ports for servers that start later, or not at all."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Sequence

__all__ = ["free_port", "free_ports"]

_FIRST, _LAST = 10_000, 32_000
"""Below those that the system gives to clients: a connection that is opened meanwhile takes none of them."""


def free_ports(count: int, neighbours: bool = False, hosts: Sequence[str] = ("127.0.0.1",)) -> list[int]:
    """So many different ports at which nobody listens on any of ``hosts``; ``neighbours``: one after the other."""
    rng = random.SystemRandom()
    while True:
        first = rng.randrange(_FIRST, _LAST - count)
        ports = list(range(first, first + count)) if neighbours else rng.sample(range(_FIRST, _LAST), count)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for host, port in itertools.product(hosts, ports):
                stack.enter_context(socket.socket()).bind((host, port))
            return ports


def free_port() -> int:
    return free_ports(1)[0]
