"""The public measurements that are most like a configuration, with what the model says of each. PURE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exaserve.models.architecture import Architecture
from exaserve.perfmodel.constants import SpeedSetup, generation, release_of
from exaserve.perfmodel.fitted import FITTED
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.measured import FIT, Measurement, Predictor
from exaserve.perfmodel.work import kernel_of

__all__ = ["NEAREST", "Evidence", "NearRow", "evidence"]

NEAREST = 5
"""Measurements named."""

_OTHER_GENERATION, _OTHER_CARD = 2.0, 0.6
_OTHER_WIDTH, _OTHER_KERNEL = 1.2, 0.6
_OTHER_KIND = 4.0
_OTHER_ENGINE, _OTHER_RELEASE = 0.6, 0.15
_PER_DOUBLE_SIZE, _PER_DOUBLE_RANKS, _PER_DOUBLE_LOAD = 0.4, 0.5, 0.1
"""How far apart two configurations are: a different card of one generation counts like ranks by a little more than a
factor of two, and so on. They only order the list; no prediction depends on them."""

_BITS = {"bf16": 16, "fp8": 8, "fp8-block": 8, "int8": 8, "int8-weights": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}


@dataclass(frozen=True, slots=True)
class NearRow:
    """One measurement.

    Attributes:
        distance: 0 for the same configuration and load. source: who published it, and where.
        published / predicted: what was measured, and what the model says: "token", "first" and "among few" (first token
            among up to four clients) and "static" in seconds, "offline" in output tokens per second.
    """

    measurement: Measurement
    distance: float
    published: Mapping[str, float]
    predicted: Mapping[str, float]
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is public about a configuration.

    Attributes:
        card_rows: measurements of the card. like_rows: of them those of the same format and kind of model.
        nearest: the nearest of each of the most alike configurations, the nearest first.
    """

    card_rows: int
    like_rows: int
    nearest: tuple[NearRow, ...]


def evidence(
    rows: Sequence[Measurement],
    sources: Mapping[str, str],
    setup: SpeedSetup,
    arch: Architecture,
    load: tuple[float, float, float],
    count: int = NEAREST,
) -> Evidence:
    """What the table of measurements has on a configuration.

    Args:
        rows: of the table; those that the model is not fitted to are left out. sources: texts by key.
        load: sequences in the batch, prompt and output tokens of what is planned.
    """
    predictor = Predictor()
    kept = [m for m in rows if m.use == FIT]
    card = setup.card.whole
    mixture = bool(arch.facts.experts)
    same = [m for m in kept if m.card == card]
    alike = [m for m in same if kernel_of(m.format) == setup.kernel and predictor.is_mixture(m) == mixture]
    best: dict[str, tuple[float, Measurement]] = {}
    apart: dict[tuple[str, str], float] = {}
    for m in kept:
        key = (m.group, m.version)
        if key not in apart:
            apart[key] = _distance(m, setup, arch, predictor)
        away = apart[key] + _load_apart(m, load)
        if m.group not in best or away < best[m.group][0]:
            best[m.group] = away, m
    ordered = sorted(best.values(), key=lambda pair: pair[0])[:count]
    near = (
        NearRow(m, away, published, {k: v for k, v in predictor.predict(m, FITTED).items() if k in published}, text)
        for away, m in ordered
        for published, text in [(m.targets(), sources.get(m.source, m.source))]
    )
    return Evidence(len(same), len(alike), tuple(near))


def _doubles(one: float, other: float) -> float:
    return abs(math.log2(one / other)) if one > 0.0 and other > 0.0 else 1.0


def _distance(m: Measurement, setup: SpeedSetup, arch: Architecture, predictor: Predictor) -> float:
    card, kernel = find_hardware(m.card), kernel_of(m.format)
    away = 0.0
    if card.name != setup.card.whole:
        away += _OTHER_CARD + (_OTHER_GENERATION if generation(card) != generation(setup.card) else 0.0)
        away += _PER_DOUBLE_SIZE * _doubles(card.bandwidth_gb_s, setup.card.bandwidth_gb_s)
    if kernel != setup.kernel:
        away += _OTHER_KERNEL if _BITS[kernel] == _BITS[setup.kernel] else _OTHER_WIDTH
    other = predictor.architecture(m)
    if bool(other.facts.experts) != bool(arch.facts.experts):
        away += _OTHER_KIND
    away += _PER_DOUBLE_SIZE * _doubles(other.active_parameters, arch.active_parameters)
    away += 0.5 * _PER_DOUBLE_SIZE * _doubles(other.parameters, arch.parameters)
    away += _PER_DOUBLE_RANKS * _doubles(m.tp, setup.tp)
    if m.engine != setup.engine:
        away += _OTHER_ENGINE
    elif release_of(m.engine, m.release) != setup.release:
        away += _OTHER_RELEASE
    return away


def _load_apart(m: Measurement, load: tuple[float, float, float]) -> float:
    batch, prompt, output = load
    # A prompt alone, and all requests at once, are other loads than a number of clients.
    apart = 0.0 if m.kind == "clients" else 0.5
    apart += _PER_DOUBLE_LOAD * _doubles(max(1.0, m.clients), max(1.0, batch))
    apart += _PER_DOUBLE_LOAD * (_doubles(m.prompt, prompt) + 0.5 * _doubles(m.output, output))
    return apart
