"""Where the gateway finds replicas beside those that the cluster file names (``discovery:`` in it, ``--discover``)."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from exaserve.config.urls import split_address

__all__ = [
    "SOURCE_KINDS",
    "ConsulRegisterSettings",
    "ConsulSettings",
    "DiscoverySettings",
    "DnsSettings",
    "FileSettings",
    "KubernetesSettings",
    "discovery_problems",
    "register_problems",
]


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for every replica of a source that does not say otherwise itself."""

    models: tuple[str, ...] = ()
    """Names it answers for; asked of it unless given."""
    engine: str = "auto"
    """What they are, as an entry of ``replicas`` says it."""


class ConsulSettings(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances of one Consul service.

    Attributes:
        service: its name.
        servers: base URLs of agents or servers; the next is asked when one fails.
        datacenter / namespace / partition / tag: narrow the query.
        token_file: ACL token with ``service:read`` and ``node:read``.
        ca_file / cert_file / key_file: PEM files for https servers.
        tls_server_name: name in the servers' certificate where it is not the one dialled.
        wait_s: how long a query may block. A server that accepts and never answers is noticed 11 s after that.
        stale: let any server answer, also while the cluster has no leader.
    """

    service: str
    servers: tuple[str, ...] = ("http://127.0.0.1:8500",)
    datacenter: str = ""
    namespace: str = ""
    partition: str = ""
    tag: str = ""
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    tls_server_name: str = ""
    wait_s: float = 15.0
    stale: bool = False


class ConsulRegisterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a node's agent registers its replicas, for gateways and others that look into Consul.

    Attributes:
        service: name of the service whose instances they become.
        server: base URL of the Consul agent on the node.
        token_file: ACL token with ``service:write``.
        ca_file / cert_file / key_file: PEM files for an https server.
        tags: of every instance.
        ttl_s: a replica whose agent is silent for so long is critical, and so out of the service.
    """

    service: str
    server: str = "http://127.0.0.1:8500"
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    tags: tuple[str, ...] = ()
    ttl_s: float = 10.0


class KubernetesSettings(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ready endpoints of a service, or pods by label.

    Attributes:
        service / selector: exactly one of them; a selector is ``app=vllm,tier=gpu``.
        namespace: that of the gateway's pod or of the kubeconfig's context unless given.
        port: name or number; the only one unless given.
        kubeconfig: file, for a gateway outside the cluster; ``KUBECONFIG`` or the pod's service account unless given.
        context: of the kubeconfig; its current one unless given.
    """

    service: str = ""
    selector: str = ""
    namespace: str = ""
    port: str = ""
    kubeconfig: str = ""
    context: str = ""


class DnsSettings(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SRV records of one name.

    Attributes:
        name: such as ``_http._tcp.vllm.example.org``.
        nameservers: ``host:port``; the system's unless given.
        ttl_min_s / ttl_max_s: bounds of what records may ask for.
    """

    name: str
    nameservers: tuple[str, ...] = ()
    ttl_min_s: float = 1.0
    ttl_max_s: float = 60.0


class FileSettings(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of replicas that others write (YAML or JSON), read again whenever it changes.

    Attributes:
        path: of the file, in a form that the page on discovery shows.
        interval_s: between two looks at it.
    """

    path: str
    interval_s: float = 1.0


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sources of replicas; any number of them at once. Of two that know one id the earlier one here counts.

    Attributes:
        shrink_hold_s: an answer that empties a source's set, or leaves less than half of it, is not believed at once:
            a replica that is missing leaves when it has been missing for this long and fails its own probes. 0 believes
            every answer.
    """

    shrink_hold_s: float = 30.0

    file: FileSettings | None = None
    consul: ConsulSettings | None = None
    kubernetes: KubernetesSettings | None = None
    dns: DnsSettings | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, kind) is not None for kind in SOURCE_KINDS)


SOURCE_KINDS = ("file", "consul", "kubernetes", "dns")
"""Fields of :class:`DiscoverySettings` that are a source each."""


def discovery_problems(settings: DiscoverySettings) -> list[tuple[str, str]]:
    """``(field below discovery, what is wrong)`` of what no single value shows."""
    problems: list[tuple[str, str]] = []
    if settings.consul is not None:
        problems += _consul_problems(settings.consul)
    if settings.kubernetes is not None:
        problems += _kubernetes_problems(settings.kubernetes)
    if settings.dns is not None:
        problems += _dns_problems(settings.dns)
    return problems


def _consul_problems(consul: ConsulSettings) -> Iterator[tuple[str, str]]:
    if not consul.service or "/" in consul.service:
        yield "consul.service", "must be the name of a service"
    if not consul.servers:
        yield "consul.servers", "is empty; name at least one, such as http://127.0.0.1:8500"
    for i, server in enumerate(consul.servers):
        if message := _url_problem(server):
            yield f"consul.servers[{i}]", message
    if consul.key_file and not consul.cert_file:
        yield "consul.key_file", "needs cert_file beside it"
    if not 1 <= consul.wait_s <= 600:
        yield "consul.wait", "must be from 1s to 10m, as Consul takes it"


def register_problems(register: ConsulRegisterSettings) -> Iterator[tuple[str, str]]:
    """``(field, what is wrong)``."""
    if not register.service or "/" in register.service:
        yield "service", "must be the name of a service"
    if message := _url_problem(register.server):
        yield "server", message
    if register.key_file and not register.cert_file:
        yield "key_file", "needs cert_file beside it"
    if not 1 <= register.ttl_s <= 15:
        yield "ttl", "must be from 1s to 15s: a node that is gone must not be listed for longer"


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    else:
        if "@" in parts.netloc:
            return "holds a user name or token; put it into a file: token_file"
    return "" if good else f"{url!a} is not a URL; write http://host:8500"


def _kubernetes_problems(kubernetes: KubernetesSettings) -> Iterator[tuple[str, str]]:
    if kubernetes.service and kubernetes.selector:
        yield "kubernetes.selector", "stands beside service; keep one"
    elif not (kubernetes.service or kubernetes.selector):
        yield "kubernetes", "needs service or selector"


def _dns_problems(dns: DnsSettings) -> Iterator[tuple[str, str]]:
    if not dns.name:
        yield "dns.name", "must be a name, such as _http._tcp.vllm.example.org"
    for i, server in enumerate(dns.nameservers):
        try:
            split_address(server)
        except ValueError as error:
            yield f"dns.nameservers[{i}]", str(error)
    if dns.ttl_min_s > dns.ttl_max_s:
        yield "dns.ttl_min", "is above ttl_max"
