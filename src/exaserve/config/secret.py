"""Secrets live in files of their own: a cluster file is read by many, and a command line by everyone on the machine."""

from __future__ import annotations

import stat
from pathlib import Path

from exaserve.domain.errors import ConfigError

__all__ = ["SECRET_BYTES_MAX", "open_to_all", "read_secret"]

SECRET_BYTES_MAX = 65_536


def read_secret(path: str | Path, param: str, *, characters_min: int = 16) -> str:
    """The text of a secret's file without surrounding white space.

    Raises:
        ConfigError: naming ``param`` and the file, never what is in it.
    """
    try:
        with Path(path).open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not text"
        raise ConfigError(f"{param} {path}: cannot be read: {why}", param=param) from None
    wrong = _problem(secret, characters_min)
    if wrong:
        raise ConfigError(f"{param} {path}: {wrong}", param=param)
    return secret


def _problem(secret: str, characters_min: int) -> str:
    if not secret:
        return "is empty"
    lines = len(secret.splitlines())
    if lines > 1:
        return f"holds {lines} lines; a secret is one"
    if not secret.isascii() or not secret.isprintable():
        return "must hold printable ASCII characters only"
    if len(secret) < characters_min:
        return f"must hold at least {characters_min} ASCII characters"
    return ""


def open_to_all(path: str | Path) -> bool:
    """Whether everyone on this machine may write the file. One that is not there is open to nobody."""
    try:
        return bool(Path(path).stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False
