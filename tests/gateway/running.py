"""A whole gateway over fake engines, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import httpx
from tests.gateway.fake_engine import FakeEngine

from exaserve.config import Cluster, GatewaySettings, Pool, TelemetrySettings
from exaserve.gateway.app import Gateway
from exaserve.health import HealthConfig
from exaserve.observe import EventLog

QUICK = HealthConfig(probe_interval_s=0.1, probe_timeout_s=0.3, probe_limit_s=0.25, probe_fast_s=0.05, open_s=0.05)


def cluster_of(*engines: FakeEngine, **settings: Any) -> Cluster:
    """Replicas by URL alone, quick probes, free ports."""
    return Cluster(
        pools=(Pool(replicas=tuple(engine.url for engine in engines)),),
        health=QUICK,
        telemetry=TelemetrySettings(interval_s=0.05, timeout_s=0.3),
        gateway=GatewaySettings(port=0, admin_port=0, drain_s=2.0, **settings),
    )


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(*engines: FakeEngine, token: str | None = None, **settings: Any) -> AsyncIterator[Gateway]:
    """A started gateway; ``gateway.lines`` is its log. Stopped and checked at the end."""
    lines: list[str] = []
    gateway = Gateway(
        cluster_of(*engines, **settings),
        log=EventLog(lines.append, burst_max=1000),
        rng=Random(0),
        admin_token=token,
    )
    gateway.lines = lines  # type: ignore[attr-defined]
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(0.0)
        gateway.metrics.validate()
        gateway.health.validate()
        gateway.scheduler.validate()
        assert gateway.core.inflight() == 0


@contextlib.asynccontextmanager
async def admin_of(gateway: Gateway, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.admin_url, headers=headers, trust_env=False) as client:
        yield client
