"""The gateway's limits and time-outs: every bound on the request path, with its unit and the reason for its default."""

from __future__ import annotations

from typing import Literal

import msgspec

from exaserve.config.sources import ConsulRegisterSettings
from exaserve.serving.config import RetrySettings

__all__ = [
    "AgentSettings",
    "ClientLimits",
    "GatewaySettings",
    "NetworkSettings",
    "RetrySettings",
    "TelemetrySettings",
    "Timeouts",
]


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client connection may send.

    Attributes:
        header_bytes_max: request line and headers together, bytes. 64 KiB holds any real client's cookies and tokens.
        header_count_max: header lines in one request.
        body_bytes_max: request body, bytes. 64 MiB holds several images in base64 and an hour of compressed audio.
        receiving_bytes_max: request bodies that are being received, all connections together, bytes; above it whoever
            sends more is answered 503. Bounds memory where many clients upload slowly.
        pipeline_max: requests read ahead of the one being answered on one connection; reading pauses above it.
        connections_max: open client connections; above it new ones are closed at once.
        buffer_high_bytes: bytes waiting for a slow reader before the upstream is paused; resumed at a quarter of it.
    """

    header_bytes_max: int = 65_536
    header_count_max: int = 128
    body_bytes_max: int = 64 * 1024 * 1024
    receiving_bytes_max: int = 1024 * 1024 * 1024
    pipeline_max: int = 16
    connections_max: int = 16_384
    buffer_high_bytes: int = 262_144


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All in seconds.

    Attributes:
        client_header_s: from a request's first byte (or connect) to the end of its headers.
        client_body_s: longest silence while a body is being received.
        client_keepalive_s: idle client connection; longer than common load balancers' 60 s, so that they close first.
        connect_s: TCP connect to a replica.
        first_byte_s: request sent to first response byte; long, since engines queue.
        between_bytes_s: longest silence inside a response.
        total_s: whole request, queueing and retries included.
        upstream_keepalive_s: idle upstream connection; below the 5 s after which uvicorn (vLLM, SGLang) closes it.
        client_write_s: a client that reads nothing for this long while bytes wait for it is gone.
    """

    client_header_s: float = 10.0
    client_body_s: float = 30.0
    client_keepalive_s: float = 75.0
    connect_s: float = 2.0
    first_byte_s: float = 300.0
    between_bytes_s: float = 60.0
    total_s: float = 3600.0
    upstream_keepalive_s: float = 4.0
    client_write_s: float = 60.0


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data plane's settings. Addresses are where the gateway listens; port 0 takes a free one."""

    host: str = "127.0.0.1"
    """Where clients connect; 0.0.0.0 for all addresses."""
    port: int = 8000
    """Port for clients; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """The admin API can take replicas out of rotation: loopback unless the network in front is trusted."""
    admin_port: int = 8900
    """Port of the admin API; 0 takes a free one."""
    admin_token_file: str = ""
    """File with the admin API's bearer token; needed unless ``admin_host`` is loopback."""
    limits: ClientLimits = ClientLimits()
    timeouts: Timeouts = Timeouts()
    retry: RetrySettings = RetrySettings()
    cors_origins: tuple[str, ...] = ("*",)
    """Web pages that may read answers; ``*`` is all of them, an empty list none."""
    access_log: bool = False
    """Whether each request that went to a replica is told in the log, one JSON object a line, when it ends."""
    drain_s: float = 30.0
    """How long a graceful stop waits for requests in flight, seconds; ``linger`` is a part of it."""
    linger_s: float = 0.25
    """How long a graceful stop still takes connections while ``/ready`` says 503, seconds, ``drain`` at most: longer
    than a load balancer needs to see that, or clients are refused."""
    state_dir: str = ""
    """Where keys, operators' decisions and sums of use are kept; "" is ``exaserve/gateway-PORT`` in the user's
    state directory; ``memory`` keeps nothing, as does a gateway that takes a free port. Several may share a folder."""
    name: str = ""
    """What other gateways know this one by; host name and peer port unless given. Each needs one of its own."""
    peers: tuple[str, ...] = ()
    """``host:port`` of the peer ports of gateways that share these replicas; this one's own may be among them."""
    peer_listen: str = ""
    """``host:port`` where peers connect; not needed where every peer listens."""
    peer_token_file: str = ""
    """File with the secret that peers share; needed unless all addresses are loopback."""
    peer_lag_max_s: float = 0.05
    """A peer whose messages are older than this when they come is not decided by: two gateways would choose the same
    idle replica meanwhile. It counts again below half of it. Seconds."""
    replica_series_max: int = 512
    """Replicas up to which ``/metrics`` has a series for each; above, sums for each node. A series costs about 2 µs of
    the loop that relays tokens, and a replica has some 23."""
    engine_api_key_file: str = ""
    """File with the key that engines were started with (vLLM's ``--api-key``), for probes and telemetry, of the gateway
    and of the agents. Clients' own ``Authorization`` passes through untouched."""


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Polling of the engines' ``/metrics``.

    Attributes:
        interval_s: between two reports of one replica. Shorter sees load sooner and costs the engine more: a scrape of
            vLLM is 50 kB.
        timeout_s: a scrape is given up after this; it delays no other replica's.
    """

    interval_s: float = 0.2
    timeout_s: float = 1.0


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Node agents: how they reach the gateways, and how they treat their engines.

    Attributes:
        enabled: whether the pools' replicas are started by agents, one on each node. Then the gateway waits for what
            the agents say of them, and polls only when an agent is lost.
        host / port: where the gateway listens for agents; port 0 takes a free one.
        gateways: ``host:port`` of every gateway's agent port; empty is ``host:port`` above.
        token_file: file with the secret that agents and gateways share, 16 characters or more. Needed unless all of
            them are on loopback or mutual TLS is on.
        tls_cert / tls_key / tls_ca: PEM files for mutual TLS between agents and gateways; all three or none.
        interval_s: between two samples of a replica, and between two batches of a node.
        lost_s: a gateway that hears nothing from an agent for this long takes its replicas out. At least three
            intervals, since a busy machine delays a batch.
        state_dir: where engines' logs and caches are; "" is a folder of the user's cache directory.
        probe_interval_s / probe_timeout_s: between two 1-token completions of a ready engine, and how long one may
            take.
        start_timeout_s: from an engine's start to its first completion. Large models load for a long time.
        warm_requests: completions after the first, before a replica is ready: kernels are compiled, caches exist.
        hang_s: no new token for this long while requests run, or no probe answered: the engine hangs and is restarted.
        restarts_max / restart_window_s: restarts after a failure within that time; then the replica is given up.
        backoff_s / backoff_max_s: pause before the first restart; it doubles with each one, up to the second.
        drain_s: how long a stop waits for requests in flight.
        stop_s: from SIGTERM to SIGKILL.
        log_bytes_max: size at which an engine's log is moved aside; the one before it is deleted.
        register: a Consul service as whose instances agents register their replicas.
    """

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 8901
    gateways: tuple[str, ...] = ()
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    interval_s: float = 0.2
    lost_s: float = 1.5
    state_dir: str = ""
    probe_interval_s: float = 5.0
    probe_timeout_s: float = 5.0
    start_timeout_s: float = 1800.0
    warm_requests: int = 3
    hang_s: float = 30.0
    restarts_max: int = 5
    restart_window_s: float = 600.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    drain_s: float = 30.0
    stop_s: float = 10.0
    log_bytes_max: int = 64 * 1024 * 1024
    register: ConsulRegisterSettings | None = None


Backend = Literal["auto", "nccl", "rccl", "ib", "infiniband", "rdma", "roce", "socket", "tcp", "ethernet"]
_TRANSPORT = {
    **dict.fromkeys(("ib", "infiniband", "rdma", "roce"), "IB"),
    **dict.fromkeys(("socket", "tcp", "ethernet"), "Socket"),
}


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What engines' collective communication runs over; it reaches every engine's environment, where a pool's own
    ``environment`` wins.

    Attributes:
        backend: ``ib``, ``infiniband``, ``rdma`` and ``roce`` have NCCL use verbs and nothing else (``NCCL_NET=IB``),
            ``socket``, ``tcp`` and ``ethernet`` sockets; ``nccl``, ``rccl`` and ``auto`` leave it the choice.
        ib_hca: adapters, as ``NCCL_IB_HCA`` takes them (``mlx5_0,mlx5_1``, ``^mlx5_2``), or a list.
        nccl_socket_ifname: interfaces, as ``NCCL_SOCKET_IFNAME`` takes them (``eth``, ``=eth0``, ``^docker``), or a
            list.
    """

    backend: Backend = "auto"
    ib_hca: str | tuple[str, ...] = ""
    nccl_socket_ifname: str | tuple[str, ...] = ""

    def environment(self) -> dict[str, str]:
        """Variables of NCCL and RCCL, which share their names."""
        variables = {
            "NCCL_NET": _TRANSPORT.get(self.backend, ""),
            "NCCL_IB_HCA": _joined(self.ib_hca),
            "NCCL_SOCKET_IFNAME": _joined(self.nccl_socket_ifname),
        }
        return {name: value for name, value in variables.items() if value}


def _joined(names: str | tuple[str, ...]) -> str:
    return names if isinstance(names, str) else ",".join(names)
