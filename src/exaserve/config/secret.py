"""Secrets live in files of their own: a cluster file is read by many, and a command line by everyone on the machine."""

from __future__ import annotations

from pathlib import Path

from exaserve.domain.errors import ConfigError

__all__ = ["SECRET_BYTES_MAX", "read_secret"]

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
    if len(secret) < characters_min or not secret.isascii() or not secret.isprintable():
        raise ConfigError(f"{param} {path}: must hold at least {characters_min} ASCII characters", param=param)
    return secret
