"""An emulated replica's ``/metrics``: vLLM V1's names, types and labels (as version 0.32 exports them).

The text is one format string, built once per replica; a scrape fills in the numbers. The compact size keeps what
schedulers and dashboards read and gives histograms their sum and count only; the real size has every series of the
engine, 530 lines and 43 kB, to measure what polling it costs.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from exaserve.emulator.config import MetricsSize
    from exaserve.perfmodel.engine import EngineModel, EngineRequest, StepResult

__all__ = ["Exposition", "Stats", "StatsHistogram", "garble", "rename", "without"]

_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
          160.0, 640.0, 2560.0)  # fmt: skip
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)


def _tokens(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to the context length."""
    bounds: list[float] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > longest:
                return tuple(bounds)
            bounds.append(float(digit * scale))
        scale *= 10


class StatsHistogram:
    """Counts per bucket, a sum and a count. ``bounds`` are upper bounds without +Inf."""

    __slots__ = ("bounds", "buckets", "count", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times

    def cumulative(self) -> list[float]:
        """Observations up to each bound, the last one all of them."""
        running, out = 0, []
        for n in self.buckets:
            running += n
            out.append(float(running))
        return out


class Stats:
    """What the engine model does not count itself: latencies in seconds, and how requests ended."""

    def __init__(self, max_model_len: int) -> None:
        tokens = _tokens(max_model_len)
        self.prompt_tokens = StatsHistogram(tokens)
        self.generation_tokens = StatsHistogram(tokens)
        self.step_tokens = StatsHistogram(_STEP_TOKENS)
        self.params_n = StatsHistogram((1.0, 2.0, 5.0, 10.0, 20.0))
        self.params_max_tokens = StatsHistogram(tokens)
        self.first_token_s = StatsHistogram(_FIRST)
        self.between_s = StatsHistogram(_BETWEEN)
        self.per_token_s = StatsHistogram(_BETWEEN)
        self.total_s = StatsHistogram(_SECONDS)
        self.queue_s = StatsHistogram(_SECONDS)
        self.inference_s = StatsHistogram(_SECONDS)
        self.prefill_s = StatsHistogram(_SECONDS)
        self.decode_s = StatsHistogram(_SECONDS)
        self.preemptions = StatsHistogram((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0))
        self.prefill_tokens = StatsHistogram(tokens)
        self.cached_tokens_total = 0
        self.ended = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self._last_step = -1.0

    def step(self, result: StepResult, now: float) -> None:
        """One step is done: ``now`` is its end."""
        tokens = result.decoded + result.prefilled
        if tokens:
            self.step_tokens.observe(tokens)
        older = result.decoded - len(result.first)
        if older > 0 and self._last_step >= 0.0:
            self.between_s.observe(now - self._last_step, older)
        for request in result.first:
            self.first_token_s.observe(now - request.submitted_at)
            self.cached_tokens_total += request.cached_tokens
        self._last_step = now

    def finish(self, request: EngineRequest, outputs: int, max_tokens: int, choices: int) -> None:
        """A request is complete or aborted."""
        self.ended[request.reason.value] += 1
        end, first, scheduled = request.finished_at, request.first_token_at, request.scheduled_at
        self.prompt_tokens.observe(request.prompt_tokens)
        self.generation_tokens.observe(outputs)
        self.params_max_tokens.observe(max_tokens)
        self.params_n.observe(choices)
        self.preemptions.observe(request.preemptions)
        self.total_s.observe(end - request.submitted_at)
        if scheduled >= 0.0:
            self.queue_s.observe(scheduled - request.submitted_at)
            self.inference_s.observe(end - scheduled)
            self.prefill_tokens.observe(request.prompt_tokens - request.cached_tokens)
        if first >= 0.0:
            self.prefill_s.observe(first - scheduled)
            self.decode_s.observe(end - first)
            if outputs > 1:
                self.per_token_s.observe((end - first) / (outputs - 1))


class _Family(NamedTuple):
    """One metric family.

    Attributes:
        series: label text put beside the common labels, and whose number it shows.
        compact: whether the compact size has it.
    """

    compact: bool
    name: str
    kind: Literal["gauge", "counter"]
    text: str
    series: tuple[tuple[str, str], ...]


def _rows(compact: bool, kind: Literal["gauge", "counter"], *rows: tuple[str, str, str]) -> list[_Family]:
    """Families written as (name, help, "label=value:source label=value:source")."""
    out = []
    for name, text, series in rows:
        pairs = []
        for item in series.split():
            label, _, source = item.rpartition(":")
            key, _, value = label.partition("=")
            pairs.append((f',{key}="{value}"' if label else "", source))
        out.append(_Family(compact, name, kind, text, tuple(pairs)))
    return out


_FLOPS = " per GPU (for Model Flops Utilization calculations)."
_TOKENS = ", in terms of number of {} tokens."
_EXTERNAL = "from KV connector cross-instance cache sharing"
_REAL, _ALL = False, True
_SCALARS = [
    *_rows(
        _REAL,
        "counter",
        ("estimated_flops_per_gpu_total", "Estimated number of floating point operations" + _FLOPS, "zero"),
        ("estimated_read_bytes_per_gpu_total", "Estimated number of bytes read from memory" + _FLOPS, "zero"),
        ("estimated_write_bytes_per_gpu_total", "Estimated number of bytes written to memory" + _FLOPS, "zero"),
    ),
    *_rows(
        _ALL,
        "gauge",
        ("num_requests_running", "Number of requests in model execution batches.", "running"),
        ("num_requests_waiting", "Number of requests waiting to be processed.", "waiting"),
        (
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Sum of all reasons equals vllm:num_requests_waiting.",
            "reason=capacity:waiting reason=deferred:zero",
        ),
        (
            "engine_sleep_state",
            (
                "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
                "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
            ),
            "sleep_state=awake:one sleep_state=weights_offloaded:zero sleep_state=discard_all:zero",
        ),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "kv_use"),
    ),
    *_rows(
        _ALL,
        "counter",
        ("prefix_cache_queries_total", "Prefix cache queries" + _TOKENS.format("queried"), "prefix_queries"),
        ("prefix_cache_hits_total", "Prefix cache hits" + _TOKENS.format("cached"), "prefix_hits"),
    ),
    *_rows(
        _REAL,
        "counter",
        (
            "external_prefix_cache_queries_total",
            f"External prefix cache queries {_EXTERNAL}" + _TOKENS.format("queried"),
            "zero",
        ),
        (
            "external_prefix_cache_hits_total",
            f"External prefix cache hits {_EXTERNAL}" + _TOKENS.format("cached"),
            "zero",
        ),
        ("mm_cache_queries_total", "Multi-modal cache queries, in terms of number of queried items.", "zero"),
        ("mm_cache_hits_total", "Multi-modal cache hits, in terms of number of cached items.", "zero"),
    ),
    *_rows(
        _ALL,
        "counter",
        ("num_preemptions_total", "Cumulative number of preemption from the engine.", "preemptions"),
        ("prompt_tokens_total", "Number of prefill tokens processed.", "prompt_tokens"),
    ),
    *_rows(
        _REAL,
        "counter",
        (
            "prompt_tokens_by_source_total",
            "Number of prompt tokens by source.",
            (
                "source=local_compute:computed_tokens source=local_cache_hit:cached_tokens "
                "source=external_kv_transfer:zero"
            ),
        ),
    ),
    *_rows(
        _ALL,
        "counter",
        ("prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", "cached_tokens"),
    ),
    *_rows(
        _REAL,
        "counter",
        (
            "prompt_tokens_cached_by_source_total",
            "Prefix-cache hit tokens by the cache tier that supplied them.",
            (
                "source=device:cached_tokens source=host:zero source=p2p:zero source=disk:zero "
                "source=external_unspecified:zero"
            ),
        ),
    ),
    *_rows(
        _ALL,
        "counter",
        ("generation_tokens_total", "Number of generation tokens processed.", "generation_tokens"),
        (
            "request_success_total",
            "Count of successfully processed requests.",
            (
                "finished_reason=stop:stop finished_reason=length:length finished_reason=abort:abort "
                "finished_reason=error:error finished_reason=repetition:repetition"
            ),
        ),
    ),
    *_rows(
        _REAL,
        "counter",
        (
            "admission_rejections_total",
            "Number of admission attempts rejected by a queue limit, by reason.",
            "reason=max_num_queued_reqs:zero reason=max_num_queued_tokens:zero",
        ),
    ),
]

_HISTOGRAMS = (
    # name, help, attribute of Stats, in the compact size
    ("request_prompt_tokens", "Number of prefill tokens processed.", "prompt_tokens", _REAL),
    ("request_generation_tokens", "Number of generation tokens processed.", "generation_tokens", _REAL),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", "step_tokens", _ALL),
    ("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
     "generation_tokens", _REAL),
    ("request_params_n", "Histogram of the n request parameter.", "params_n", _REAL),
    ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", "params_max_tokens", _REAL),
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", "first_token_s", _ALL),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", "between_s", _ALL),
    ("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.",
     "per_token_s", _REAL),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", "total_s", _ALL),
    ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", "queue_s", _ALL),
    ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", "inference_s", _REAL),
    ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", "prefill_s", _REAL),
    ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", "decode_s", _REAL),
    ("request_num_preemptions", "Histogram of the number of times a request was preempted.", "preemptions", _REAL),
    ("request_prefill_kv_computed_tokens",
     "Histogram of new KV tokens computed during prefill (excluding cached tokens).", "prefill_tokens", _REAL),
)  # fmt: skip

_CACHE_LABELS = (
    '_block_size_resolved="True",block_size="{block}",cache_dtype="auto",cache_hit_alignment_tokens="None",'
    'effective_attention_block_size="{block}",enable_prefix_caching="{caching}",engine="0",'
    'gpu_memory_utilization="{util}",is_attention_free="False",kv_cache_max_concurrency="{concurrency}",'
    'kv_cache_size_tokens="{tokens}",mamba_cache_mode="none",num_cpu_blocks="None",num_gpu_blocks="{blocks}",'
    'num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",sliding_window="None",'
    'user_specified_block_size="False"'
)


class Exposition:
    """Renders one replica's metrics.

    Args:
        model: label ``model_name``.
        created: unix time of the start, seconds, for the ``_created`` series of the real size.
    """

    def __init__(
        self, engine: EngineModel, stats: Stats, model: str, size: MetricsSize, created: float, util: float
    ) -> None:
        self._engine, self._stats = engine, stats
        self._real = size == "real"
        labels = 'engine="0",model_name="{}"'.format(model.replace("\\", "\\\\").replace('"', '\\"'))
        self._scalars: list[str] = []
        self._histograms: list[StatsHistogram] = []
        text: list[str] = []
        for family in _SCALARS:
            if self._real or family.compact:
                name = f"vllm:{family.name}"
                text.append(f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n")
                for extra, source in family.series:
                    text.append(f"{name}{{{_merge(labels, extra)}}} \0\n")
                    self._scalars.append(source)
                if self._real and family.kind == "counter":
                    extras = [extra for extra, _ in family.series]
                    text.append(_created(name.removesuffix("_total"), family.text, labels, extras, created))
        for short, words, attribute, compact in _HISTOGRAMS:
            if self._real or compact:
                histogram: StatsHistogram = getattr(stats, attribute)
                text.append(_histogram(f"vllm:{short}", words, labels, histogram, self._real, created))
                self._histograms.append(histogram)
        pool, profile = engine.pool, engine.profile
        info = _CACHE_LABELS.format(
            block=profile.block_size, caching=pool.caching, util=util, blocks=pool.total,
            tokens=pool.total * profile.block_size,
            concurrency=round(pool.total * profile.block_size / profile.max_model_len, 2),
        )  # fmt: skip
        name = "vllm:cache_config_info"
        text.append(
            f"# HELP {name} Information of the LLMEngine CacheConfig\n# TYPE {name} gauge\n{name}{{{info}}} 1.0\n"
        )
        self._template = "".join(text).replace("%", "%%").replace("\0", "%r")

    def render(self) -> bytes:
        """The exposition, text format 0.0.4."""
        engine, stats = self._engine, self._stats
        numbers = {
            "zero": 0, "one": 1, "running": engine.running_count, "waiting": len(engine.waiting),
            "kv_use": engine.kv_use,
            "prefix_queries": engine.prefix_queries_total, "prefix_hits": engine.prefix_hits_total,
            "preemptions": engine.preemptions_total, "prompt_tokens": engine.prompt_tokens_total,
            "generation_tokens": engine.generation_tokens_total, "cached_tokens": stats.cached_tokens_total,
            "computed_tokens": engine.prompt_tokens_total - stats.cached_tokens_total, **stats.ended,
        }  # fmt: skip
        values = [float(numbers[source]) for source in self._scalars]
        for histogram in self._histograms:
            if self._real:
                values += histogram.cumulative()
            else:
                values.append(float(histogram.count))
            values += (float(histogram.count), histogram.total)
        return (self._template % tuple(values)).encode()


def _merge(labels: str, extra: str) -> str:
    """Labels in the exporter's alphabetical order: engine, then extra ones before or after model_name."""
    if not extra:
        return labels
    if extra[1:] < "model_name":
        engine, model = labels.split(",", 1)
        return f"{engine}{extra},{model}"
    return labels + extra


def _created(name: str, words: str, labels: str, extras: list[str], when: float) -> str:
    base = f"{name}_created"
    lines = [f"# HELP {base} {words}\n# TYPE {base} gauge\n"]
    lines += [f"{base}{{{_merge(labels, extra)}}} {when!r}\n" for extra in extras]
    return "".join(lines)


def _histogram(name: str, words: str, labels: str, histogram: StatsHistogram, real: bool, when: float) -> str:
    lines = [f"# HELP {name} {words}\n# TYPE {name} histogram\n"]
    bounds = [repr(b) for b in histogram.bounds] if real else []
    for bound in [*bounds, "+Inf"]:
        extra = f',le="{bound}"'
        lines.append(f"{name}_bucket{{{_merge(labels, extra)}}} \0\n")
    lines.append(f"{name}_count{{{labels}}} \0\n{name}_sum{{{labels}}} \0\n")
    if real:
        lines.append(_created(name, words, labels, [""], when))
    return "".join(lines)


def rename(text: bytes) -> bytes:
    """The same figures under an older engine's names for KV use and prefix cache."""
    return text.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc").replace(
        b"vllm:prefix_cache_", b"vllm:gpu_prefix_cache_"
    )


def without(text: bytes) -> bytes:
    """The exposition with KV use and the waiting queue left out."""
    lost = (b"vllm:kv_cache_usage_perc", b"vllm:num_requests_waiting")
    return b"".join(line for line in text.splitlines(keepends=True) if not any(name in line for name in lost))


def garble(text: bytes) -> bytes:
    """No exposition: cut in the middle of a line, with bytes that are no UTF-8."""
    return b"\xff\xfe{" + text[: len(text) // 2] + b'\nvllm:num_requests_running{engine="0 NaNNaN 7..5\n\0\0'
