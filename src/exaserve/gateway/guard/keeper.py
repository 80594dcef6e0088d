"""Puts the control document into force at one gateway: who is asked for a key, which there are, and the levers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from exaserve.config import Cluster, is_loopback
from exaserve.control.document import Entry
from exaserve.control.keybook import Keybook
from exaserve.control.keydesk import Keydesk, read_record
from exaserve.control.levers import Levers
from exaserve.control.limits import LimitBook
from exaserve.control.meters import KINDS
from exaserve.control.records import ApiKey, Tenant
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.core import Core
from exaserve.gateway.guard.guard import Guard
from exaserve.gateway.guard.jwt import Tokens
from exaserve.gateway.guard.periods import PeriodKeeper
from exaserve.gateway.guard.state import ControlState
from exaserve.observe import EventLog, Family, labels

__all__ = ["GuardKeeper"]


class GuardKeeper:
    """See the module's text.

    Args:
        cluster: what the file says of keys, limits, prices and the policy.
    """

    def __init__(self, state: ControlState, core: Core, cluster: Cluster, log: EventLog) -> None:
        self.state = state
        self.levers = Levers(state.document, core.scheduler, cluster.scheduling.policy)
        self._core = core
        self._auth = auth = cluster.auth
        self._log = log
        self.limits = LimitBook(cluster.limits, cluster.prices)
        settings = cluster.gateway
        node = settings.name or f"port {settings.port} {settings.peer_listen}".strip()
        self.periods = PeriodKeeper(self.limits, state, node, state.wall)
        self._book = Keybook((), (), {})
        self._guard = Guard(state.wall, self.limits)
        self.tokens = Tokens(auth.jwt, state.wall, core.clock, log)
        if auth.jwt:
            self._guard.tokens = self.tokens.find
            self.tokens.on_taken_back = self._guard.forget
        state.on_change.append(self._changed)
        state.on_secrets.append(self.refresh)
        self.levers.apply_policy()
        self.refresh()

    @property
    def desk(self) -> Keydesk:
        return Keydesk(self.state.document, self.state.secrets)

    async def start(self) -> None:
        """Watches what others change, and the public keys of issuers of tokens, which are known when it returns."""
        self.state.start()
        self.periods.start()
        await self.tokens.start()

    async def stop(self) -> None:
        await self.tokens.stop()
        await self.periods.stop()
        await self.state.stop()

    def reload(self, cluster: Cluster) -> None:
        """The cluster file has other limits or prices."""
        self.limits.set_rules(cluster.limits, cluster.prices)
        self._guard.forget()

    def families(self, nodes: Mapping[str, str] | None) -> Iterator[Family]:
        """For the gateway's own metrics."""
        yield from self.tokens.families(nodes)
        keys = Family("exaserve_keys", "gauge", "API keys that are accepted.")
        keys.add(len(self._book))
        refused = Family("exaserve_limit_refused_total", "counter", "Requests that a limit had no room for, by kind.")
        for kind, count in sorted(self.limits.refused.items()):
            refused.add(count, labels(kind=KINDS[kind]))
        share = Family(
            "exaserve_limits_share", "gauge", "Part of every limit that is this side's; below 1 peers are lost."
        )
        share.add(self.limits.share)
        failures = Family(
            "exaserve_state_failures_total", "counter", "Reads and writes of the state folder that failed."
        )
        failures.add(self.state.failures)
        yield from (keys, refused, share, failures)

    def refuse_open(self, host: str) -> None:
        """ConfigError where strangers could use an endpoint of which nobody has said that it is open."""
        if self._core.guard is None and self._auth.mode == "auto" and not is_loopback(host):
            raise ConfigError(
                f"gateway.host: {host} can be reached from other machines, and nobody is asked for a key; make one by"
                " `exaserve keys create`, or write `auth: open` (--auth open) if everyone may use it",
                param="gateway.host",
            )

    def joined(self, replica: ReplicaId) -> None:
        """A replica has come, or is back in rotation by itself."""
        self.levers.joined(replica)

    def refresh(self) -> None:
        """There are other secrets, or it begins: all keys are read, some 5 µs each."""
        self._take(self.desk.book())

    def _take(self, book: Keybook) -> None:
        self._book = book
        mode = self._auth.mode
        # Where there ever was a key, the endpoint does not open again because the last one was revoked.
        asks = mode == "keys" or (mode == "auto" and bool(book.keys or self._auth.jwt))
        self._guard.take(book)
        if asks != (self._core.guard is not None):
            self._log.info("auth", mode="keys" if asks else "open", keys=len(book))
        self._core.guard = self._guard if asks else None

    def _changed(self, entries: Sequence[Entry]) -> None:
        mine = [entry for entry in entries if entry.kind in ("key", "tenant")]
        for entry in mine:
            if entry.kind == "tenant":
                self._book.put_tenant(entry.id, read_record(entry.value, Tenant))
            else:
                self._book.put_key(entry.id, read_record(entry.value, ApiKey))
        if mine:
            self._take(self._book)
        self.levers.changed(entries)
