"""From an engine's exposition to the fields of a :class:`~exaserve.domain.replica.Report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exaserve.domain.replica import ReplicaId, Report
from exaserve.engines import sglang, vllm
from exaserve.engines.base import Engine, Source
from exaserve.engines.exposition import families, label, samples, search_samples
from exaserve.engines.others import LLAMACPP, TENSORRT_LLM, TGI, TRT_BLOCK_TOKENS, TRT_BLOCKS

__all__ = ["ENGINES", "Signals", "detect", "parse"]

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (vllm.VLLM, sglang.SGLANG, TENSORRT_LLM, LLAMACPP, TGI)}
"""In the order in which "auto" tries them: adapters repeat TGI's names beside vLLM's, whose own are better."""

_COUNTS = frozenset({"running", "waiting", "kv_tokens_max"})
_KV_USE_MAX = 1.05
"""Rounding and blocks in flight may pass 1 a little; more is garbage (a percentage, say)."""
_UNKNOWN_EXPECTED = ("running", "waiting", "kv_use")


@dataclass(frozen=True, slots=True)
class Signals:
    """What one exposition says.

    Attributes:
        engine: key of :data:`ENGINES`, "" where no engine's metrics were found.
        values: signal → value, named and typed as in ``Report``. An unknown signal has no key.
        missing: signals that this engine should have and did not give, sorted.
    """

    engine: str
    values: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def report(self, replica: ReplicaId, seq: int, taken_at: float) -> Report:
        return Report(replica=replica, seq=seq, taken_at=taken_at, missing=self.missing, **self.values)


def detect(exposition: bytes) -> str:
    """Key of the engine whose metric names occur, "" if none does."""
    for engine in ENGINES.values():
        for prefix in engine.prefixes:
            if b"\n" + prefix in exposition or exposition.startswith(prefix) or b"# TYPE " + prefix in exposition:
                return engine.name
    return ""


def parse(exposition: bytes, engine: str = "auto") -> Signals:
    """Reads the signals of ``engine`` out of ``exposition``. Never raises, whatever the bytes.

    A broken line loses its own signal only. A signal with one bad series among several is unknown: the sum of the rest
    would say "less load", which draws traffic.

    Args:
        engine: key of :data:`ENGINES`, "emulator", or "auto" to find out (an unknown name counts as "auto").
    """
    name = _ALIASES.get(engine, engine)
    if name not in ENGINES:
        name = detect(exposition)
    if not name:
        return Signals("", {}, _UNKNOWN_EXPECTED)
    spec = ENGINES[name]
    text = _Text(exposition, _WANTED[name])
    values: dict[str, Any] = {}
    for signal, sources in spec.sources.items():
        required = signal in spec.expected
        value = _first(text, sources, spec.copied_over, required=required)
        if signal == "kv_use":
            value = min(value, 1.0) if value is not None and value <= _KV_USE_MAX else None
        if value is not None:
            values[signal] = int(value) if signal in _COUNTS else value
    _EXTRAS.get(name, _nothing)(text, values)
    missing = tuple(sorted(signal for signal in spec.expected if signal not in values))
    return Signals(name, values, missing)


class _Text:
    """An exposition with its wanted families found; others are searched for only if need be."""

    __slots__ = ("_exposition", "_families", "_typed")

    def __init__(self, exposition: bytes, wanted: frozenset[bytes]) -> None:
        self._exposition = exposition
        self._families = families(exposition, wanted)
        self._typed = b"# TYPE " in exposition

    def lines(self, name: bytes, *, required: bool) -> bytes:
        """Lines with samples of ``name``. Without a ``# TYPE`` line only a required metric is worth a search."""
        found = self._families.get(name)
        if found is None:
            found = search_samples(self._exposition, name) if required or not self._typed else b""
            self._families[name] = found
        return found


def _first(text: _Text, sources: tuple[Source, ...], copied_over: tuple[bytes, ...], *, required: bool) -> float | None:
    """Value of the first source that gives one."""
    for source in sources:
        value = _combined(text, source, copied_over, required=required)
        if value is not None:
            return value
    return None


def _combined(text: _Text, source: Source, copied_over: tuple[bytes, ...], *, required: bool) -> float | None:
    """One figure of all the series of ``source``; None where there is none or one of them is unusable."""
    per_rank: dict[bytes, float] = {}
    for labels, value in samples(text.lines(source.name, required=required), source.name):
        if source.label is not None and label(labels, source.label[0]) != source.label[1]:
            continue
        if value is None:
            return None
        rank = _without(labels, copied_over) if copied_over else labels
        per_rank[rank] = max(value, per_rank.get(rank, 0.0))
    if not per_rank:
        return None
    return max(per_rank.values()) if source.combine == "max" else sum(per_rank.values())


def _without(labels: bytes, names: tuple[bytes, ...]) -> bytes:
    return b",".join(pair for pair in labels.split(b",") if pair.split(b"=", 1)[0].strip() not in names)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 15 else None


def _vllm_extras(text: _Text, values: dict[str, Any]) -> None:
    tokens = 0
    for labels, _ in samples(text.lines(vllm.CACHE_INFO, required=True), vllm.CACHE_INFO):
        own = _whole(label(labels, b"kv_cache_size_tokens"))
        if not own:
            own = (_whole(label(labels, b"num_gpu_blocks")) or 0) * (_whole(label(labels, b"block_size")) or 0)
        tokens += own
    if tokens:
        values["kv_tokens_max"] = tokens
    awake = [
        value
        for labels, value in samples(text.lines(vllm.SLEEP_STATE, required=False), vllm.SLEEP_STATE)
        if value is not None and label(labels, b"sleep_state") == "awake"
    ]
    if awake:
        values["asleep"] = min(awake) < 0.5
    newest, adapters = -1.0, b""
    for labels, value in samples(text.lines(vllm.LORA_INFO, required=False), vllm.LORA_INFO):
        if value is not None and value > newest:
            newest, adapters = value, labels
    if newest >= 0.0:
        names = {
            name.strip()
            for key in (b"running_lora_adapters", b"waiting_lora_adapters")
            for name in (label(adapters, key) or "").split(",")
        }
        values["loras"] = tuple(sorted(names - {""}))


def _sglang_extras(text: _Text, values: dict[str, Any]) -> None:
    if "kv_tokens_max" in values:
        return
    tokens: dict[bytes, int] = {}
    for labels, _ in samples(text.lines(sglang.CACHE_INFO, required=False), sglang.CACHE_INFO):
        rank = _without(labels, sglang.SGLANG.copied_over)
        tokens[rank] = (_whole(label(labels, b"num_pages")) or 0) * (_whole(label(labels, b"page_size")) or 0)
    if total := sum(tokens.values()):
        values["kv_tokens_max"] = total


def _trt_extras(text: _Text, values: dict[str, Any]) -> None:
    blocks = _first(text, TRT_BLOCKS, (), required=False)
    per_block = _first(text, TRT_BLOCK_TOKENS, (), required=False)
    if blocks and per_block:
        values["kv_tokens_max"] = int(blocks * per_block)


def _nothing(_text: _Text, _values: dict[str, Any]) -> None:
    """Most engines have no more to say."""


_EXTRAS = {"vllm": _vllm_extras, "sglang": _sglang_extras, "trtllm": _trt_extras}
_ALIASES = {"emulator": "vllm", "llama.cpp": "llamacpp", "tensorrt-llm": "trtllm"}
_WANTED: dict[str, frozenset[bytes]] = {
    name: frozenset(
        [source.name for sources in engine.sources.values() for source in sources]
        + [vllm.CACHE_INFO, vllm.LORA_INFO, vllm.SLEEP_STATE, sglang.CACHE_INFO]
        + [source.name for source in TRT_BLOCKS + TRT_BLOCK_TOKENS]
    )
    for name, engine in ENGINES.items()
}
