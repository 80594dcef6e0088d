"""Builders for the scheduler's tests: no sockets, no clock, every figure visible in the test."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import RequestFacts
from exaserve.scheduling import Scheduler, SchedulerConfig

Build = Callable[..., Scheduler]


def rid(k: int) -> ReplicaId:
    return ReplicaId(f"r{k}")


def facts(prompt: int = 327, output: int = 100, **more: object) -> RequestFacts:
    values: dict[str, object] = {"model": "m", "stream": True, "total_tokens_max": prompt + output} | more
    return RequestFacts(prompt_tokens=prompt, output_tokens=output, **values)  # type: ignore[arg-type]


def report(k: int, seq: int, taken_at: float, **more: object) -> Report:
    return Report(rid(k), seq, taken_at, **more)  # type: ignore[arg-type]


def built(
    n: int, policy: str = "entropy", spec: dict[str, object] | None = None, seed: int = 1, **config: object
) -> Scheduler:
    """n replicas of model "m", all available."""
    scheduler = Scheduler(SchedulerConfig(policy=policy, **config), Random(seed))  # type: ignore[arg-type]
    for k in range(n):
        values: dict[str, object] = {"models": ("m",), "kv_tokens_max": 100_000} | (spec or {})
        scheduler.add(ReplicaSpec(rid(k), f"http://127.0.0.1:{9000 + k}", **values), 0.0)  # type: ignore[arg-type]
        scheduler.set_health(rid(k), True, "test")
    return scheduler


@pytest.fixture
def build() -> Build:
    """``build(n, policy="entropy", spec={...}, **config)``, as :func:`built`."""
    return built
