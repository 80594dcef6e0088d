"""The state folder's database: the control document, what administrators did, and counters that outlive a process.

One SQLite file in WAL mode. Several gateways and commands of one machine may use it at once: an entry is only written
over an older one, and who has changed something is noticed by ``PRAGMA data_version``. A change is on the disk before
it is acknowledged (``synchronous=FULL``). All calls block; the gateway makes them in a thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from exaserve.control.document import Entry, Stamp
from exaserve.control.wish import AuditRow
from exaserve.domain.errors import ConfigError

__all__ = ["FILE", "Store"]

FILE = "control.sqlite"
_BUSY_S = 5.0
"""How long another process's transaction is waited for."""
_AUDIT_MAX = 1_000_000
"""Rows of the audit log that are kept."""

_MIGRATIONS = (
    """
    CREATE TABLE entries (
        kind TEXT NOT NULL, id TEXT NOT NULL, value BLOB,
        wall_ms INTEGER NOT NULL, count INTEGER NOT NULL, writer TEXT NOT NULL,
        PRIMARY KEY (kind, id)
    ) WITHOUT ROWID;
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
        target TEXT NOT NULL, before TEXT, after TEXT
    );
    CREATE TABLE counters (
        meter TEXT NOT NULL, period TEXT NOT NULL, node TEXT NOT NULL, amount REAL NOT NULL,
        PRIMARY KEY (meter, period, node)
    ) WITHOUT ROWID;
    """,
)
"""Each brings the file from one ``user_version`` to the next; only ever appended to."""


class Store:
    """One connection to the file; for one thread at a time.

    Args:
        folder: the state folder; made where it is missing, for its owner alone.

    Raises:
        ConfigError: it cannot be used, is damaged, or was written by a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The file is made by us, so that nobody else can read it for a moment; SQLite gives -wal its rights.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate()
            self._version = self._data_version()
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror or error}; name another folder by gateway.state_dir",
                param="gateway.state_dir",
            ) from None
        except sqlite3.Error as error:
            raise ConfigError(
                f"{self.path}: {error}; put a backup in its place, or move it away to begin anew (with peers, their"
                " document comes back by itself)",
                param="gateway.state_dir",
            ) from None

    def _migrate(self) -> None:
        db = self._db
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(_MIGRATIONS):
            raise ConfigError(
                f"{self.path} was written by a newer version of ExaServe (format {version}, this one knows"
                f" {len(_MIGRATIONS)}); upgrade this one too",
                param="gateway.state_dir",
            )
        if version == len(_MIGRATIONS):
            return
        with self._all_or_nothing():
            version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been quicker
            for number in range(version, len(_MIGRATIONS)):
                for statement in filter(None, map(str.strip, _MIGRATIONS[number].split(";"))):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={number + 1}")

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._db.close()

    # ---- the document -------------------------------------------------------------------------------------------
    def entries(self) -> list[Entry]:
        rows = self._db.execute("SELECT kind, id, value, wall_ms, count, writer FROM entries")
        return [Entry(kind, name, value, Stamp(*stamp)) for kind, name, value, *stamp in rows]

    def write(self, entries: Iterable[Entry], audit: Iterable[AuditRow] = ()) -> None:
        """All or nothing; an entry that the file has in a later form is left as it is there."""
        with self._all_or_nothing():
            self._db.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (kind, id) DO UPDATE SET"
                " value=excluded.value, wall_ms=excluded.wall_ms, count=excluded.count, writer=excluded.writer"
                " WHERE (excluded.wall_ms, excluded.count, excluded.writer) > (wall_ms, count, writer)",
                [(e.kind, e.id, e.value, *e.stamp) for e in entries],
            )
            self._db.executemany(
                "INSERT INTO audit (at, who, what, target, before, after) VALUES (?, ?, ?, ?, ?, ?)", audit
            )

    def forget(self, entries: Iterable[Entry]) -> None:
        """Old tombstones, and audit rows above their bound."""
        self._db.executemany(
            "DELETE FROM entries WHERE kind=? AND id=? AND value IS NULL", [(e.kind, e.id) for e in entries]
        )
        self._db.execute("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (_AUDIT_MAX,))

    def changed(self) -> bool:
        """Whether another connection has written since the last call."""
        version = self._data_version()
        changed, self._version = version != self._version, version
        return changed

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # ---- the rest -----------------------------------------------------------------------------------------------
    def audit(self, count: int, before: int | None = None) -> list[tuple[int, AuditRow]]:
        """The newest rows with their numbers, newest first; those older than number ``before``."""
        rows = self._db.execute(
            "SELECT number, at, who, what, target, before, after FROM audit WHERE number < ? ORDER BY number DESC"
            " LIMIT ?",
            (2**62 if before is None else before, count),
        )
        return [(number, AuditRow(*row)) for number, *row in rows]

    def counters(self) -> list[tuple[str, str, str, float]]:
        """Meter, period, node and amount of each counter."""
        return list(self._db.execute("SELECT meter, period, node, amount FROM counters"))

    def count(self, rows: Iterable[tuple[str, str, str, float]]) -> None:
        """Keeps amounts, of which the larger stays."""
        with self._all_or_nothing():
            self._db.executemany(
                "INSERT INTO counters VALUES (?, ?, ?, ?) ON CONFLICT (meter, period, node) DO UPDATE SET"
                " amount=max(amount, excluded.amount)",
                rows,
            )

    def drop_counters(self, periods: Iterable[str]) -> None:
        """Forgets those of periods that are over."""
        self._db.executemany("DELETE FROM counters WHERE period=?", [(period,) for period in periods])
