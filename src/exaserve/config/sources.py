"""Where the gateway finds replicas beside those that the cluster file names (``discovery:`` in it, ``--discover``)."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from exaserve.config.urls import split_address
from exaserve.domain.errors import ConfigError

__all__ = [
    "ConsulSettings",
    "DiscoverySettings",
    "DnsSettings",
    "FileSettings",
    "KubernetesSettings",
    "discovery_problems",
    "merge_discovery",
    "source_from_url",
]


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for every replica of a source that does not say otherwise itself."""

    models: tuple[str, ...] = ()
    """Names it answers for; asked of it unless given."""
    engine: str = "auto"


class ConsulSettings(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances of one Consul service.

    Attributes:
        service: its name.
        servers: base URLs of agents or servers; the next is asked when one fails.
        datacenter / namespace / partition / tag: narrow the query.
        token_file: ACL token with ``service:read`` and ``node:read``.
        ca_file / cert_file / key_file: PEM files for https servers.
        tls_server_name: name in the servers' certificate where it is not the one dialled.
        wait_s: how long a query may block.
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
    wait_s: float = 60.0
    stale: bool = False


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
    """A list of replicas that others write (YAML or JSON), read again whenever it changes."""

    path: str
    interval_s: float = 1.0


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sources of replicas; any number of them at once. Of two that know one id the earlier one here counts."""

    file: FileSettings | None = None
    consul: ConsulSettings | None = None
    kubernetes: KubernetesSettings | None = None
    dns: DnsSettings | None = None

    def __bool__(self) -> bool:
        return any((self.file, self.consul, self.kubernetes, self.dns))


def discovery_problems(settings: DiscoverySettings) -> list[tuple[str, str]]:
    """``(field below discovery, what is wrong)`` of what no single value shows."""
    problems = []
    consul, kubernetes, dns = settings.consul, settings.kubernetes, settings.dns
    if consul is not None:
        if not consul.service or "/" in consul.service:
            problems.append(("consul.service", "must be the name of a service"))
        if not consul.servers:
            problems.append(("consul.servers", "is empty; name at least one, such as http://127.0.0.1:8500"))
        for i, server in enumerate(consul.servers):
            if not server.startswith(("http://", "https://")) or not urlsplit(server).hostname:
                problems.append((f"consul.servers[{i}]", f"{server!a} is not a URL; write http://host:8500"))
        if consul.key_file and not consul.cert_file:
            problems.append(("consul.key_file", "needs cert_file beside it"))
        if not 1 <= consul.wait_s <= 600:
            problems.append(("consul.wait", "must be from 1s to 10m, as Consul takes it"))
    if kubernetes is not None and bool(kubernetes.service) == bool(kubernetes.selector):
        problems.append(("kubernetes", "needs either service or selector"))
    if dns is not None:
        if not dns.name:
            problems.append(("dns.name", "must be a name, such as _http._tcp.vllm.example.org"))
        for i, server in enumerate(dns.nameservers):
            try:
                split_address(server)
            except ValueError as error:
                problems.append((f"dns.nameservers[{i}]", str(error)))
        if dns.ttl_min_s > dns.ttl_max_s:
            problems.append(("dns.ttl_min", "is above ttl_max"))
    return problems


_EXAMPLES = "consul://host:8500/service, kubernetes://namespace/service, dns:///_http._tcp.name, file:///path"


def source_from_url(url: str) -> DiscoverySettings:
    """One source as ``--discover`` writes it; further settings as in ``?datacenter=dc1&token_file=/path``.

    Raises:
        ConfigError: with what is wrong.
    """
    try:
        parts = urlsplit(url)
        more: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        path = unquote(parts.path).strip("/")
        kind = {"k8s": "kubernetes", "consuls": "consul"}.get(parts.scheme, parts.scheme)
        if kind == "consul":
            scheme = "https" if parts.scheme == "consuls" else "http"
            servers = [f"{scheme}://{each}" for each in (parts.netloc or "127.0.0.1:8500").split(",")]
            more = {"service": path, "servers": servers} | more
        elif kind == "kubernetes":
            more = {"namespace": parts.netloc} | ({"service": path} if path else {}) | more
        elif kind == "dns":
            more = {"name": path} | ({"nameservers": [parts.netloc]} if parts.netloc else {}) | more
        elif kind == "file":
            more = {"path": unquote(parts.netloc + parts.path)} | more
        else:
            raise ValueError(f"{parts.scheme!a} is no kind of source; write one of {_EXAMPLES}")
        if isinstance(more.get("models"), str):
            more["models"] = more["models"].split(",")
        settings = msgspec.convert({kind: more}, DiscoverySettings, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"--discover {url}: {error}", param="--discover") from None
    for field, message in discovery_problems(settings):
        raise ConfigError(f"--discover {url}: {field}: {message}", param="--discover")
    return settings


def merge_discovery(base: DiscoverySettings, urls: list[str]) -> DiscoverySettings:
    """The file's sources and those of ``--discover``. ConfigError where one kind is named twice."""
    for url in urls:
        more = source_from_url(url)
        for kind in DiscoverySettings.__struct_fields__:
            value = getattr(more, kind)
            if value is not None:
                if getattr(base, kind) is not None:
                    raise ConfigError(f"--discover {url}: there is a {kind} source already", param="--discover")
                base = msgspec.structs.replace(base, **{kind: value})
    return base
