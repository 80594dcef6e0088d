"""Offered load for gateway benchmarks: plain requests at a rate, plain requests flat out, and many streams."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stub import MODEL
from exaserve.bench import (
    Arrivals,
    BodyRenderer,
    Ending,
    LoadClient,
    LoadConfig,
    LoadPlan,
    LoadResult,
    Mix,
    OutputLengths,
    PlannedRequest,
    Scenario,
    make_plan,
    percentile,
)

PROMPT_TOKENS = 327
"""A short chat request: about 1.3 kB of prompt."""


@dataclass(frozen=True)
class Sample:
    """One measurement.

    Attributes:
        seconds: length of the measured window.
        count: requests answered, or events received, within it.
        errors: requests that failed or were cut.
        proxy_s / stub_s / client_s: CPU seconds of each within the window.
        p50_s / p99_s: latency from the scheduled time (plain) or gap between events (streams); 0 where not measured.
        lag_s: longest that the client's event loop was late.
    """

    seconds: float
    count: int
    errors: int
    proxy_s: float
    stub_s: float
    client_s: float
    p50_s: float = 0.0
    p99_s: float = 0.0
    lag_s: float = 0.0

    @property
    def proxy_us(self) -> float:
        """CPU per request or event, microseconds."""
        return self.proxy_s / max(1, self.count) * 1e6

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def proxy_busy(self) -> float:
        return self.proxy_s / self.seconds

    @property
    def load_busy(self) -> float:
        """Share of the other core that stub and client need."""
        return (self.stub_s + self.client_s) / self.seconds


Accounts = Callable[[], tuple[float, float]]
"""CPU seconds so far of what is measured, and of the stub."""


def _own_cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _scenario() -> Mix:
    return Mix(((Scenario("plain", PROMPT_TOKENS, OutputLengths("fixed", 60)), 1.0),))


def _errors(result: LoadResult) -> int:
    return sum(record.verdict is not Ending.OK for record in result.records)


async def plain_at_rate(
    urls: tuple[str, ...], accounts: Accounts, *, rate_per_s: float, duration_s: float, seed: int
) -> Sample:
    """Plain requests that arrive as a Poisson process, whatever the server does."""
    plan = make_plan(_scenario(), Arrivals(rate_per_s, duration_s), seed)
    config = LoadConfig(
        urls, BodyRenderer(MODEL, stream=False), inflight_max=2_000, request_timeout_s=30.0, drain_s=10.0
    )
    client = LoadClient(config, plan)
    gc.collect()
    gc.disable()
    before, own, began = accounts(), _own_cpu_s(), time.monotonic()
    result = await client.run()
    seconds = time.monotonic() - began
    after = accounts()
    client_s = _own_cpu_s() - own
    gc.enable()
    good = sorted(r.latency_s for r in result.records if r.verdict is Ending.OK and r.latency_s is not None)
    return Sample(
        seconds,
        len(good),
        _errors(result),
        after[0] - before[0],
        after[1] - before[1],
        client_s,
        percentile(good, 0.5),
        percentile(good, 0.99),
        result.lag_max_s,
    )


_WRK_SCRIPT = """\
wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[{body}]==]
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\nRESULT {{"count":%d,"seconds":%f,"errors":%d,"p50":%f,"p99":%f}}\\n', summary.requests,
    summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
"""


async def plain_flat_out(
    urls: tuple[str, ...], accounts: Accounts, *, connections: int, duration_s: float, seed: int, directory: Path
) -> Sample:
    """Plain requests over ``connections`` connections, each sending the next as soon as it has its answer.

    ``wrk`` is the client where there is one, since it costs least; otherwise the load client with as many slots.
    """
    wrk = shutil.which("wrk")
    plan = make_plan(_scenario(), Arrivals(1.0, 1.0, "constant"), seed)
    renderer = BodyRenderer(MODEL, stream=False)
    if wrk is None or len(urls) > 1:
        return await _own_flat_out(urls, accounts, renderer, connections=connections, duration_s=duration_s, seed=seed)
    script = directory / "wrk.lua"
    script.write_text(_WRK_SCRIPT.format(body=renderer.body(plan.requests[0]).decode()))
    command = [wrk, "-t1", f"-c{connections}", f"-d{duration_s:g}s", "-s", str(script), "--timeout", "10s", urls[0]]
    before, own, began = accounts(), _own_cpu_s(), time.monotonic()
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds = time.monotonic() - began
    after = accounts()
    result = json.loads(output.split("RESULT ", 1)[1].splitlines()[0])
    return Sample(
        seconds,
        result["count"] - result["errors"],
        result["errors"],
        after[0] - before[0],
        after[1] - before[1],
        _own_cpu_s() - own,
        result["p50"],
        result["p99"],
    )


async def _own_flat_out(
    urls: tuple[str, ...],
    accounts: Accounts,
    renderer: BodyRenderer,
    *,
    connections: int,
    duration_s: float,
    seed: int,
) -> Sample:
    plan = make_plan(_scenario(), Arrivals(60_000.0, duration_s, "constant"), seed)
    client = LoadClient(LoadConfig(urls, renderer, inflight_max=connections, drain_s=1.0), plan)
    asyncio.get_running_loop().call_later(duration_s, client.stop)
    before, own, began = accounts(), _own_cpu_s(), time.monotonic()
    result = await client.run()
    seconds = time.monotonic() - began
    after = accounts()
    good = sum(record.verdict is Ending.OK for record in result.records)
    bad = sum(record.verdict is not Ending.OK and record.sent_s is not None for record in result.records)
    return Sample(seconds, good, bad, after[0] - before[0], after[1] - before[1], _own_cpu_s() - own)


def stream_plan(streams: int, over_s: float, seed: int) -> LoadPlan:
    """``streams`` streamed requests, begun evenly over ``over_s`` seconds."""
    plan = make_plan(_scenario(), Arrivals(streams / over_s, over_s, "constant"), seed)
    kept: tuple[PlannedRequest, ...] = plan.requests[:streams]
    return LoadPlan(kept, over_s, seed, plan.scenarios)


async def streams_at_once(
    urls: tuple[str, ...], accounts: Accounts, *, streams: int, ramp_s: float, window_s: float, seed: int
) -> Sample:
    """CPU per streamed event: ``streams`` begin within ``ramp_s``, then comes a window in which none begins or ends.

    The replicas' streams must last longer than ``ramp_s + window_s + 0.5`` seconds.
    """
    client = LoadClient(
        LoadConfig(urls, BodyRenderer(MODEL), inflight_max=streams, request_timeout_s=120.0, drain_s=60.0),
        stream_plan(streams, ramp_s, seed),
    )
    gc.collect()
    gc.disable()
    run = asyncio.ensure_future(client.run())
    await asyncio.sleep(ramp_s + 0.4)
    before, own, events, began = accounts(), _own_cpu_s(), client.events, time.monotonic()
    await asyncio.sleep(window_s)
    after, seconds, received = accounts(), time.monotonic() - began, client.events - events
    client_s = _own_cpu_s() - own
    result = await run
    gc.enable()
    return Sample(
        seconds,
        received,
        _errors(result),
        after[0] - before[0],
        after[1] - before[1],
        client_s,
        lag_s=result.lag_max_s,
    )
