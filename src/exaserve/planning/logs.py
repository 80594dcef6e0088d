"""Reads what a vLLM or SGLang start-up log says about memory, and sets it beside a prediction.

Logs differ by version, and a file may hold only some lines: every figure is optional. "GB" in these logs is GiB. With
several ranks the first rank's figures count for weights, the smallest for the cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from exaserve.planning.engine import EngineVersion, parse_engine
from exaserve.planning.memory import GIB, MemoryPlan

__all__ = ["Comparison", "LogFacts", "compare", "read_log"]

LINES_MAX = 2_000_000
LINE_CHARS_MAX = 20_000
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"

_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "total_gib": (rf"total_gpu_memory\s*\(?\s*{_NUMBER}\s*GiB", rf"total_gpu_memory\s+{_NUMBER}\s*GiB"),
    "utilization": (
        rf"gpu_memory_utilization\s*\(\s*{_NUMBER}\)",
        rf"gpu[_-]memory[_-]utilization['\"]?\s*[:= ]\s*{_NUMBER}",
        rf"mem_fraction_static\s*=\s*{_NUMBER}",
    ),
    "weights_gib": (
        rf"[Mm]odel loading took {_NUMBER} Gi?B",
        rf"Loading model weights took {_NUMBER} Gi?B",
        rf"model weights take\s+{_NUMBER}\s*GiB",
        rf"Load weight end\..*?mem usage={_NUMBER} GB",
        rf"Actual usage is {_NUMBER} GiB for weight",
    ),
    "non_torch_gib": (
        rf"non_torch_memory\s+(?:takes\s+)?{_NUMBER}\s*GiB",
        rf"{_NUMBER} GiB for non-torch memory",
    ),
    "activation_gib": (
        rf"PyTorch activation peak memory\s+(?:takes\s+)?{_NUMBER}\s*GiB",
        rf"{_NUMBER} GiB for peak activation",
    ),
    "kv_gib": (
        rf"Available KV cache memory:\s*{_NUMBER} GiB",
        rf"reserved for KV Cache is {_NUMBER}\s*GiB",
        rf"available_kv_cache_memory\s+{_NUMBER}\s*GiB",
    ),
    "graphs_gib": (
        rf"Estimated CUDA graph memory: {_NUMBER} GiB total",
        rf"Graph capturing finished in [\d.]+ secs, took {_NUMBER} GiB",
        rf"{_NUMBER} GiB for CUDAGraph memory",
    ),
    "tokens": (
        rf"GPU KV cache size: {_NUMBER} tokens",
        rf"KV Cache is allocated\. #tokens: {_NUMBER}",
        rf"max_total_num_tokens={_NUMBER}",
    ),
    "blocks": (rf"# (?:GPU|CUDA|cuda) blocks: {_NUMBER}",),
    "length": (
        rf"Maximum concurrency for {_NUMBER} tokens per request",
        rf"max[_-](?:model|seq)[_-]len['\"]?\s*[:= ]\s*{_NUMBER}",
        rf"Using max model len {_NUMBER}",
        rf"context_len(?:gth)?\s*=\s*{_NUMBER}",
    ),
    "concurrency": (rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x",),
    "needed_gib": (rf"{_NUMBER} GiB KV cache is needed",),
    "longest": (
        rf"estimated maximum model length is {_NUMBER}",
        rf"maximum number of tokens that can be stored in KV cache \({_NUMBER}\)",
    ),
    "tp": (
        rf"tensor[_-]parallel[_-]size['\"]?\s*[:= ]\s*{_NUMBER}",
        rf"\btp_size\s*=\s*{_NUMBER}",
        rf"--tp(?:-size)?[ =]{_NUMBER}",
    ),
    "pp": (rf"pipeline[_-]parallel[_-]size['\"]?\s*[:= ]\s*{_NUMBER}", rf"\bpp_size\s*=\s*{_NUMBER}"),
    "seqs": (rf"max[_-]num[_-]seqs['\"]?\s*[:= ]\s*{_NUMBER}", rf"max_running_requests\s*=\s*{_NUMBER}"),
    "batched_tokens": (
        rf"max[_-]num[_-]batched[_-]tokens['\"]?\s*[:= ]\s*{_NUMBER}",
        rf"chunked_prefill_size\s*=\s*{_NUMBER}",
    ),
    "block_size": (rf"block[_-]size['\"]?\s*[:= ]\s*{_NUMBER}",),
}
_SMALLEST = ("kv_gib", "tokens", "blocks")
_MODEL = (
    r"model_path='([^']+)'",
    r"Initializing a.{0,30}LLM engine.*?model='([^']+)'",
    r"'model_tag': '([^']+)'",
    r"\bmodel='([^']+)'",
    r"'model': '([^']+)'",
    r"vllm serve\s+([\w./-]+)",
    r"--model(?:-path)?[ =]([\w./-]+)",
    r"Starting to load model ([\w./-]+?)\.*(?:\s|$)",
)
_VERSION = (
    r"LLM engine \(v(\d+\.\d+[\w.]*)\)",
    r"vLLM API server version v?(\d+\.\d+[\w.]*)",
    r"version (\d+\.\d+\.\d+[\w.]*)\s*$",
    r"\bvllm[ =]+v?(\d+\.\d+\.\d+)",
)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log states; None where it does not. Memory in GiB per rank."""

    engine: str = "vllm"
    version: EngineVersion = field(default_factory=EngineVersion)
    model: str | None = None
    quantization: str | None = None
    kv_fp8: bool = False
    expert_parallel: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)

    def get(self, name: str) -> float | None:
        return self.figures.get(name)

    def whole(self, name: str) -> int:
        """A count, 0 where the log does not state it."""
        return int(self.figures.get(name, 0))

    @property
    def tokens(self) -> int | None:
        """KV cache in tokens, from the line that states it or from blocks."""
        if "tokens" in self.figures:
            return int(self.figures["tokens"])
        if "blocks" in self.figures:
            return int(self.figures["blocks"]) * (self.whole("block_size") or 16)
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity: the log's figure, the prediction, and by how much the prediction is off (share of the log's)."""

    name: str
    unit: str
    logged: float
    predicted: float

    @property
    def deviation(self) -> float:
        return self.predicted / self.logged - 1.0 if self.logged else 0.0


def read_log(text: str) -> LogFacts:
    """The facts of a start-up log. Never raises on a log that says nothing: then every figure is missing."""
    lines = [line[:LINE_CHARS_MAX] for line in text.splitlines()[:LINES_MAX]]
    figures: dict[str, float] = {}
    compiled = {name: [re.compile(p) for p in patterns] for name, patterns in _PATTERNS.items()}
    for name, patterns in compiled.items():
        value = _figure(lines, patterns, smallest=name in _SMALLEST)
        if value is not None:
            figures[name] = value
    flat = "\n".join(lines)
    model = next((m[1] for p in _MODEL if (m := re.search(p, flat))), None)
    sglang = "sglang" in flat.lower() or "KV Cache is allocated. #tokens" in flat
    stated = next((m[1] for p in _VERSION if (m := re.search(p, flat, re.MULTILINE))), "")
    old = bool(re.search(r"# (GPU|CUDA|cuda) blocks|model_runner\.py|PyTorch activation peak memory", flat))
    label = "sglang" if sglang else f"{'V0 ' if old and not _is_v1(flat, stated) else ''}{stated}".strip()
    quantization = re.search(r"quantization['\"]?\s*[:=]\s*'?([a-z_0-9-]+)'?", flat)
    return LogFacts(
        engine="sglang" if sglang else "vllm",
        version=parse_engine(label),
        model=model,
        quantization=quantization[1] if quantization and quantization[1] != "None" else None,
        kv_fp8=bool(re.search(r"kv[_-]cache[_-]dtype['\"]?\s*[:= ]\s*'?fp8", flat)),
        expert_parallel=bool(
            re.search(r"enable[_-]expert[_-]parallel['\"]?\s*[:=]\s*True|--enable-expert-parallel", flat)
        ),
        figures=figures,
    )


def _is_v1(flat: str, version: str) -> bool:
    if "V1 LLM engine" in flat or "gpu_worker.py" in flat or "gpu_model_runner.py" in flat:
        return True
    parts = version.split(".")
    return len(parts) > 1 and parts[1].isdigit() and int(parts[1]) >= 11


def _figure(lines: list[str], patterns: list[re.Pattern[str]], *, smallest: bool) -> float | None:
    for pattern in patterns:
        values = []
        for line in lines:
            found = pattern.search(line)
            if found:
                try:
                    value = float(found[1].replace(",", ""))
                except ValueError:
                    continue
                if not math.isfinite(value):
                    continue
                values.append(value)
                if not smallest:
                    break
        if values:
            return min(values) if smallest else values[0]
    return None


def compare(facts: LogFacts, predicted: MemoryPlan, given: MemoryPlan | None = None) -> list[Comparison]:
    """Sets a log beside the prediction, quantity by quantity.

    Args:
        given: the plan with the log's own weights and overheads put in: what remains is the arithmetic of the cache.
    """
    stage = predicted.stages[0]
    inside = stage.graphs if stage.graphs_inside else 0.0
    pairs = [
        ("weights", "GiB", facts.get("weights_gib"), stage.weights / GIB),
        ("outside PyTorch", "GiB", facts.get("non_torch_gib"), stage.non_torch / GIB),
        # Where the engine counts its graphs, the peak that it prints has them in it.
        ("activation peak", "GiB", facts.get("activation_gib"), (stage.activation + inside) / GIB),
        ("memory for KV cache", "GiB", facts.get("kv_gib"), min(s.kv for s in predicted.stages) / GIB),
        ("CUDA graphs", "GiB", facts.get("graphs_gib"), stage.graphs / GIB),
        ("KV cache", "tokens", facts.tokens, predicted.tokens),
        ("longest that would start", "tokens", facts.get("longest"), predicted.result.max_model_len),
        ("concurrency", "x", facts.get("concurrency"), predicted.result.concurrency),
    ]
    if given is not None:
        pairs.append(("KV cache from the log's own memory", "tokens", facts.tokens, given.tokens))
    return [Comparison(name, unit, float(logged), float(value)) for name, unit, logged, value in pairs if logged]
