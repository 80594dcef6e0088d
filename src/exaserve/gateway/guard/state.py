"""A gateway's control document at work: read from the state folder, written there before it is acknowledged, watched.

Who writes there beside this process (a command, another gateway of the machine) is noticed within ``WATCH_S``. The
folder is made when there is something to keep. Without one the document is only in memory, and lasts as long as the
process or its peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from exaserve.control.document import Document, Entry
from exaserve.control.wish import AuditRow, Wish
from exaserve.domain.errors import ConfigError
from exaserve.gateway.guard.secrets_file import SecretsFile, is_secret, new_secret
from exaserve.gateway.guard.store import FILE, Store
from exaserve.observe import EventLog

__all__ = ["WATCH_S", "ControlState"]

WATCH_S = 0.25
_PURGE_S = 3600.0
_AUDIT_HELD = 10_000
"""Audit rows that are held without a folder."""
_T = TypeVar("_T")


class ControlState:
    """See the module's text.

    Args:
        folder: the state folder; None keeps all in memory.
        writer: this gateway's name in what it writes; unique among gateways and commands.
        wall: seconds since 1970.

    Attributes:
        secrets: cluster secrets by id.
        on_change: told what has changed, in the loop's thread; each may ask the document.
        on_write: told of entries that were changed here and of those that came from a command, to pass on to peers.
        on_secrets: there are more cluster secrets.

    Raises:
        ConfigError: the folder cannot be used.
    """

    def __init__(self, folder: Path | None, writer: str, log: EventLog, wall: Callable[[], float] = time.time) -> None:
        self.document = Document(writer)
        self.folder = folder
        self.wall = wall
        self.on_change: list[Callable[[Sequence[Entry]], None]] = []
        self.on_write: list[Callable[[Sequence[Entry]], None]] = []
        self.on_secrets: list[Callable[[], None]] = []
        self.failures = 0
        self._log = log
        self.secrets: dict[str, bytes] = {}
        self._store: Store | None = None
        self._file = None if folder is None else SecretsFile(folder)
        self._unread = False
        """The folder was opened and what stands in it is not in the document yet."""
        self._held: list[AuditRow] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        """One thread does all that blocks, in order."""
        self._watcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._purged_at = wall()
        if folder is not None and (folder / FILE).exists():
            entries, self.secrets = self._look()
            self.document.merge(entries, 2**62)

    def _opened(self) -> Store:
        """The folder, made where it is missing. Blocks; in the thread only, but for the start."""
        assert self.folder is not None
        if self._store is None:
            self._store = Store(self.folder)
            self._unread = True
        return self._store

    @property
    def _wall_ms(self) -> int:
        return int(self.wall() * 1000)

    # ---- life ---------------------------------------------------------------------------------------------------
    def start(self) -> None:
        if self.folder is not None and self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Writes what is to be written; nothing is taken afterwards."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store is not None:
            await self._blocking(self._store.close)
        self._thread.shutdown(wait=False)

    async def _blocking(self, call: Callable[..., _T], *args: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def _watch(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                found, secrets = await self._blocking(self._look)
                self._take_secrets(secrets)
                self._changed(self.document.merge(found, 2**62), tell=True)
                if self._store is not None and self.wall() - self._purged_at > _PURGE_S:
                    self._purged_at = self.wall()
                    await self._blocking(self._store.forget, self.document.purge(self._wall_ms))
                failing = False
            except (sqlite3.Error, OSError, ConfigError) as error:
                self.failures += 1
                if not failing:
                    self._log.error("state_unreadable", folder=str(self.folder), error=str(error))
                failing = True

    def _look(self) -> tuple[list[Entry], dict[str, bytes]]:
        """What others have written since the last look."""
        assert self.folder is not None
        assert self._file is not None
        if self._store is None and not (self.folder / FILE).exists():
            return [], {}
        store = self._opened()
        if not (store.changed() or self._unread):
            return [], {}
        self._unread = False
        return store.entries(), self._file.read()

    # ---- changes ------------------------------------------------------------------------------------------------
    async def prepare(self) -> None:
        """There is a cluster secret, for a key that is about to be made.

        Raises:
            ConfigError: the folder cannot be used.
        """
        if not self.secrets:
            self._take_secrets(new_secret() if self._file is None else await self._made_secret(self._file))

    async def _made_secret(self, file: SecretsFile) -> dict[str, bytes]:
        def make() -> dict[str, bytes]:
            self._opened()
            return file.ready()

        try:
            return await self._blocking(make)
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}", param="gateway.state_dir") from None

    async def carry_out(self, wishes: Sequence[Wish], who: str) -> None:
        """Writes them, all or none, as ``who`` wants it; in force, and on the disk, when it returns.

        Raises:
            ConfigError: an entry cannot be taken, or the folder cannot be written; then nothing has changed for good.
        """
        entries = [self.document.put(*change, self._wall_ms) for wish in wishes for change in wish.changes]
        audit = [wish.row(self.wall(), who) for wish in wishes]
        self._changed(entries, tell=True)
        if self.folder is None:
            self._held = [*self._held, *audit][-_AUDIT_HELD:]
            return
        try:
            await self._blocking(lambda: self._opened().write(entries, audit))
        except (sqlite3.Error, OSError, ConfigError) as error:
            self.failures += 1
            raise ConfigError(
                f"the change is in force, but could not be written to {self.folder} ({error}), and ends with the"
                " process; make room there and repeat it",
                param="gateway.state_dir",
            ) from None

    def merge(self, entries: Sequence[Entry]) -> None:
        """Takes what a peer wrote."""
        refused = self.document.refused
        changed = self.document.merge(entries, self._wall_ms)
        if self.document.refused != refused:
            self._log.warning(
                "control_refused", entries=self.document.refused - refused,
                why="a peer's clock is more than ten minutes ahead of this one's, or its entries are too large",
            )  # fmt: skip
        self._changed(changed, tell=False)
        if changed:
            self._soon(lambda: self._opened().write(changed))

    def take_secrets(self, secrets: dict[str, bytes]) -> None:
        """Takes in those of a peer, where they are what they are called."""
        secrets = {name: secret for name, secret in secrets.items() if is_secret(name, secret)}
        if not secrets.keys() <= self.secrets.keys():
            known = {**self.secrets, **secrets}
            self._take_secrets(known)
            file = self._file
            if file is not None:
                self._soon(lambda: (self._opened(), file.add(known)))

    def _take_secrets(self, secrets: dict[str, bytes]) -> None:
        if not secrets.keys() <= self.secrets.keys():
            self.secrets = {**self.secrets, **secrets}
            for call in self.on_secrets:
                call()

    def _changed(self, entries: Sequence[Entry], *, tell: bool) -> None:
        if not entries:
            return
        for call in self.on_change:
            call(entries)
        if tell:
            for call in self.on_write:
                call(entries)

    def _soon(self, call: Callable[[], object]) -> None:
        if self.folder is not None:
            task = asyncio.get_running_loop().create_task(self._write(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write(self, call: Callable[[], object]) -> None:
        try:
            await self._blocking(call)
        except (sqlite3.Error, OSError, ConfigError) as error:
            self.failures += 1
            self._log.error("state_unwritable", folder=str(self.folder), error=str(error))

    def counters(self) -> list[tuple[str, str, str, float]]:
        """What was counted before; blocks, for the start."""
        return [] if self._store is None else self._store.counters()

    def count(self, rows: Sequence[tuple[str, str, str, float]]) -> None:
        """Keeps counters, soon."""
        if rows:
            self._soon(lambda: self._opened().count(rows))

    def drop_counters(self, periods: Sequence[str]) -> None:
        """Forgets those of periods that are over, soon."""
        self._soon(lambda: self._opened().drop_counters(periods))

    async def audit(self, count: int, before: int | None = None) -> list[tuple[int, AuditRow]]:
        """The newest administrative actions with their numbers."""
        if self.folder is None:
            rows = list(enumerate(self._held))
            return [row for row in reversed(rows) if before is None or row[0] < before][:count]
        if self._store is None:
            return []
        return await self._blocking(self._store.audit, count, before)
