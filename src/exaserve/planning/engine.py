"""Engines and their versions, as far as memory depends on them: batch defaults, profiling, kernels, definitions.

What changed when is read from vLLM's public source and logs; each rule names its effect, so that a plan can be made for
the version that will run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exaserve.domain.errors import ConfigError
from exaserve.models import WeightFormat
from exaserve.perfmodel import Hardware

__all__ = ["ENGINES", "BatchLimits", "EngineVersion", "check_card", "mxfp4_padding", "named_engine", "parse_engine"]

EngineKind = Literal["vllm", "sglang", "trtllm"]

ENGINES: Mapping[EngineKind, str] = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""Engines that can be planned for, as they call themselves. TensorRT-LLM's speeds are known and its memory is not:
vLLM's sum stands for it."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Newest vLLM minor release at the start of a month; (year, month) -> minor.
_RELEASES = (
    ((2024, 0), 3), ((2024, 5), 4), ((2024, 7), 5), ((2024, 9), 6), ((2025, 0), 6), ((2025, 1), 7), ((2025, 3), 8),
    ((2025, 6), 9), ((2025, 8), 10), ((2025, 10), 11), ((2025, 11), 12), ((2026, 0), 13), ((2026, 1), 15),
    ((2026, 2), 16), ((2026, 3), 18), ((2026, 4), 20), ((2026, 5), 21), ((2026, 6), 24), ((2026, 7), 26),
)  # fmt: skip
LATEST = 32
GRAPHS_COUNTED = 21
"""vLLM's minor release from which its estimate of the CUDA graphs is taken out of the cache's memory by default
(``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS``), and the default share of memory is 0.92 instead of 0.90."""

GRAPHS_COUNTED_ROCM = 26
"""The same for AMD's cards, whose graphs the profiler left alone before. Intel's are left alone still."""

PATCH_LAST = 99


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """An engine and its version.

    Attributes:
        name: one of :data:`ENGINES`.
        generation: 0 for vLLM's old engine ("V0"), 1 for today's.
        minor / patch: of vLLM ``0.minor.patch``.
        release: numbers of another engine's release, () for its newest.
        stated: whether the caller gave a version, or the newest known is assumed.
    """

    name: EngineKind = "vllm"
    generation: int = 1
    minor: int = LATEST
    patch: int = 0
    stated: bool = False
    release: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of a stated release, for step times; () where the newest is meant."""
        return (0, self.minor, self.patch) if self.name == "vllm" and self.stated else self.release

    @property
    def label(self) -> str:
        if self.name != "vllm":
            return " ".join((ENGINES[self.name], ".".join(map(str, self.release)))).rstrip()
        patch = "x" if self.patch == PATCH_LAST else str(self.patch)
        return f"vLLM 0.{self.minor}.{patch}" + (" (V0 engine)" if self.generation == 0 else "")

    @property
    def hybrid_caches(self) -> bool:
        """Whether layers with a window take less cache than layers without: since 0.10, in the V1 engine."""
        return self.generation == 1 and self.minor >= 10

    @property
    def tokens_by_concurrency(self) -> bool:
        """Since 0.20 a hybrid's printed size is its concurrency times the longest request, before it was blocks over
        groups.
        """
        return self.minor >= 20

    @property
    def state_blocks(self) -> int:
        """Blocks a sequence holds of each group of states: two since states are cached at block boundaries."""
        return 2 if self.minor >= 17 else 1

    @property
    def expands_latents(self) -> bool:
        """Before 0.7.1 latent attention was cached like any other, with heads padded to 256."""
        return self.generation == 0 and (self.minor, self.patch) < (7, 1)

    @property
    def pads_latents(self) -> bool:
        """V0 from 0.7.3 on rounds a token's latent vector up to 256 bytes (576 values to 640)."""
        return self.generation == 0 and (self.minor, self.patch) >= (7, 3)

    @property
    def logit_copies(self) -> float:
        """Size of the sampler's working set at start-up, in copies of the 32-bit logits of a full batch.

        Fitted to public logs: 9.65 with a sort of the whole vocabulary (V0 and V1 up to 0.15), 4.6 since the sort is
        a kernel.
        """
        return 9.65 if self.minor < 16 else 4.6

    @property
    def workspace_gib(self) -> float:
        """Attention workspace that is allocated before the profile, GiB.

        The log of 0.26 that it was fitted to as well has the CUDA graphs in its peak; those are counted apart now.
        """
        return 0.38 if 16 <= self.minor < GRAPHS_COUNTED else 0.0

    @property
    def utilization_default(self) -> float:
        """Share of a card's memory that the engine takes where nothing is said."""
        if self.name == "sglang":
            return 0.88
        return 0.92 if self.generation == 1 and self.minor >= GRAPHS_COUNTED else 0.9

    def counts_graphs(self, hardware: Hardware) -> bool:
        """Whether start-up takes the CUDA graphs out of the cache's memory on such cards, unless told not to."""
        if self.name == "sglang" or self.generation == 0:
            return False
        if hardware.capability:
            return self.minor >= GRAPHS_COUNTED
        return hardware.name.startswith("MI") and self.minor >= GRAPHS_COUNTED_ROCM


def parse_engine(text: str) -> EngineVersion:
    """An engine version as people and logs write it: ``0.10.2``, ``v0.7.x``, ``V0 (Dec 2024)``, ``V1 (Jul 2025)``,
    ``SGLang (Nov 2024)``; "" is the newest vLLM.
    """
    lower = text.strip().lower()
    if not lower:
        return EngineVersion()
    if "sglang" in lower:
        return EngineVersion("sglang", stated=True)
    number = re.search(r"(?<![\d.])0\.(\d{1,3})(?:\.(\d{1,3}))?", lower)
    date = re.search(r"([a-z]{3})[a-z]*\.? +(20\d\d)", lower)
    generation = 0 if re.search(r"\bv0\b(?!\.)", lower) else 1
    minor, patch = LATEST, 0
    if number:
        minor = int(number[1])
        # "0.7.x" and "0.7" are taken as the last patch of that release.
        patch = int(number[2]) if number[2] else PATCH_LAST
        if minor < 8 and "v1" not in lower:
            generation = 0
    elif date and date[1] in _MONTHS:
        when = (int(date[2]), _MONTHS.index(date[1]))
        minor = max((release for start, release in _RELEASES if start <= when), default=3)
    elif year := re.search(r"\b(20\d\d)\b", lower):
        minor = max((release for start, release in _RELEASES if start <= (int(year[1]), 6)), default=3)
    elif generation == 0:
        minor = 6
    elif re.search(r"\bv1\b", lower):
        minor = 10  # "V1" is said only of releases that still had V0
    return EngineVersion("vllm", generation, minor, patch, stated=True)


def named_engine(name: str, version: str = "") -> EngineVersion:
    """The version ``version`` of the engine ``name``; "" is its newest.

    Raises:
        ConfigError: no such engine is planned for, or the text has no version in it.
    """
    if name == "vllm":
        return parse_engine(version)
    for known in ENGINES:
        if name == known:
            numbers = re.search(r"\d+(\.\d+)*", version)
            if version and not numbers:
                raise ConfigError(f"--engine-version {version}: give numbers, such as 1.1.0.", param="engine_version")
            release = tuple(map(int, numbers[0].split("."))) if numbers else ()
            return EngineVersion(known, stated=bool(release), release=release)
    why = f"known: {', '.join(ENGINES)}"
    if re.sub(r"[-_.]", "", name).startswith(("llamacpp", "llamaserver")):
        why = (
            "llama.cpp lays its memory out in its own way, which is not modelled here, and its figures are of one "
            "request at a time: start llama-server once, read its log, and calibrate it"
        )
    raise ConfigError(f"--engine {name}: no memory model of that engine; {why}.", param="engine")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``max_num_batched_tokens`` and ``max_num_seqs``: what start-up profiles with."""

    tokens: int
    seqs: int

    @staticmethod
    def default(version: EngineVersion, hardware: Hardware, memory_gib: float, max_model_len: int) -> BatchLimits:
        """What the engine chooses when neither is given, for an OpenAI-compatible server."""
        big = memory_gib >= 70 and not hardware.name.startswith("A100")
        if version.name == "sglang":
            return BatchLimits(8192, 2048 if big else 512)
        if version.generation == 0:
            # Prefill is not chunked up to 32,768 tokens of context, and then a batch is at least one whole prompt.
            return BatchLimits(2048 if max_model_len > 32_768 else max(2048, max_model_len), 256)
        if not big:
            return BatchLimits(2048, 256)
        return BatchLimits(8192 if version.minor >= 8 else 2048, 1024 if version.minor >= 9 else 256)


def mxfp4_padding(version: EngineVersion, hardware: Hardware) -> tuple[int, int]:
    """What an expert's own width, and the model's, are rounded up to by the kernel that an engine picks for mxfp4."""
    if hardware.name.startswith(("B200", "B300", "GB", "MI3")):
        return 256, 256
    if hardware.name.startswith(("H100", "H200", "H20", "GH200")) and version.minor >= 11:
        return 64, 256  # Triton
    return 128, 256  # Marlin


_CAPABILITY_LEAST: Mapping[str, float] = {
    "fp8": 7.5,
    "fp8-block": 7.5,
    "fbgemm-fp8": 7.5,
    "int8": 7.5,
    "awq": 7.5,
    "gptq": 7.0,
    "gptq8": 7.5,
    "int4": 7.5,
    "bnb4": 7.0,
    "bnb8": 7.0,
    "mxfp4": 8.0,
    "nvfp4": 8.0,
}
"""Least CUDA compute capability for which engines have kernels (weights widened where the card has no such units); from
vLLM's tables of supported hardware."""


def check_card(fmt: WeightFormat, card: Hardware) -> list[str]:
    """Why an engine has no kernels for weights of a format on a card; empty where it has."""
    least = _CAPABILITY_LEAST.get(fmt.name, 0.0)
    if 0 < card.capability < least:
        why = f"{fmt.name} weights need compute capability {least:g}, the {card.name} has {card.capability:g}"
        return [f"{why}: engines have no kernels for them there"]
    if not card.capability and fmt.precision == "fp8" and card.name.startswith("MI") and not card.fp8_tflops:
        return [f"{fmt.name} weights need an MI300 or later, not the {card.name}"]
    return []
