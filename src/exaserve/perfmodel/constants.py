"""The constants of the performance model: what each means, what to expect of it, and which of them a replica takes.

A constant has a name of parts, the first of which says what it is (:data:`MEANINGS`) and the others for what it holds.
Most factors are a product: of the card's generation, and of corrections for a card, a format or an engine that are 1
until measurements say otherwise. So what was measured of one card helps to predict another of its generation, and an
engine on a new card starts from what it does on others. ``scripts/fit_speed.py`` finds the values
(:mod:`exaserve.perfmodel.fitted`) from the table of public measurements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from exaserve.models.architecture import Architecture
from exaserve.perfmodel.hardware import HARDWARE, Hardware
from exaserve.perfmodel.work import Work, kernel_of

__all__ = [
    "ENGINE_RELEASES",
    "MEANINGS",
    "Factors",
    "Meaning",
    "SpeedSetup",
    "constant",
    "factors",
    "generation",
    "meaning_of",
    "parse_constants",
    "parts",
    "release_of",
    "setup_of",
    "used_parts",
]


@dataclass(frozen=True, slots=True)
class Meaning:
    """A kind of constant.

    Attributes:
        text: what it is, with its unit. expected: its value before anything was measured.
        spread: how far it may be from that, as a standard deviation of its logarithm.
    """

    text: str
    expected: float
    spread: float


MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        "bandwidth": Meaning("share of memory bandwidth that large matrices reach", 0.85, 0.15),
        "bandwidth-card": Meaning("factor on that of one card of the generation", 1.0, 0.07),
        "bandwidth-format": Meaning("factor on that of a format's kernels", 1.0, 0.25),
        "experts": Meaning("share of memory bandwidth that routed experts' kernels reach", 0.7, 0.3),
        "experts-engine": Meaning("factor on that of one engine", 1.0, 0.2),
        "experts-whole": Meaning("factor on that where experts are spread whole", 1.0, 0.15),
        "experts-skew": Meaning("tokens that hit as many experts as one real one would if routing were even", 0.8, 0.3),
        "layer": Meaning(
            "seconds of a layer that are neither reading nor computing: launches, norms, small kernels", 45e-6, 0.4
        ),
        "layer-engine": Meaning("factor on that of an engine with a format on a generation", 1.0, 0.2),
        "layer-release": Meaning("factor on that of a range of the engine's releases", 1.0, 0.2),
        "moe": Meaning("seconds more of a layer with routed experts: routing, gathering, scattering", 30e-6, 0.6),
        "moe-engine": Meaning("factor on that of an engine with a format on a generation", 1.0, 0.3),
        "moe-release": Meaning("factor on that of a range of the engine's releases", 1.0, 0.3),
        "moe-whole": Meaning("factor on that where experts are spread whole", 1.0, 0.3),
        "prompt": Meaning(
            "seconds more of a layer in a step that computes prompts, which is launched kernel by kernel", 100e-6, 0.8
        ),
        "prompt-moe": Meaning("seconds more of a layer with routed experts in such a step", 200e-6, 1.0),
        "admit": Meaning("seconds that a step with new prompts waits for the host", 2e-3, 0.8),
        "mla": Meaning("seconds more of a layer with a latent cache", 20e-6, 0.5),
        "mla-engine": Meaning("factor on that of one engine", 1.0, 0.4),
        "state": Meaning("seconds more of a layer with linear attention or a state space", 20e-6, 0.5),
        "reduce": Meaning("seconds of a small all-reduce over two ranks", 6e-6, 0.4),
        "reduce-ranks": Meaning("factor on that of more ranks", 1.0, 0.25),
        "reduce-engine": Meaning("factor on that of one engine", 1.0, 0.25),
        "reduce-pcie": Meaning("factor on that of cards joined by PCIe alone", 4.0, 0.3),
        "link": Meaning("share of the link's rate that a large all-reduce reaches", 0.4, 0.5),
        "matrix": Meaning("share of the dense matrix rate that large products reach", 0.5, 0.3),
        "matrix-engine": Meaning("factor on that of one engine", 1.0, 0.2),
        "matrix-card": Meaning("factor on that of one card of the generation", 1.0, 0.12),
        "matrix-halves": Meaning("factor on GeForce cards of an engine that adds 16-bit products at 16 bit", 2.0, 0.1),
        "experts-matrix": Meaning("share of the dense matrix rate that routed experts' products reach", 0.3, 0.4),
        "passes": Meaning("times that a token's activations pass through memory in a layer", 12.0, 0.4),
        "expert-passes": Meaning("times that the inputs of a token's experts do", 6.0, 0.6),
        "overlap": Meaning("of computing and reading, how much of the shorter is not hidden by the longer", 0.5, 0.4),
        "sequence": Meaning("seconds per sequence and step: sampling, block tables", 3e-6, 0.7),
        "stream": Meaning("seconds more of each where a server sends every token on its own", 6e-6, 0.7),
        "attention": Meaning("share of memory bandwidth at which cached keys and values are read", 0.6, 0.3),
        "attention-matrix": Meaning("share of the 16-bit matrix rate that a prompt's attention reaches", 0.4, 0.3),
        "attention-matrix-engine": Meaning("factor on that of one engine", 1.0, 0.4),
        "first": Meaning("seconds of every first token besides its steps: HTTP, tokenising, scheduling", 12e-3, 0.5),
        "ranks-wait": Meaning("factor on a step where attention ranks wait for the slowest of them", 1.3, 0.2),
        "accepted": Meaning("tokens that a step of speculative decoding brings", 2.2, 0.3),
        "pipelined": Meaning("of what cards in a row could gain on one prompt, how much they do", 0.5, 0.3),
        "meeting": Meaning(
            "of the prompts of others that a request could meet while it decodes, how many it does", 1.0, 0.15
        ),
    }
)

GEFORCE = frozenset(name for name in HARDWARE if re.fullmatch(r"RTX-\d0[5-9]0.*|RTX-2080-TI", name))
"""Cards that add 16-bit products at 32 bit, as most engines do, at half the rate of adding them at 16 bit."""

ENGINE_RELEASES: Mapping[str, tuple[tuple[tuple[int, ...], str], ...]] = MappingProxyType(
    {
        "vllm": (((0, 0), "0.7"), ((0, 8), "0.8-0.11"), ((0, 12), "0.12-0.17"), ((0, 18), "0.18")),
        "sglang": (((0, 0), "0.5.6"), ((0, 5, 7), "0.5.7")),
        "trtllm": (((0, 0), "0"), ((1, 0), "1.0"), ((1, 1), "1.1"), ((1, 2), "1.2")),
        "llamacpp": (((0, 0), "any"),),
        "other": (((0, 0), "any"),),
    }
)
"""Ranges of releases that measure alike: the first release of each, and its name. The last one is what is assumed."""


def release_of(engine: str, version: tuple[int, ...] = ()) -> str:
    """The range of releases that a version is in, as a part of constants' names; () is the newest."""
    ranges = ENGINE_RELEASES.get(engine, ENGINE_RELEASES["other"])
    if not version:
        return ranges[-1][1]
    return [name for first, name in ranges if first <= version][-1]


def generation(card: Hardware) -> str:
    """The architecture of a card, as far as kernels differ by it."""
    name = card.whole
    if name.startswith("MI"):
        return "cdna4" if name.startswith("MI35") else "cdna3" if name.startswith("MI3") else "cdna2"
    steps = (
        (12.0, "blackwell-geforce"),
        (10.0, "blackwell"),
        (9.0, "hopper"),
        (8.9, "ada"),
        (8.0, "ampere"),
        (7.0, "volta"),
    )
    return next((text for least, text in steps if card.capability >= least), "other")


@dataclass(frozen=True, slots=True)
class SpeedSetup:
    """What decides which constants hold.

    Attributes:
        engine: one of :data:`ENGINE_RELEASES`. release: what :func:`release_of` says of its version.
        kernel: what :func:`exaserve.perfmodel.work.kernel_of` says of the format.
        whole: experts are spread whole over the ranks. drafts: tokens drafted a step, 0 without speculation.
    """

    card: Hardware
    engine: str
    release: str
    kernel: str
    tp: int = 1
    whole: bool = False
    drafts: int = 0


def setup_of(
    card: Hardware,
    arch: Architecture,
    tp: int = 1,
    *,
    whole_experts: bool = False,
    engine: str = "vllm",
    version: tuple[int, ...] = (),
    drafts: int = 0,
) -> SpeedSetup:
    """The setup of a replica; arguments as of :func:`exaserve.perfmodel.roofline.engine_profile`."""
    return SpeedSetup(card, engine, release_of(engine, version), kernel_of(arch.fmt.name), tp, whole_experts, drafts)


@dataclass(frozen=True, slots=True)
class Factors:
    """The constants of one setup, multiplied out; :func:`parts` says of what each is the product."""

    bandwidth: float
    coded_bandwidth: float
    experts: float
    experts_skew: float
    layer_s: float
    moe_s: float
    prompt_s: float
    prompt_moe_s: float
    admit_s: float
    mla_s: float
    state_s: float
    reduce_s: float
    link: float
    matrix: float
    plain_matrix: float
    experts_matrix: float
    passes: float
    expert_passes: float
    overlap: float
    sequence_s: float
    stream_s: float
    attention: float
    attention_matrix: float
    first_s: float
    accepted: float
    ranks_wait: float


def parts(s: SpeedSetup) -> dict[str, tuple[str, ...]]:
    """By attribute of :class:`Factors`, the constants that it is the product of."""
    gen, engine, kernel = generation(s.card), s.engine, s.kernel
    card = s.card.whole
    bandwidth = (f"bandwidth/{gen}", f"bandwidth-card/{card}")
    computing: tuple[str, ...] = (
        f"matrix-engine/{engine}",
        f"matrix-card/{card}",
    )
    if engine == "llamacpp" and s.card.name in GEFORCE:
        computing += ("matrix-halves",)
    if engine == "llamacpp":
        computing += (f"matrix-engine/{engine}/{gen}",)
    experts = (f"experts/{kernel}/{gen}", f"experts-engine/{engine}/{gen}", f"experts-engine/{engine}/{kernel}")
    moe = (f"moe/{engine}", f"moe-engine/{engine}/{gen}", f"moe-engine/{engine}/{kernel}")
    whole = s.whole
    slow = ("reduce-pcie",) if s.card.link == "pcie" else ()
    return {
        "bandwidth": bandwidth,
        "coded_bandwidth": bandwidth + ((f"bandwidth-format/{kernel}/{gen}",) if kernel != "bf16" else ()),
        "experts": (*experts, bandwidth[1], *(("experts-whole",) if whole else ())),
        "experts_skew": ("experts-skew",),
        "layer_s": (
            f"layer/{engine}",
            f"layer-engine/{engine}/{gen}",
            f"layer-engine/{engine}/{kernel}",
            f"layer-release/{engine}/{s.release}",
        ),
        "moe_s": (*moe, f"moe-release/{engine}/{s.release}", *((f"moe-whole/{engine}",) if whole else ())),
        "prompt_s": (f"prompt/{engine}",),
        "prompt_moe_s": (f"prompt-moe/{engine}",),
        "admit_s": (f"admit/{engine}",),
        "mla_s": ("mla", f"mla-engine/{engine}"),
        "state_s": ("state",),
        "reduce_s": (f"reduce/{gen}", f"reduce-ranks/{s.tp}", f"reduce-engine/{engine}", *slow),
        "link": (f"link/{s.card.link}/{gen}",),
        "matrix": (f"matrix/{kernel}/{gen}", *computing),
        "plain_matrix": (f"matrix/bf16/{gen}", *computing),
        "experts_matrix": (f"experts-matrix/{kernel}/{gen}", *computing),
        "passes": ("passes",),
        "expert_passes": ("expert-passes",),
        "overlap": ("overlap",),
        "sequence_s": (f"sequence/{engine}",),
        "stream_s": (f"stream/{engine}",),
        "attention": (f"attention/{gen}",),
        "attention_matrix": (f"attention-matrix/{gen}", f"attention-matrix-engine/{engine}"),
        "first_s": (f"first/{engine}",),
        "accepted": (f"accepted/{s.drafts}",) if s.drafts else (),
        "ranks_wait": ("ranks-wait",),
    }


def used_parts(s: SpeedSetup, w: Work) -> dict[str, tuple[str, ...]]:
    """Those of :func:`parts` that the times of a replica with such work depend on."""
    needs = {
        "coded_bandwidth": w.coded_bytes,
        "matrix": w.coded_flops,
        "mla_s": w.mla_layers,
        "state_s": w.state_layers,
        "reduce_s": s.tp > 1,
        "link": s.tp > 1,
        "accepted": s.drafts,
    }
    routed = ("experts", "experts_skew", "moe_s", "experts_matrix", "expert_passes", "prompt_moe_s")
    needs |= dict.fromkeys(routed, w.moe_layers)
    return {attribute: names for attribute, names in parts(s).items() if needs.get(attribute, True)}


def meaning_of(name: str) -> Meaning:
    """What a constant is, by its whole name."""
    return MEANINGS[name.split("/", 1)[0]]


def constant(name: str, values: Mapping[str, float]) -> float:
    """A constant's value; what ``values`` lacks is as expected."""
    return values[name] if name in values else meaning_of(name).expected


def factors(products: Mapping[str, tuple[str, ...]], values: Mapping[str, float]) -> Factors:
    """Multiplies constants out; what ``values`` lacks is as expected."""
    out = {}
    for attribute, names in products.items():
        product = 1.0
        for name in names:
            product *= constant(name, values)
        out[attribute] = product
    return Factors(**out)


def parse_constants(text: str) -> Mapping[str, float]:
    """Constants by name, from lines ``name value``."""
    lines = (line.rsplit(" ", 1) for line in text.strip().splitlines())
    return MappingProxyType({name: float(value) for name, value in lines})
