"""The gateway's side of discovery: builds the sources, follows them, and puts what they say into effect.

A replica's id belongs to whoever named it first: the cluster file and node agents before any source, sources in the
order of the configuration. Two ids for one address would count one engine twice, so the second is left out. What is
left out is looked at again at every change, so that it comes in as soon as it may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from exaserve.config import Environment, split_address
from exaserve.config.sources import ConsulSettings, DiscoverySettings, DnsSettings, KubernetesSettings
from exaserve.discovery import Belief, Change, Defaults, FileDiscovery, Removed
from exaserve.discovery.consul import ConsulDiscovery
from exaserve.discovery.dns import DnsDiscovery
from exaserve.discovery.feed import Feed
from exaserve.discovery.file import stamp_of
from exaserve.discovery.http import Tls
from exaserve.discovery.kubeconfig import ApiAccess, in_cluster, read_kubeconfig
from exaserve.discovery.kubernetes import KubernetesDiscovery
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.fleet.members import Members
from exaserve.observe import EventLog, Family, labels
from exaserve.scheduling import Scheduler

__all__ = ["Registries", "sources_of", "watch_file"]

FILE_LOOK_S = 1.0
PAUSE_SHARE = 4.0
"""After a batch a source rests this many times as long as the batch took: churn costs a fifth of a core at most."""
PAUSE_MAX_S = 0.5


def sources_of(settings: DiscoverySettings, environment: Environment, log: EventLog) -> list[Feed]:
    """The sources that the configuration names, in its order. Nothing is asked of them yet."""
    sources: list[Feed] = []
    if (file := settings.file) is not None:
        defaults = Defaults(file.models, file.engine)
        sources.append(FileDiscovery(file.path, defaults, interval_s=file.interval_s, tell=log.event))
    if settings.consul is not None:
        sources.append(_consul(settings.consul, log))
    if settings.kubernetes is not None:
        sources.append(_kubernetes(settings.kubernetes, environment, log))
    if settings.dns is not None:
        sources.append(_dns(settings.dns, log))
    return sources


def _consul(consul: ConsulSettings, log: EventLog) -> ConsulDiscovery:
    return ConsulDiscovery(
        consul.service,
        consul.servers,
        datacenter=consul.datacenter,
        namespace=consul.namespace,
        partition=consul.partition,
        tag=consul.tag,
        token_file=consul.token_file,
        tls=Tls(consul.ca_file, consul.cert_file, consul.key_file, consul.tls_server_name),
        wait_s=consul.wait_s,
        stale=consul.stale,
        defaults=Defaults(consul.models, consul.engine),
        tell=log.event,
    )


def _kubernetes(kubernetes: KubernetesSettings, environment: Environment, log: EventLog) -> KubernetesDiscovery:
    named = kubernetes.kubeconfig or environment.kubeconfig

    def access() -> ApiAccess:
        if named:
            return read_kubeconfig(Path(named).expanduser(), kubernetes.context)
        return in_cluster(environment.kubernetes_host or "", environment.kubernetes_port or "")

    return KubernetesDiscovery(
        access,
        service=kubernetes.service,
        selector=kubernetes.selector,
        namespace=kubernetes.namespace,
        port=kubernetes.port,
        defaults=Defaults(kubernetes.models, kubernetes.engine),
        tell=log.event,
    )


def _dns(dns: DnsSettings, log: EventLog) -> DnsDiscovery:
    return DnsDiscovery(
        dns.name,
        nameservers=[split_address(each) for each in dns.nameservers],
        ttl_min_s=dns.ttl_min_s,
        ttl_max_s=dns.ttl_max_s,
        defaults=Defaults(dns.models, dns.engine),
        tell=log.event,
    )


class Registries:
    """Follows sources from :meth:`start` to :meth:`stop`.

    Args:
        members: where replicas come and go.
        on_change: called after a batch has taken effect.
        shrink_hold_s: how long an answer that takes much away is doubted, as :class:`exaserve.discovery.Belief` says.
    """

    def __init__(
        self,
        sources: Sequence[Feed],
        members: Members,
        scheduler: Scheduler,
        log: EventLog,
        on_change: Callable[[], None],
        shrink_hold_s: float = 0.0,
    ) -> None:
        self.sources = tuple(sources)
        for source in self.sources:
            source.doubt(Belief(shrink_hold_s, self._answers))
        self._members = members
        self._scheduler = scheduler
        self._log = log
        self._on_change = on_change
        self._lists: dict[str, dict[ReplicaId, ReplicaSpec]] = {source.name: {} for source in sources}
        self._own: dict[ReplicaId, ReplicaSpec] = {}
        self._left_out: dict[ReplicaId, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def __contains__(self, replica: ReplicaId) -> bool:
        """Whether the replica is in by a source's word."""
        return replica in self._own

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(source)) for source in self.sources]

    async def stop(self) -> None:
        for source in self.sources:
            await source.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, source: Feed) -> None:
        loop = asyncio.get_running_loop()
        async for batch in source.watch():
            began = loop.time()
            self.take(source.name, batch)
            # Whole sets are compared. While thousands come one by one, what came meanwhile is taken together.
            await asyncio.sleep(min(PAUSE_SHARE * (loop.time() - began), PAUSE_MAX_S))

    def take(self, source: str, batch: Sequence[Change]) -> None:
        """Puts a batch into effect."""
        listed = self._lists[source]
        reasons: dict[ReplicaId, str] = {}
        for change in batch:
            if isinstance(change, Removed):
                listed.pop(change.id, None)
                reasons[change.id] = change.reason
            else:
                listed[change.spec.id] = change.spec
                reasons[change.spec.id] = change.reason
        self.reconcile(source, reasons)

    def believe(self, source: str = "") -> int:
        """An operator takes the newest answer of a source (of all, without a name) for right.

        Returns how many replicas leave by it; they do so at once.
        """
        return sum(each.believe() for each in self.sources if source in ("", each.name))

    def _answers(self, replica: ReplicaId) -> bool:
        """Whether it answers its probes."""
        state = self._scheduler.states().get(replica)
        return state is not None and state.standing.available

    def give_up(self, replica: ReplicaId, to: str) -> None:
        """Someone with a better claim names this id from now on."""
        if self._own.pop(replica, None) is not None:
            self._log.info("replica_claimed", replica=replica, by=to)
            self._members.left(replica)

    def reconcile(self, source: str = "", reasons: dict[ReplicaId, str] | None = None) -> None:
        """Brings the gateway's replicas into line with what the sources list."""
        why = reasons or {}
        wanted: dict[ReplicaId, tuple[ReplicaSpec, str]] = {}
        for name, listed in self._lists.items():
            for replica, spec in listed.items():
                wanted.setdefault(replica, (spec, name))
        before = len(self._own)
        gone = [replica for replica in self._own if replica not in wanted]
        for replica in gone:
            del self._own[replica]
            self._log.info("replica_gone", replica=replica, source=source, why=why.get(replica, "no longer listed"))
            self._members.left(replica)
        added = changed = 0
        states = self._scheduler.states()
        urls = {state.url: replica for replica, state in states.items()}
        for replica, (spec, name) in wanted.items():
            have = self._own.get(replica)
            if have is None:
                if self._may_join(spec, name, urls):
                    self._own[replica] = spec
                    urls[spec.url] = replica
                    added += 1
                    self._log.info("replica_found", replica=replica, url=spec.url, source=name, why=why.get(replica))
                    self._members.joined(spec)
            elif have != spec:
                self._own[replica] = spec
                changed += 1
                self._log.info("replica_changed", replica=replica, url=spec.url, source=name, why=why.get(replica))
                self._members.changed(have, spec)
        if gone or added or changed or not before:
            self._log.info(
                "discovery", source=source, added=added, changed=changed, removed=len(gone), replicas=len(self._own)
            )
        self._on_change()

    def _may_join(self, spec: ReplicaSpec, source: str, urls: dict[str, ReplicaId]) -> bool:
        why = ""
        if spec.id in self._scheduler.states():
            why = "the id is taken"
        elif spec.url in urls:
            why = f"the address is that of {urls[spec.url]}"
        if why and self._left_out.get(spec.id) != why:
            if len(self._left_out) > 10_000:
                self._left_out.clear()
            self._left_out[spec.id] = why
            self._log.warning("replica_left_out", replica=spec.id, url=spec.url, source=source, why=why)
        elif not why:
            self._left_out.pop(spec.id, None)
        return not why

    def as_rows(self) -> list[dict[str, object]]:
        """For the admin API."""
        return [
            {
                "source": status.name,
                "reached": status.reached,
                "error": status.error,
                "listed": status.replicas,
                "held": status.held,
                "updates": status.updates,
                "failures": status.failures,
            }
            for status in (source.status() for source in self.sources)
        ]

    def families(self) -> Iterable[Family]:
        """For the gateway's own metrics."""
        reached = Family("exaserve_discovery_up", "gauge", "1 while the source answers.")
        listed = Family("exaserve_discovery_replicas", "gauge", "Replicas that the source lists.")
        held = Family(
            "exaserve_discovery_held", "gauge", "Replicas kept though the source does not list them any more."
        )
        updates = Family("exaserve_discovery_updates_total", "counter", "Sets that the source has given.")
        failures = Family("exaserve_discovery_failures_total", "counter", "Times that the source could not be asked.")
        for source in self.sources:
            status, head = source.status(), labels(source=source.name)
            reached.add(int(status.reached), head)
            listed.add(status.replicas, head)
            held.add(status.held, head)
            updates.add(status.updates, head)
            failures.add(status.failures, head)
        return [reached, listed, held, updates, failures]


async def watch_file(path: Path, changed: Callable[[], None], interval_s: float = FILE_LOOK_S) -> None:
    """Calls ``changed`` whenever the file's time, size or identity differs, until cancelled.

    A file that is away for a moment is not news.
    """
    seen = None
    while True:
        try:
            stamp = await asyncio.to_thread(stamp_of, path)
        except OSError:
            stamp = None
        if stamp is not None:
            if seen is not None and stamp != seen:
                changed()
            seen = stamp
        await asyncio.sleep(interval_s)
