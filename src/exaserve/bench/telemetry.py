"""What the servers say of themselves while they are under load: KV cache use per replica, accelerator use.

Two sources. A gateway's or an engine's own ``/metrics``, read once a second during the run. Or a Prometheus server,
asked once after it for the whole time.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from exaserve.engines import parse

__all__ = ["GPU_QUERIES", "KV_QUERIES", "MetricsWatch", "ServerSeries", "query_prometheus"]

PERIOD_S = 1.0
TIMEOUT_S = 3.0
SAMPLES_MAX = 100_000
_GATEWAY_KV = re.compile(
    rb'^exaserve_replica_kv_use_ratio\{[^}]*?replica="([^"]+)"[^}]*\} ([0-9.eE+-]+)\s*$', re.MULTILINE
)
_GPU = re.compile(rb"^exaserve_accelerator_use_ratio(?:\{[^}]*\})? ([0-9.eE+-]+)\s*$", re.MULTILINE)
_COUNTERS = {
    "discovery_failures": re.compile(
        rb"^exaserve_discovery_failures_total(?:\{[^}]*\})? ([0-9.eE+-]+)\s*$", re.MULTILINE
    ),
    "out_of_memory": re.compile(
        rb'^exaserve_engine_exits_total\{[^}]*cause="out of [^"]*memory"[^}]*\} ([0-9.eE+-]+)\s*$', re.MULTILINE
    ),
    "nccl_failures": re.compile(
        rb'^exaserve_engine_exits_total\{[^}]*cause="NCCL"[^}]*\} ([0-9.eE+-]+)\s*$', re.MULTILINE
    ),
}
"""What a gateway counts that should not happen in a run."""

KV_QUERIES = (
    "max by (replica) (exaserve_replica_kv_use_ratio)",  # several gateways tell of the same replicas
    "max by (instance) (vllm:kv_cache_usage_perc)",
    "max by (instance) (sglang:token_usage)",
)
GPU_QUERIES = (
    "avg(DCGM_FI_DEV_GPU_UTIL) / 100",
    "avg(nvidia_smi_utilization_gpu_ratio)",
    "avg(amd_gpu_gfx_activity) / 100",
)
"""Tried in turn; the first that gives anything counts."""


@dataclass(slots=True)
class ServerSeries:
    """Series of the run, instants in seconds from its start.

    Attributes:
        kv: KV cache use (0..1) by replica, as (instant, value).
        gpu: mean accelerator use (0..1).
        counts: by how much counters of failures grew during the run, where a gateway has them.
        problems: why something is missing.
    """

    kv: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    gpu: list[tuple[float, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)

    def cut(self, start_s: float, end_s: float) -> ServerSeries:
        """Only what was measured from ``start_s`` to ``end_s``."""

        def within(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
            return [(at, value) for at, value in series if start_s <= at <= end_s]

        return ServerSeries(
            {name: within(series) for name, series in self.kv.items()}, within(self.gpu), self.problems, self.counts
        )

    def figures(self) -> dict[str, float]:
        """``kv_max`` (largest of any replica), ``kv_spread`` (standard deviation over the replicas, mean over time) and
        ``gpu_use`` (mean), and the counts, as far as they are known. One replica has no spread."""
        out: dict[str, float] = dict(self.counts)
        values = [value for series in self.kv.values() for _, value in series]
        if values:
            out["kv_max"] = max(values)
        by_time: dict[int, list[float]] = {}
        for series in self.kv.values():
            for at, value in series:
                by_time.setdefault(round(at / PERIOD_S), []).append(value)
        spreads = [_deviation(group) for group in by_time.values() if len(group) > 1]
        if spreads:
            out["kv_spread"] = math.fsum(spreads) / len(spreads)
        if self.gpu:
            out["gpu_use"] = math.fsum(value for _, value in self.gpu) / len(self.gpu)
        return out

    def as_dict(self) -> dict[str, Any]:
        def rounded(series: Sequence[tuple[float, float]]) -> list[list[float]]:
            return [[round(at, 3), round(value, 5)] for at, value in series]

        return {
            "figures": self.figures(),
            "kv": {name: rounded(series) for name, series in sorted(self.kv.items())},
            "gpu": rounded(self.gpu),
            "problems": self.problems,
            "counts": self.counts,
        }


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


class MetricsWatch:
    """Reads expositions once a second. Use as an async context manager around the run.

    Args:
        urls: of ``/metrics`` of a gateway (all its replicas) or of engines (each is a replica).
        headers: such as an API key.
    """

    def __init__(self, urls: Sequence[str], headers: Mapping[str, str] | None = None) -> None:
        self.urls = urls
        self._started_at = time.monotonic()
        self.telemetry = ServerSeries()
        self._headers = dict(headers or {})
        self._task: asyncio.Task[None] | None = None
        self._taken = 0
        self._first: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], float] = {}

    def restart(self, at: float) -> None:
        """Instant 0 is at ``time.monotonic() == at``; what was read before is forgotten."""
        self._started_at = at
        self.telemetry.kv.clear()
        self.telemetry.gpu.clear()

    async def __aenter__(self) -> Self:
        if self.urls:
            self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=self._headers) as client:
            while self._taken < SAMPLES_MAX:
                began = time.monotonic()
                await asyncio.gather(*(self._read(client, url) for url in self.urls))
                await asyncio.sleep(max(0.05, PERIOD_S - (time.monotonic() - began)))

    async def _read(self, client: httpx.AsyncClient, url: str) -> None:
        try:
            response = await client.get(url)
            response.raise_for_status()
        except httpx.HTTPError as error:
            self._problem(f"{url}: {type(error).__name__}: {error}")
            return
        at = time.monotonic() - self._started_at
        self._taken += 1
        self._count(url, response.content)
        use_of_cards = [float(value) for value in _GPU.findall(response.content)]
        if use_of_cards:
            self.telemetry.gpu.append((at, math.fsum(use_of_cards) / len(use_of_cards)))
        found = _GATEWAY_KV.findall(response.content)
        if found:
            for name, value in found:
                self.telemetry.kv.setdefault(name.decode("utf-8", "replace"), []).append((at, float(value)))
            return
        use = parse(response.content).values.get("kv_use")
        if use is None:
            self._problem(f"{url} says nothing of KV cache use")
        else:
            name = httpx.URL(url).netloc.decode()
            self.telemetry.kv.setdefault(name, []).append((at, float(use)))

    def _count(self, url: str, exposition: bytes) -> None:
        """Growth of the counters since the first look; what a gateway does not have is not 0."""
        for name, pattern in _COUNTERS.items():
            values = pattern.findall(exposition)
            if values:
                total = math.fsum(float(value) for value in values)
                # A counter that fell was reset with its process; what it has now is new.
                first = self._first.setdefault((url, name), total)
                if total < first:
                    self._first[url, name] = 0.0
                self._last[url, name] = total
                known = [key for key in self._last if key[1] == name]
                self.telemetry.counts[name] = math.fsum(self._last[key] - self._first[key] for key in known)

    def _problem(self, text: str) -> None:
        if text not in self.telemetry.problems and len(self.telemetry.problems) < 10:
            self.telemetry.problems.append(text)


async def query_prometheus(
    url: str,
    start: float,
    end: float,
    gpu_query: str = "",
    kv_query: str = "",
    headers: Mapping[str, str] | None = None,
) -> ServerSeries:
    """What a Prometheus server knows of a time.

    Args:
        url: of the server, without ``/api``.
        start / end: seconds since 1970.
        gpu_query: in place of :data:`GPU_QUERIES`; must give one series of 0..1.
        kv_query: in place of :data:`KV_QUERIES`; must give one series of 0..1 per replica.
    """
    out = ServerSeries()
    step = max(1.0, (end - start) / 5_000.0)
    async with httpx.AsyncClient(timeout=10.0, headers=dict(headers or {})) as client:

        async def series(query: str) -> list[dict[str, Any]]:
            values: dict[str, str | float] = {"query": query, "start": start, "end": end, "step": step}
            try:
                response = await client.get(f"{url.rstrip('/')}/api/v1/query_range", params=values)
                document = response.json()
            except (httpx.HTTPError, ValueError) as error:
                out.problems.append(f"{url}: {type(error).__name__}: {error}")
                return []
            if document.get("status") != "success":
                out.problems.append(f"{url}: {document.get('error', response.status_code)}")
                return []
            result: list[dict[str, Any]] = document["data"]["result"]
            return result

        for query in (kv_query,) if kv_query else KV_QUERIES:
            for each in await series(query):
                labels = each["metric"]
                name = labels.get("replica") or labels.get("instance") or ", ".join(labels.values()) or "replica"
                out.kv.setdefault(name, []).extend(_points(each, start))
            if out.kv:
                break
        for query in (gpu_query,) if gpu_query else GPU_QUERIES:
            found = await series(query)
            if found:
                out.gpu = _points(found[0], start)
                break
    if not out.kv:
        out.problems.append("Prometheus knows no KV cache use of this time")
    if not out.gpu:
        out.problems.append("Prometheus knows no accelerator use of this time")
    return out


def _points(series: Mapping[str, Any], start: float) -> list[tuple[float, float]]:
    points = ((float(at) - start, float(value)) for at, value in series.get("values", ()))
    return [(at, value) for at, value in points if math.isfinite(value)]
