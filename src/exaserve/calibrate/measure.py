"""Runs a calibration against one replica: the client's clock beside the engine's own metrics."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from exaserve.bench import BodyRenderer, Ending, LoadClient, LoadConfig, LoadPlan, PlannedRequest, Record
from exaserve.calibrate.design import BatchRun, Design, ProbeRun, design_runs
from exaserve.domain.errors import ConfigError
from exaserve.engines import parse
from exaserve.engines.exposition import label
from exaserve.perfmodel.fitting import DecodePoint, PrefillPoint

__all__ = ["Measurements", "Measurer", "decode_point"]

WATCH_PERIOD_S = 0.1
REQUEST_TIMEOUT_S = 300.0
IDLE_WAIT_S = 30.0
STRETCHES_MAX, STRETCH_EVENTS_MIN = 16, 4
_GATEWAY = re.compile(rb"^exaserve_(?:replica_inflight|requests_in_flight|queue_depth)\b", re.MULTILINE)
MEASUREMENTS_KIND = "exaserve-measurements"
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class Measurements:
    """What was measured.

    Attributes:
        probes: (seconds lost by a short prompt, tokens then held, their mean age in seconds).
        limits: of the engine, by its own word.
        dropped: runs that do not count, with the reason.
        kv_bytes_per_token: as the engine says it, 0 if it does not.
        model / engine: what it is.
    """

    prefill: list[PrefillPoint] = field(default_factory=list)
    decode: list[DecodePoint] = field(default_factory=list)
    probes: list[tuple[float, float, float]] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    kv_bytes_per_token: float = 0.0
    model: str = ""
    engine: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, to be fitted again later."""
        return {"kind": MEASUREMENTS_KIND, **asdict(self)}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Measurements:
        """What :meth:`as_dict` wrote. ConfigError for anything else."""
        if document.get("kind") != MEASUREMENTS_KIND:
            raise ConfigError("these are no measurements of exaserve calibrate")
        try:
            values = {name: value for name, value in document.items() if name != "kind"}
            values["prefill"] = [PrefillPoint(**point) for point in values["prefill"]]
            values["decode"] = [DecodePoint(**point) for point in values["decode"]]
            values["probes"] = [tuple(map(float, probe)) for probe in values["probes"]]
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the measurements are damaged: {type(error).__name__}: {error}") from None


def decode_point(records: Sequence[Record], kv_used: float = math.nan) -> DecodePoint | None:
    """The steady part of a batch: from the last first token to the first last one. None where there is hardly any.

    The step is the median over stretches of the window, so that a replica that stands still now and then (other work,
    clocks that fall) does not pass for a slower one; by how much its mean is longer is told beside it.
    """
    if not records or any(r.verdict is not Ending.OK or len(r.token_s) < 2 for r in records):
        return None
    begin = max(r.token_s[0] for r in records)
    end = min(r.token_s[-1] for r in records)
    steps: list[float] = []
    stretches: list[float] = []
    context = 0.0
    fewest = math.inf
    for record in records:
        inside = [at for at in record.token_s if begin <= at <= end]
        if len(inside) < 3:
            return None
        # Events that carry several tokens are that many steps.
        per_event = record.tokens / len(record.token_s)
        count = (len(inside) - 1) * per_event
        steps.append((inside[-1] - inside[0]) / count)
        stretches += _stretches(inside, per_event)
        before = sum(at < begin for at in record.token_s) * per_event
        prompt = record.prompt_tokens if record.prompt_seen is None else record.prompt_seen
        context += prompt + before + 1.0 + count / 2.0
        fewest = min(fewest, count)
    mean, typical = math.fsum(steps) / len(steps), statistics.median(stretches)
    if typical <= 0.0:
        return None  # tokens came in heaps, as where the client stood still: when each was made is not known
    return DecodePoint(len(records), context, typical, int(fewest), kv_used, max(0.0, mean / typical - 1.0))


def _stretches(times: Sequence[float], per_event: float) -> list[float]:
    """Mean step within each stretch of at least four events, at most sixteen of them."""
    gaps = len(times) - 1
    count = min(STRETCHES_MAX, max(1, gaps // STRETCH_EVENTS_MIN))
    ends = [i * gaps // count for i in range(count + 1)]
    return [(times[b] - times[a]) / ((b - a) * per_event) for a, b in itertools.pairwise(ends)]


class Measurer:
    """Drives one replica.

    Args:
        url: of the replica itself, not of a gateway.
        renderer: makes bodies of exact length where it can.
        say: told what is being done, with the share that is done.
    """

    def __init__(
        self,
        url: str,
        renderer: BodyRenderer,
        design: Design,
        headers: Mapping[str, str] | None = None,
        say: Callable[[str, float], None] | None = None,
        seed: int = 1,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.renderer = renderer
        self.design = design
        self.headers = dict(headers or {})
        self.out = Measurements()
        self.say = say or (lambda _text, _share: None)
        self._number = seed * 1_000_003
        self._series: list[dict[str, Any]] = []
        self._watch: asyncio.Task[None] | None = None

    async def run(self, *, probes: bool = True) -> Measurements:
        """All runs, one after the other; what is measured stands in ``out`` as soon as it is.

        Raises:
            httpx.HTTPError: the replica does not answer at all.
            ConfigError: it is a gateway.
        """
        async with httpx.AsyncClient(timeout=5.0, headers=self.headers) as client:
            await self._facts(client)
            prompts, batches, probe_runs = design_runs(self.design, self.out.limits)
            if not probes:
                probe_runs = []
            self._watch = asyncio.ensure_future(self._sample(client))
            try:
                total = len(prompts) + len(batches) + len(probe_runs) + 1
                for done, tokens in enumerate(prompts):
                    self.say(f"lone prompts of {tokens:,} tokens", done / total)
                    await self._lone(tokens)
                for done, batch in enumerate(batches, len(prompts)):
                    self.say(f"{batch.sequences} sequences at {batch.prompt_tokens:,} tokens", done / total)
                    await self._batch(batch)
                if probe_runs:
                    alone_s = await self._alone()
                    for done, probe in enumerate(probe_runs, len(prompts) + len(batches)):
                        self.say(f"probes beside {probe.background.sequences} sequences", done / total)
                        await self._probe(probe, alone_s)
            finally:
                self._watch.cancel()
                await asyncio.gather(self._watch, return_exceptions=True)
        return self.out

    # -- what the engine says ---------------------------------------------------------------------------------------

    async def _facts(self, client: httpx.AsyncClient) -> None:
        models = (await client.get(f"{self.url}/v1/models")).raise_for_status().json()["data"]
        self.out.model = str(models[0]["id"]) if models else ""
        length = models[0].get("max_model_len") if models else None
        limits = self.out.limits
        if isinstance(length, int):
            limits["max_model_len"] = length
        text = await self._exposition(client)
        if _GATEWAY.search(text):
            raise ConfigError(f"{self.url} is a gateway: name one of its replicas itself")
        found = parse(text)
        self.out.engine = found.engine
        if found.values.get("kv_tokens_max"):
            limits["kv_tokens_max"] = int(found.values["kv_tokens_max"])
        for line in text.split(b"\n"):
            if not line.startswith(b"vllm:cache_config_info{"):
                continue
            block = label(line[line.find(b"{") + 1 :], b"block_size") or ""
            if block.isdigit():
                limits["block_size"] = int(block)
            size = label(line[line.find(b"{") + 1 :], b"kv_cache_memory_bytes") or ""
            if size.isdigit() and limits.get("kv_tokens_max"):
                self.out.kv_bytes_per_token = int(size) / limits["kv_tokens_max"]

    async def _exposition(self, client: httpx.AsyncClient) -> bytes:
        try:
            response = await client.get(f"{self.url}/metrics")
        except httpx.HTTPError:
            return b""
        return response.content if response.status_code == 200 else b""

    async def _sample(self, client: httpx.AsyncClient) -> None:
        while True:
            began = time.monotonic()
            values = dict(parse(await self._exposition(client)).values)
            self._series.append({**values, "at": (began + time.monotonic()) / 2.0})
            del self._series[:-20_000]
            await asyncio.sleep(WATCH_PERIOD_S)

    def _within(self, begin: float, end: float, signal: str, running_min: int = 0) -> list[float]:
        """Samples of ``signal`` between two instants, in which at least so many requests ran, where the engine says."""
        return [
            float(s[signal])
            for s in self._series
            if begin <= s["at"] <= end and s.get(signal) is not None and s.get("running", running_min) >= running_min
        ]

    async def _idle(self) -> None:
        """Until the engine says that it has nothing to do; one that says nothing is given a moment."""
        until = time.monotonic() + IDLE_WAIT_S
        await asyncio.sleep(2.5 * WATCH_PERIOD_S)
        while time.monotonic() < until:
            last = self._series[-1] if self._series else {}
            if not last.get("running") and not last.get("waiting"):
                return
            await asyncio.sleep(WATCH_PERIOD_S)

    # -- what is asked ----------------------------------------------------------------------------------------------

    def _request(self, index: int, tokens: int, output: int, at_s: float = 0.0) -> PlannedRequest:
        self._number += 1
        head = (self._number * _GOLDEN) % (1 << 60)
        return PlannedRequest(index, "run", at_s, tokens, output, head)

    def _client(self, requests: Sequence[PlannedRequest], *, concurrency: int = 0) -> LoadClient:
        config = LoadConfig(
            urls=(self.url,),
            renderer=self.renderer,
            request_timeout_s=REQUEST_TIMEOUT_S,
            drain_s=REQUEST_TIMEOUT_S,
            headers=tuple(self.headers.items()),
            concurrency=concurrency,
            requests_max=len(requests) if concurrency else None,
        )
        return LoadClient(config, LoadPlan(tuple(requests), REQUEST_TIMEOUT_S, 0, ("run",)))

    async def _lone(self, tokens: int) -> None:
        count = self.design.repeats_cold + self.design.repeats
        requests = [self._request(i, tokens, 2) for i in range(count)]
        records = (await self._client(requests, concurrency=1).run()).records
        for record in records[self.design.repeats_cold :]:
            if record.verdict is not Ending.OK or record.ttft_sent_s is None:
                self.out.dropped.append(f"lone prompt of {tokens} tokens: {record.error or record.status}")
                continue
            if record.replica:
                raise ConfigError(f"{self.url} passes requests on to {record.replica}: name that replica's own address")
            computed = (record.prompt_tokens if record.prompt_seen is None else record.prompt_seen) - (
                record.cached_seen or 0
            )
            self.out.prefill.append(PrefillPoint(computed, record.ttft_sent_s))

    async def _batch(self, batch: BatchRun) -> None:
        await self._idle()
        requests = [self._request(i, batch.prompt_tokens, batch.output_tokens) for i in range(batch.sequences)]
        name = f"{batch.sequences} sequences at {batch.prompt_tokens} tokens"
        preempted = self._series[-1].get("preemptions_total") if self._series else None
        result = await self._client(requests).run()
        records, start = result.records, result.started_at
        bad = [r for r in records if r.verdict is not Ending.OK]
        if bad:
            self.out.dropped.append(f"{name}: {len(bad)} failed ({bad[0].error}, status {bad[0].status})")
            return
        if any(r.in_one_piece for r in records):
            self.out.dropped.append(f"{name}: answers came in one piece, not token by token")
            return
        begin = start + max(r.token_s[0] for r in records)
        end = start + min(r.token_s[-1] for r in records)
        running, waiting = self._within(begin, end, "running"), self._within(begin, end, "waiting")
        if waiting and max(waiting) > 0:
            self.out.dropped.append(f"{name}: {max(waiting):.0f} waited, the engine runs fewer at once")
            return
        if running and max(running) < batch.sequences:
            self.out.dropped.append(f"{name}: only {max(running):.0f} ran at once")
            return
        after = self._series[-1].get("preemptions_total") if self._series else None
        if preempted is not None and after is not None and after > preempted:
            self.out.dropped.append(f"{name}: the engine preempted")
            return
        # A sample may still be of the step before all were decoding: its count of running requests says so.
        use = self._within(begin, end, "kv_use", running_min=batch.sequences)
        size = self.out.limits.get("kv_tokens_max", 0)
        kv_used = math.fsum(use) / len(use) * size if use and size else math.nan
        point = decode_point(records, kv_used)
        if point is None:
            self.out.dropped.append(f"{name}: too few steps with all of them decoding")
        else:
            self.out.decode.append(point)

    async def _alone(self) -> float:
        """First token of a short prompt with nothing else to do, seconds: the median."""
        await self._idle()
        requests = [self._request(i, self.design.probe_tokens, 2) for i in range(7)]
        records = (await self._client(requests, concurrency=1).run()).records
        times = sorted(r.ttft_sent_s for r in records[1:] if r.ttft_sent_s is not None)
        return times[len(times) // 2] if times else math.nan

    async def _probe(self, probe: ProbeRun, alone_s: float) -> None:
        """Short prompts into a running batch; each is one observation."""
        await self._idle()
        batch = probe.background
        background = self._client(
            [self._request(i, batch.prompt_tokens, batch.output_tokens) for i in range(batch.sequences)]
        )
        task = asyncio.ensure_future(background.run())
        try:
            began = await self._all_begun(background, batch.sequences, task)
            for after_s in probe.after_s:
                await asyncio.sleep(max(0.0, began + after_s - time.monotonic()))
                if task.done():
                    break
                held = _held(background)
                records = (
                    await self._client([self._request(0, self.design.probe_tokens, 2)], concurrency=1).run()
                ).records
                ttft_s = records[0].ttft_sent_s if records else None
                if ttft_s is not None and held is not None:
                    self.out.probes.append((ttft_s - alone_s, *held))
        finally:
            # What is left of the answers is not needed: leaving ends the engine's work.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _all_begun(self, client: LoadClient, count: int, task: asyncio.Future[Any]) -> float:
        until = time.monotonic() + REQUEST_TIMEOUT_S
        while time.monotonic() < until and not task.done():
            if sum(r.first_token_s is not None for r in client.records) >= count:
                break
            await asyncio.sleep(0.01)
        return time.monotonic()


def _held(client: LoadClient) -> tuple[float, float] | None:
    """Tokens of context that a client's open answers hold now, and their mean age since the first token, seconds."""
    now = client.now()
    held = [r for r in client.records if r.first_token_s is not None and r.last_s is None]
    if not held:
        return None
    tokens = math.fsum(r.prompt_tokens + len(r.token_s) for r in held)
    return tokens, math.fsum(now - (r.first_token_s or now) for r in held) / len(held)
