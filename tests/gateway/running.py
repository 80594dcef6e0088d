"""A whole gateway over fake engines, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

import httpx
from tests.gateway.fake_engine import FakeEngine

from exaserve.config import Cluster, GatewaySettings, Pool, TelemetrySettings
from exaserve.config.guard import AuthMode, AuthSettings
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.app import Gateway
from exaserve.health import HealthConfig
from exaserve.observe import EventLog
from exaserve.scheduling import AdmissionConfig, ReplicaLedger, SchedulerConfig

QUICK = HealthConfig(probe_interval_s=0.1, probe_timeout_s=10.0, probe_limit_s=10.0, probe_fast_s=0.05, open_s=0.05)
"""Asks often, and has patience with a machine that answers late."""
ONE_PROBE = HealthConfig(probe_interval_s=300.0, probe_fast_s=300.0, open_s=300.0, open_max_s=300.0)
"""What does not serve after its first probe will not within a test."""


def cluster_of(
    *engines: FakeEngine,
    health: HealthConfig = QUICK,
    scheduling: SchedulerConfig = SchedulerConfig(),  # noqa: B008  # frozen
    admission: AdmissionConfig = AdmissionConfig(),  # noqa: B008
    auth: AuthMode = "auto",
    **settings: Any,
) -> Cluster:
    """Replicas by URL alone, quick probes, free ports."""
    return Cluster(
        pools=(Pool(replicas=tuple(engine.url for engine in engines)),),
        health=health,
        scheduling=scheduling,
        admission=admission,
        telemetry=TelemetrySettings(interval_s=0.05, timeout_s=10.0),
        auth=AuthSettings(mode=auth),
        gateway=GatewaySettings(port=0, admin_port=0, drain_s=60.0, **settings),
    )


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """The time-out is for what never happens: far beyond what a slow machine needs for what does."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


class Watched(Gateway):
    """A gateway whose log is in ``lines``."""

    def __init__(self, cluster: Cluster, token: str | None, **options: Any) -> None:
        self.lines: list[str] = []
        log = EventLog(self.lines.append, burst_max=1000)
        super().__init__(cluster, log=log, rng=Random(0), admin_token=token, **options)

    def state(self, engine: FakeEngine) -> ReplicaLedger:
        return self.scheduler.states()[ReplicaId(f"127.0.0.1:{engine.port}")]


@contextlib.asynccontextmanager
async def running(
    *engines: FakeEngine, token: str | None = None, options: Mapping[str, Any] = MappingProxyType({}), **settings: Any
) -> AsyncIterator[Watched]:
    """A started gateway, stopped and checked at the end; ``options`` are the gateway's own, beside its cluster."""
    gateway = Watched(cluster_of(*engines, **settings), token, **options)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(0.0)
        gateway.metrics.validate()
        gateway.fleet.validate()
        gateway.scheduler.validate()
        assert gateway.data_plane.inflight() == 0


def client_of(gateway: Gateway) -> httpx.AsyncClient:
    """A client of the data port."""
    return httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30)


@contextlib.asynccontextmanager
async def admin_of(gateway: Gateway, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.admin_url, headers=headers, trust_env=False, timeout=20) as client:
        yield client
