"""What an agent keeps on its node's disk for itself: a lock against a second agent, and what operators have held.

A *hold* is an operator's word that outlives the agent: a replica that was stopped stays stopped, one that was drained
stays out of rotation, until ``restart``, ``start`` or ``resume``. It is kept on the node alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from exaserve.domain.errors import ConfigError

__all__ = ["Hold", "StateFolder", "hold_after"]

Hold = Literal["stop", "drain"]
_FILE, _LOCK = "holds.json", "agent.lock"


def hold_after(verb: str, before: Hold | None) -> Hold | None:
    """The hold that a life-cycle verb leaves behind."""
    if verb in ("stop", "drain"):
        return "stop" if verb == "stop" or before == "stop" else "drain"
    if verb == "resume":
        return before if before == "stop" else None
    return None


class StateFolder:
    """One node's folder, from :meth:`open` to :meth:`close`.

    Args:
        keeps: whether holds are kept; not for trials of many nodes in one process, which begin anew each time.

    Attributes:
        problem: why holds could not be read, "" where they could.
    """

    def __init__(self, path: Path, *, keeps: bool = True) -> None:
        self._path = path
        self._keeps = keeps
        self._lock = -1
        self.problem = ""

    def open(self) -> dict[str, Hold]:
        """Locks the folder and returns the holds, by replica.

        Raises:
            ConfigError: another process has it, or it cannot be made.
        """
        path = self._path / _LOCK
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise ConfigError(
                f"{self._path} is in use by another agent of this node, process {holder}; end it, or give this one "
                "another --state-dir",
                param="agents.state_dir",
            ) from None
        except OSError as error:
            self.close()
            raise ConfigError(
                f"{path}: {error.strerror or error}; give another --state-dir", param="agents.state_dir"
            ) from None
        self._say_who()
        return self._read() if self._keeps else {}

    def _say_who(self) -> None:
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:  # a full disk: the lock holds all the same
            return

    def _read(self) -> dict[str, Hold]:
        try:
            return msgspec.json.decode((self._path / _FILE).read_bytes(), type=dict[str, Hold])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            self.problem = f"{self._path / _FILE}: {error}"
            return {}

    def keep(self, holds: Mapping[str, Hold]) -> str:
        """Writes all of them; why they could not be written, "" where they were. Blocks."""
        if not self._keeps:
            return ""
        file = self._path / _FILE
        draft = file.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(holds))
            draft.replace(file)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
