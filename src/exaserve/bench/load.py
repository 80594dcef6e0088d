"""What the load client is told, and what it tells: configuration, progress and result. PURE."""

from __future__ import annotations

from dataclasses import dataclass

from exaserve.bench.record import Record
from exaserve.workload import BodyRenderer

__all__ = ["UNTIL_ANSWERED_S", "LoadConfig", "LoadResult", "Progress"]

UNTIL_ANSWERED_S = 86_400.0
"""Length of a plan whose closed loop ends by a number of requests: it has this long at most."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """How to send.

    Attributes:
        urls: ``http://host:port`` of the endpoint; several are taken in turn (to measure replicas without a gateway).
        renderer: makes the bodies.
        inflight_max: requests in flight at once; each has a connection of its own, so keep it below the file limit.
        connect_timeout_s: a connection not open after this is a failure.
        request_timeout_s: sent to last byte; above it the connection is closed and the request is a ``timeout``.
        drain_s: how long answers may still come after the last request was due.
        progress_s: seconds between calls of the progress callback.
        headers: sent with every request.
        concurrency: lanes of a closed loop; 0 is the open loop. A lane's next request is due when its last one ended,
            until the plan's duration is over.
        requests_max: a closed loop ends after so many, None after its time only.
        tls_verify / ca_file: for ``https`` endpoints: whether certificates are checked, and against which authorities
            ("" takes the system's).
        start_at: instant of ``time.monotonic()`` at which the run begins (several processes begin together); None is
            now.
    """

    urls: tuple[str, ...]
    renderer: BodyRenderer
    inflight_max: int = 8_192
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 300.0
    drain_s: float = 60.0
    progress_s: float = 0.25
    headers: tuple[tuple[str, str], ...] = ()
    concurrency: int = 0
    requests_max: int | None = None
    tls_verify: bool = True
    ca_file: str = ""
    start_at: float | None = None

    def __post_init__(self) -> None:
        if not self.urls:
            raise ValueError("urls must name at least one endpoint")
        if self.inflight_max < 1:
            raise ValueError(f"inflight_max {self.inflight_max} must be at least 1")
        if self.concurrency < 0:
            raise ValueError(f"concurrency {self.concurrency} must be 0 or more")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run stands. Counts of requests, except ``events`` (server-sent events so far) and the times.

    Attributes:
        cut: those of ``failed`` whose answer had begun.
        recent: (scenario, scheduled to first token in seconds) of answers that began since the last report.
        lag_s: longest that the event loop was late since the last report.
    """

    elapsed_s: float
    duration_s: float
    planned: int
    sent: int
    inflight: int
    waiting: int
    ok: int
    failed: int
    events: int
    cut: int = 0
    recent: tuple[tuple[str, float], ...] = ()
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Records in the plan's order, and how well the client itself kept up.

    Attributes:
        lag_max_s: longest that the event loop was late; a run where this nears the latencies is worth nothing.
        lag_mean_s: mean of the same over the run.
        late_max_s: longest that a request was sent after it was due, waiting for a free slot included.
        lag_p99_s: 99th percentile of the event loop's lateness, sampled every 20 ms.
        started_at: ``time.monotonic()`` of instant 0, to compare with what else was logged on this machine.
        waited: requests that waited for one of ``inflight_max`` connections.
        cpu_share: processor time of this process over the time that passed; near 1 the client was at its end.
    """

    records: list[Record]
    elapsed_s: float
    lag_max_s: float
    lag_mean_s: float
    late_max_s: float
    lag_p99_s: float = 0.0
    cpu_share: float = 0.0
    waited: int = 0
    started_at: float = 0.0
