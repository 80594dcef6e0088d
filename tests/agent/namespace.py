"""A network namespace and a link to it, for a node that can be cut off."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

__all__ = ["Unavailable", "ip", "linked"]


class Unavailable(Exception):
    """This machine, or this user, cannot have it."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def linked(name: str, net: str) -> Iterator[str]:
    """A namespace ``name`` at the address ``net``.2; yields the name of our end of its link, which is ``net``.1."""
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"network namespaces cannot be made here (needs root and CAP_NET_ADMIN): {error}") from None
    try:
        try:
            ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
            ip("addr", "add", f"{net}.1/24", "dev", f"{name}a")
            ip("link", "set", f"{name}a", "up")
            ip("-n", name, "addr", "add", f"{net}.2/24", "dev", f"{name}b")
            ip("-n", name, "link", "set", f"{name}b", "up")
            ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"veth pairs cannot be made here: {error.stderr!r}") from None
        yield f"{name}a"
    finally:
        ip("netns", "del", name)
