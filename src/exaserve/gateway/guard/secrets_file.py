"""The cluster secrets: what keys are hashed with and salts are made of. A file of their own, never in the database."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from exaserve.domain.errors import ConfigError

__all__ = ["SECRETS_MAX", "SecretsFile", "fresh_key", "is_secret", "new_secret"]

SECRETS_MAX = 16
"""Gateways that each began alone and became peers later bring one each."""
_BYTES = 32


def fresh_key() -> tuple[str, str]:
    """A new key's id, and 256 random bits as text for its secret."""
    return f"key_{secrets.token_hex(6)}", secrets.token_urlsafe(_BYTES)


def new_secret() -> dict[str, bytes]:
    """One, under its name."""
    secret = secrets.token_bytes(_BYTES)
    return {_secret_id(secret): secret}


def _secret_id(secret: bytes) -> str:
    """What a secret is called where it must not stand itself."""
    return hashlib.sha256(b"exaserve secret\n" + secret).hexdigest()[:12]


def is_secret(name: str, secret: bytes) -> bool:
    """Whether it is one, under its own name."""
    return len(secret) == _BYTES and _secret_id(secret) == name


class SecretsFile:
    """``secrets`` in the state folder: id to secret, readable by its owner alone. All calls block."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "secrets"

    def read(self) -> dict[str, bytes]:
        """All of them; none where there is no file.

        Raises:
            ConfigError: it cannot be read, or holds something else.
        """
        try:
            found = json.loads(self._path.read_text("utf-8"))
            known = {str(name): bytes.fromhex(text) for name, text in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged; take it from a backup or a peer"
            raise ConfigError(f"{self._path}: {why}", param="gateway.state_dir") from None
        return known

    def ready(self) -> dict[str, bytes]:
        """All of them, after one has been made where there was none."""
        return self.add({})

    def add(self, more: Mapping[str, bytes]) -> dict[str, bytes]:
        """Takes those of a peer in; returns all. What is not what its name says, or is too many, is left out."""
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.read()
            wanted = dict(known)
            for name, secret in more.items():
                if len(wanted) < SECRETS_MAX and is_secret(name, secret):
                    wanted[name] = secret
            wanted = wanted or new_secret()
            if wanted != known:
                self._write(wanted)
            return wanted
        finally:
            os.close(lock)

    def _write(self, wanted: Mapping[str, bytes]) -> None:
        draft = self._path.with_suffix(".new")
        text = json.dumps({name: secret.hex() for name, secret in sorted(wanted.items())})
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
