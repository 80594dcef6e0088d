"""Discovery and peers in the cluster file and in flags: what is understood, and how mistakes are named."""

from __future__ import annotations

import pytest

from exaserve.config import parse_cluster, split_address, to_yaml
from exaserve.config.discover import merge_discovery, source_from_url
from exaserve.config.sources import DiscoverySettings
from exaserve.domain.errors import ConfigError


def errors(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    return caught.value.message


GOOD = """\
discovery:
  file: {path: /etc/exaserve/replicas.yaml, interval: 500ms}
  consul:
    service: vllm
    servers: [https://c1:8501, https://c2:8501, https://c3:8501]
    datacenter: dc1
    token_file: /etc/exaserve/consul.token
    ca_file: /etc/exaserve/ca.pem
    cert_file: /etc/exaserve/cert.pem
    key_file: /etc/exaserve/key.pem
    wait: 2m
    models: [m]
  kubernetes: {service: vllm, namespace: inference, port: http}
  dns: {name: _http._tcp.vllm.example.org, nameservers: ["10.0.0.2:53", "[::1]:53"], ttl_max: 30s}
gateway:
  name: g1
  peers: [g2:8902, "10.0.0.3:8902"]
  peer_listen: 0.0.0.0:8902
  peer_token_file: /etc/exaserve/peer.token
"""


def test_every_source_and_peers_in_one_file() -> None:
    cluster = parse_cluster(GOOD)
    found = cluster.discovery
    assert found
    assert found.file is not None
    assert found.file.interval_s == 0.5
    assert found.consul is not None
    assert (found.consul.wait_s, len(found.consul.servers), found.consul.models) == (120.0, 3, ("m",))
    assert found.kubernetes is not None
    assert found.kubernetes.port == "http"
    assert found.dns is not None
    assert (found.dns.ttl_min_s, found.dns.ttl_max_s) == (1.0, 30.0)
    assert (cluster.gateway.name, cluster.gateway.peers) == ("g1", ("g2:8902", "10.0.0.3:8902"))
    again = parse_cluster(to_yaml(cluster))
    assert (again.discovery, again.gateway) == (cluster.discovery, cluster.gateway)


def test_none_is_none() -> None:
    assert not parse_cluster("").discovery
    assert not parse_cluster("discovery:\n").discovery


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("discovery: {consul: {}}", "discovery.consul.service: is missing"),
        ("discovery: {consul: {service: a/b}}", "discovery.consul.service: must be the name"),
        ("discovery: {consul: {service: a, servers: []}}", "discovery.consul.servers: is empty"),
        (
            "discovery: {consul: {service: a, servers: ['c1:8500']}}",
            "discovery.consul.servers[0]: 'c1:8500' is not a URL",
        ),
        ("discovery: {consul: {service: a, key_file: k}}", "discovery.consul.key_file: needs cert_file"),
        ("discovery: {consul: {service: a, wait: 20m}}", "discovery.consul.wait: must be from 1s to 10m"),
        ("discovery: {consul: {service: a, sevice: b}}", "did you mean service?"),
        ("discovery: {kubernetes: {}}", "discovery.kubernetes: needs service or selector"),
        (
            "discovery: {kubernetes: {service: a, selector: b}}",
            "discovery.kubernetes.selector: stands beside service; keep one",
        ),
        ("discovery: {consul: {service: a, servers: ['http://t0ken@c1:8500']}}", "token_file"),
        ("discovery: {dns: {name: ''}}", "discovery.dns.name: must be a name"),
        ("discovery: {dns: {name: a, nameservers: [x]}}", "discovery.dns.nameservers[0]: 'x' is not an address"),
        ("discovery: {dns: {name: a, ttl_min: 2m}}", "discovery.dns.ttl_min: is above ttl_max"),
        ("discovery: {etcd: {}}", "discovery.etcd: unknown key"),
        ("gateway: {peers: [nowhere]}", "gateway.peers[0]: 'nowhere' is not an address"),
        ("gateway: {peers: ['h:0']}", "the port must be a number from 1 to 65535"),
        ("gateway: {peer_listen: 'h:x'}", "gateway.peer_listen: 'h:x': the port"),
        ("gateway: {peers: ['::1:80']}", "put an IPv6 address in brackets"),
    ],
)
def test_mistakes_are_named_with_their_field(text: str, words: str) -> None:
    assert words in errors(text)


@pytest.mark.parametrize(
    ("url", "kind", "values"),
    [
        ("consul://c1:8500/vllm", "consul", {"service": "vllm", "servers": ("http://c1:8500",)}),
        ("consul:///vllm", "consul", {"servers": ("http://127.0.0.1:8500",)}),
        (
            "consuls://c1:8501,c2:8501/vllm?datacenter=dc1&stale=true&wait_s=30&token_file=/t",
            "consul",
            {
                "servers": ("https://c1:8501", "https://c2:8501"),
                "datacenter": "dc1",
                "stale": True,
                "wait_s": 30.0,
                "token_file": "/t",
            },
        ),
        ("kubernetes://inference/vllm", "kubernetes", {"namespace": "inference", "service": "vllm"}),
        (
            "k8s:///?selector=app%3Dvllm,tier%3Dgpu&port=http",
            "kubernetes",
            {"selector": "app=vllm,tier=gpu", "service": ""},
        ),
        ("dns:///_http._tcp.vllm.test", "dns", {"name": "_http._tcp.vllm.test", "nameservers": ()}),
        (
            "dns://10.0.0.2:53/_http._tcp.vllm.test?models=a,b",
            "dns",
            {"nameservers": ("10.0.0.2:53",), "models": ("a", "b")},
        ),
        ("file:///etc/replicas.yaml", "file", {"path": "/etc/replicas.yaml"}),
        ("file:///x?interval=5s&engine=vllm", "file", {"interval_s": 5.0, "engine": "vllm"}),
        ("file:///x?interval=2", "file", {"interval_s": 2.0}),
        ("consul:///vllm?wait=1m30s&tag=2", "consul", {"wait_s": 90.0, "tag": "2"}),
        (
            "dns:///a?nameservers=10.0.0.2:53,[::1]:53&ttl_max=10s",
            "dns",
            {"nameservers": ("10.0.0.2:53", "[::1]:53"), "ttl_max_s": 10.0},
        ),
        ("dns://10.0.0.2:53,10.0.0.3:53/a", "dns", {"nameservers": ("10.0.0.2:53", "10.0.0.3:53")}),
        ("dns:///a?nameservers=h:53&nameservers=i:53", "dns", {"nameservers": ("h:53", "i:53")}),
        ("file://replicas.yaml?interval_s=0.5", "file", {"path": "replicas.yaml", "interval_s": 0.5}),
    ],
)
def test_sources_as_urls(url: str, kind: str, values: dict[str, object]) -> None:
    settings = getattr(source_from_url(url), kind)
    assert {name: getattr(settings, name) for name in values} == values


@pytest.mark.parametrize(
    "url",
    [
        "",
        "vllm",
        "etcd://h/x",
        "consul://h:8500/",
        "consul://h:8500/a?unknown=1",
        "consul://h:8500/a?wait_s=soon",
        "kubernetes://ns/",
        "dns:///",
        "dns://h/x",
        "consul://[::1/a",
        "consul://h/a?x",
    ],
)
def test_urls_that_are_none_name_the_flag(url: str) -> None:
    with pytest.raises(ConfigError, match="--discover") as caught:
        source_from_url(url)
    assert caught.value.param == "--discover"


def test_flags_add_to_the_file_and_one_kind_is_named_once() -> None:
    base = source_from_url("consul:///vllm")
    both = merge_discovery(base, ["dns:///_a._tcp.b", "file:///x"])
    assert both.consul == base.consul
    assert both.dns is not None
    assert both.file is not None
    with pytest.raises(ConfigError, match="there is a consul source already"):
        merge_discovery(base, ["consul:///other"])
    assert merge_discovery(DiscoverySettings(), []) == DiscoverySettings()


def test_addresses() -> None:
    assert split_address("h:80") == ("h", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("h:0", port_min=0) == ("h", 0)
    for wrong in ("h", ":80", "h:", "h:70000", "h:-1", "a b:80", "h:8\N{ARABIC-INDIC DIGIT ZERO}"):
        with pytest.raises(ValueError, match=r"address|port|host"):
            split_address(wrong)
