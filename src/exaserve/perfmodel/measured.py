"""Public measurements as the table in ``perfmodel/data`` has them, and what the model says of each. PURE.

A measurement is a configuration (model, format, card, ranks, engine) under a load, with what was published of it. The
kinds of load:

- ``clients``: a fixed number of clients (closed loop); time per token and to the first token.
- ``first``: one prompt alone in the engine, without a server, up to its first token.
- ``offline``: all requests queued at once; output tokens per second of one replica.
- ``burst``: the same through a server that streams.
- ``static``: a batch that begins and ends together; its duration.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.models.architecture import Architecture
from exaserve.models.catalogue import model_from_name
from exaserve.perfmodel.closed_loop import closed_loop, offline_tokens_s, static_batch_s
from exaserve.perfmodel.constants import SpeedSetup, constant, factors, parts, setup_of
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.profile import EngineProfile
from exaserve.perfmodel.roofline import cache_tokens, step_times
from exaserve.perfmodel.work import KV_BYTES, Work, work_of

__all__ = ["Measurement", "Predictor", "parse_measurements"]

FIT = "fit"
"""``use`` of a measurement that the model is fitted to; any other text says why it is not."""

SEQUENCES = {"trtllm": 2048, "vllm": 1024, "sglang": 2048, "llamacpp": 1, "other": 256}
"""Sequences that an engine holds at once where a benchmark's source does not say."""

SERVED = ("clients", "burst")
"""Kinds of load that came through a server."""

UNQUEUED = 4.0
"""Clients up to which a first token says what prompts cost, and not how long they wait for each other."""

PIPELINED_TOKENS = 512
"""Tokens of the parts in which llama.cpp passes a prompt from card to card."""

BUDGET = 8192
"""Tokens a step where the source does not say."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table; -1 is a figure that was not published.

    Attributes:
        format / kv: of the weights (a name of :data:`exaserve.models.formats.FORMATS`) and of the cache.
        pp: cards that layers are spread over, one after the other.
        ep: ranks that experts are spread over whole, 1 where they are cut. dp: ranks with attention of their own.
        drafts: tokens drafted a step.
        lengths: whether requests are of one length ("even") or differ ("spread").
        clients: how many requests are under way at once; for ``offline`` how many there are (-1: without end).
        prompt / output: mean tokens.
        token_ms / first_ms / tokens_s / latency_ms: what was published.
        use: :data:`FIT`, or why the figure says nothing of an engine as people run it. source: key of sources.csv.
    """

    model: str
    format: str
    kv: str
    card: str
    tp: int
    pp: int
    ep: int
    dp: int
    drafts: int
    engine: str
    version: str
    kind: str
    lengths: str
    clients: float
    prompt: float
    output: float
    token_ms: float
    first_ms: float
    tokens_s: float
    latency_ms: float
    use: str
    source: str

    @property
    def group(self) -> str:
        """Configurations that one machine and engine ran: what is left out together in cross-validation."""
        return "|".join((self.model, self.card, str(self.tp), self.format, self.engine))

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".") if part.isdigit())

    def targets(self) -> dict[str, float]:
        """What was published, by target: ``token`` and ``first`` and ``static`` in seconds, ``offline`` in tokens/s."""
        found = {"token": self.token_ms / 1e3, "offline": self.tokens_s, "static": self.latency_ms / 1e3}
        # With many clients the first token of a benchmark mostly waits for other prompts that began with it.
        if self.clients <= UNQUEUED:
            found["first" if self.clients == 1.0 else "among few"] = self.first_ms / 1e3
        return {name: value for name, value in found.items() if value > 0.0}


def parse_measurements(lines: Iterable[str]) -> list[Measurement]:
    """Reads the table (CSV with a header of :class:`Measurement`'s attributes).

    Raises:
        ConfigError: a column is missing or a figure is none; the message names the line.
    """
    found = []
    reader = csv.DictReader(lines)
    for row in reader:
        values: dict[str, Any] = {}
        for each in fields(Measurement):
            text = row.get(each.name)
            if text is None:
                raise ConfigError(f"line {reader.line_num}: no column {each.name!r}", param=each.name)
            try:
                values[each.name] = {"int": int, "float": float}.get(str(each.type), str)(
                    text or ("-1" if each.type == "float" else text)
                )
            except ValueError:
                raise ConfigError(
                    f"line {reader.line_num}: {each.name}: {text!r} is no number", param=each.name
                ) from None
        found.append(Measurement(**values))
    return found


class Predictor:
    """What the model says of measurements; what does not depend on the constants is worked out once for each."""

    def __init__(self) -> None:
        self._architectures: dict[tuple[str, str], Architecture] = {}
        self._places: dict[Measurement, tuple[SpeedSetup, Work, dict[str, tuple[str, ...]], int]] = {}

    def is_mixture(self, m: Measurement) -> bool:
        """Whether the model has routed experts."""
        return bool(self.architecture(m).facts.experts)

    def setup(self, m: Measurement) -> SpeedSetup:
        return self._place(m)[0]

    def names(self, m: Measurement) -> set[str]:
        """The constants that predictions of this measurement depend on."""
        used = {name for names in self._place(m)[2].values() for name in names}
        used |= {_meeting(m)} if m.kind == "clients" else set()
        return used | ({"pipelined"} if m.pp > 1 else set())

    def architecture(self, m: Measurement) -> Architecture:
        key = (m.model, m.format)
        arch = self._architectures.get(key)
        if arch is None:
            arch = self._architectures[key] = model_from_name(m.model, m.format)
        return arch

    def _place(self, m: Measurement) -> tuple[SpeedSetup, Work, dict[str, tuple[str, ...]], int]:
        place = self._places.get(m)
        if place is None:
            arch = self.architecture(m)
            work = work_of(arch, m.tp, m.ep, KV_BYTES[m.kv])
            setup = setup_of(
                find_hardware(m.card),
                arch,
                m.tp,
                whole_experts=m.ep > 1,
                engine=m.engine,
                version=m.release,
                drafts=m.drafts,
            )
            # TensorRT-LLM takes nine tenths of what the weights leave, the others leave a tenth of the whole card.
            left = m.engine == "trtllm"
            held = cache_tokens(setup.card, arch, work, m.tp, 1, BUDGET, 256, 1.0 if left else 0.9)
            held = int(0.9 * held) if left else held
            # A run that was measured did hold its requests, however near its memory's limit.
            place = self._places[m] = setup, work, parts(setup), max(held, 2 * int(m.prompt + m.output))
        return place

    def profile(self, m: Measurement, values: Mapping[str, float]) -> EngineProfile:
        """Step times and cache of the replica that was measured, with the constants ``values``."""
        setup, work, products, held = self._place(m)
        made = step_times(
            setup.card, work, factors(products, values), m.tp, 1, m.dp, m.drafts, streamed=m.kind in SERVED
        )
        return replace(made, kv_tokens_max=held, max_num_seqs=SEQUENCES[m.engine], token_budget=BUDGET)

    def predict(self, m: Measurement, values: Mapping[str, float]) -> dict[str, float]:
        """What the model says of each published figure, as :meth:`Measurement.targets` has them."""
        p = self.profile(m, values)
        published = m.targets()
        out = {}
        if m.kind == "first":
            out["first"] = p.prefill_s(m.prompt)
            if m.pp > 1:
                out["first"] *= _pipelined(m, constant("pipelined", values))
        elif m.kind == "clients":
            clients = max(1.0, m.clients / m.dp)
            loop = closed_loop(p, clients, m.prompt, m.output, constant(_meeting(m), values))
            out["token"], out["first"], out["among few"] = loop.token_s, loop.first_s, loop.first_s
        if "offline" in published:
            requests = m.clients / m.dp if m.clients > 0.0 else math.inf
            out["offline"] = m.dp * offline_tokens_s(p, m.prompt, m.output, requests, m.lengths == "spread")
        if "static" in published:
            out["static"] = static_batch_s(p, m.clients, m.prompt, m.output)
        return out


def _meeting(m: Measurement) -> str:
    return f"meeting/{m.engine}/{m.lengths}"


def _pipelined(m: Measurement, gain: float) -> float:
    """Share of one card's time that a prompt takes whose parts pass cards one after the other, several at a time."""
    parts = max(1, round(m.prompt / PIPELINED_TOKENS))
    ideal = parts * m.pp / (parts + m.pp - 1)
    return 1.0 / (1.0 + gain * (ideal - 1.0))
