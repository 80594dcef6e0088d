"""Where ``keys``, ``tenants`` and ``audit`` do their work: at a gateway's admin API, or straight in its state folder.

In the folder no token is asked for: who may write the file may decide. A gateway that runs notices within a second.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from exaserve.cli.nodes import ask_admin
from exaserve.config import Cluster, load_cluster, read_environment, state_dir_of
from exaserve.control.document import Document
from exaserve.control.keydesk import KeyChange, Keydesk, KeyWish, TenantChange, shown
from exaserve.control.wish import Wish
from exaserve.domain.errors import ConfigError, ExaServeError
from exaserve.gateway.guard.secrets_file import SecretsFile, fresh_key
from exaserve.gateway.guard.store import Store

__all__ = ["KeyTarget", "key_target"]


class KeyTarget(Protocol):
    """What can be done; records come as the admin API shows them."""

    def keys(self) -> list[dict[str, Any]]: ...
    def key(self, named: str) -> dict[str, Any]: ...
    def create(self, wishes: list[KeyWish]) -> list[dict[str, Any]]: ...
    def change(self, named: str, change: KeyChange) -> dict[str, Any]: ...
    def rotate(self, named: str, grace_s: float) -> dict[str, Any]: ...
    def revoke(self, named: str) -> dict[str, Any]: ...
    def tenants(self) -> list[dict[str, Any]]: ...
    def set_tenant(self, name: str, change: TenantChange) -> dict[str, Any]: ...
    def remove_tenant(self, name: str) -> None: ...
    def audit(self, count: int) -> list[dict[str, Any]]: ...


def key_target(
    state_dir: Path | None, config: Path | None, admin_url: str | None, token_file: Path | None
) -> KeyTarget:
    """By the flags: an admin API where one is named, else the folder of the cluster file or of port 8000."""
    if admin_url is not None and (state_dir is not None or config is not None):
        raise ConfigError("--admin-url: give it, or --state-dir or --config, not both", param="--admin-url")
    if admin_url is not None:
        return _Remote(admin_url, token_file)
    if config is None and state_dir is None and (named := read_environment().config):
        config = Path(named)
    if state_dir is not None:
        return _Local(state_dir)
    cluster = Cluster() if config is None else load_cluster(config)
    folder = state_dir_of(cluster.gateway)
    if folder is None:
        raise ConfigError(
            "gateway.state_dir: this gateway keeps nothing on the disk; use --admin-url, or set it",
            param="gateway.state_dir",
        )
    return _Local(folder)


class _Local:
    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self._document = Document(f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}")
        self._document.merge(self._store.entries(), 2**62)
        self._desk = Keydesk(self._document, SecretsFile(folder).ready())

    def _done(self, *wishes: Wish) -> list[dict[str, Any]]:
        """All or nothing; their answers."""
        now, who = time.time(), f"cli {getpass.getuser()}"
        changes = [change for wish in wishes for change in wish.changes]
        entries = [self._document.put(*change, int(now * 1000)) for change in changes]
        self._store.write(entries, [wish.row(now, who) for wish in wishes])
        return [wish.answer for wish in wishes]

    def keys(self) -> list[dict[str, Any]]:
        return [shown(key) for key in self._desk.all_keys()]

    def key(self, named: str) -> dict[str, Any]:
        return shown(self._desk.key(named))

    def create(self, wishes: list[KeyWish]) -> list[dict[str, Any]]:
        now = time.time()
        return self._done(*[self._desk.create(wish, *fresh_key(), now) for wish in wishes])

    def change(self, named: str, change: KeyChange) -> dict[str, Any]:
        return self._done(self._desk.change(named, change))[0]

    def rotate(self, named: str, grace_s: float) -> dict[str, Any]:
        return self._done(self._desk.rotate(named, fresh_key()[1], grace_s, time.time()))[0]

    def revoke(self, named: str) -> dict[str, Any]:
        return self._done(self._desk.revoke(named))[0]

    def tenants(self) -> list[dict[str, Any]]:
        return [shown(tenant) for tenant in self._desk.tenants()]

    def set_tenant(self, name: str, change: TenantChange) -> dict[str, Any]:
        return self._done(self._desk.set_tenant(name, change))[0]

    def remove_tenant(self, name: str) -> None:
        self._done(self._desk.remove_tenant(name))

    def audit(self, count: int) -> list[dict[str, Any]]:
        return [{"number": number, **row._asdict()} for number, row in self._store.audit(count)]


class _Remote:
    def __init__(self, url: str, token_file: Path | None) -> None:
        self._ask = ask_admin(url, token_file)

    def _get(self, method: str, path: str, body: object = None) -> Any:
        value = None if body is None else msgspec.to_builtins(body)
        status, found = self._ask(method, path, value)
        if status >= 400:
            error = found.get("error", {})
            message = str(error.get("message", f"status {status}")).rstrip(".")
            raise ConfigError(message, param=error.get("param")) if status < 500 else ExaServeError(message)
        return found

    def keys(self) -> list[dict[str, Any]]:
        return list(self._get("GET", "/keys")["keys"])

    def key(self, named: str) -> dict[str, Any]:
        return dict(self._get("GET", f"/keys/{named}"))

    def create(self, wishes: list[KeyWish]) -> list[dict[str, Any]]:
        return list(self._get("POST", "/keys", wishes)["keys"])

    def change(self, named: str, change: KeyChange) -> dict[str, Any]:
        return dict(self._get("PATCH", f"/keys/{named}", change))

    def rotate(self, named: str, grace_s: float) -> dict[str, Any]:
        return dict(self._get("POST", f"/keys/{named}/rotate", {"grace_s": grace_s}))

    def revoke(self, named: str) -> dict[str, Any]:
        return dict(self._get("POST", f"/keys/{named}/revoke"))

    def tenants(self) -> list[dict[str, Any]]:
        return list(self._get("GET", "/tenants")["tenants"])

    def set_tenant(self, name: str, change: TenantChange) -> dict[str, Any]:
        return dict(self._get("PUT", f"/tenants/{name}", change))

    def remove_tenant(self, name: str) -> None:
        self._get("DELETE", f"/tenants/{name}")

    def audit(self, count: int) -> list[dict[str, Any]]:
        return list(self._get("GET", f"/audit?count={count}")["audit"])
