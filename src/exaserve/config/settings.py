"""The gateway's limits and time-outs: every bound on the request path, with its unit and the reason for its default."""

from __future__ import annotations

import msgspec

__all__ = ["ClientLimits", "GatewaySettings", "RetrySettings", "TelemetrySettings", "Timeouts"]


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client connection may send.

    Attributes:
        header_bytes_max: request line and headers together, bytes. 64 KiB holds any real client's cookies and tokens.
        header_count_max: header lines in one request.
        body_bytes_max: request body, bytes. 64 MiB holds several images in base64 and an hour of compressed audio.
        pipeline_max: requests read ahead of the one being answered on one connection; reading pauses above it.
        connections_max: open client connections; above it new ones are closed at once.
        buffer_high_bytes: bytes waiting for a slow reader before the upstream is paused; resumed at a quarter of it.
    """

    header_bytes_max: int = 65_536
    header_count_max: int = 128
    body_bytes_max: int = 64 * 1024 * 1024
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


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retries happen on another replica and only before the client has seen a byte.

    Attributes:
        attempts_max: tries in all for one request, the first included.
        budget_ratio: retries allowed per request over the last ``budget_window_s``: a broken cluster is not hit harder.
        budget_min_per_s: retries per second that are always allowed, so that a quiet cluster can retry at all.
        budget_window_s: seconds over which the ratio holds.
    """

    attempts_max: int = 3
    budget_ratio: float = 0.2
    budget_min_per_s: float = 10.0
    budget_window_s: float = 10.0


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data plane's settings. Addresses are where the gateway listens; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    """The admin API can take replicas out of rotation: loopback unless the network in front is trusted."""
    admin_port: int = 8900
    limits: ClientLimits = ClientLimits()
    timeouts: Timeouts = Timeouts()
    retry: RetrySettings = RetrySettings()
    cors_origins: tuple[str, ...] = ("*",)
    drain_s: float = 30.0
    """How long a graceful stop waits for requests in flight, seconds."""
    log_requests: bool = False


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Polling of the engines' ``/metrics``.

    Attributes:
        interval_s: between two reports of one replica. Shorter sees load sooner and costs the engine more: a scrape of
            vLLM is 50 kB.
        timeout_s: a scrape is given up after this; it delays no other replica's.
    """

    interval_s: float = 0.2
    timeout_s: float = 1.0
