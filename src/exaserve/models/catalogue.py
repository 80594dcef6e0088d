"""From a model's name to its architecture: the built-in table, with owners, suffixes and families forgiven."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.domain.names import name_key, nearest
from exaserve.models.architecture import Architecture, build
from exaserve.models.facts import facts_of_shape, read_facts
from exaserve.models.formats import FORMATS, WeightFormat, format_from_config, format_from_name, named_format
from exaserve.models.shape import ModelShape
from exaserve.models.supported import check_name
from exaserve.models.table import MODELS

__all__ = ["find_shape", "model_from_config", "model_from_name"]

_DERIVED: tuple[tuple[str, str], ...] = (
    (r"distill-llama-8b|nemotron-nano-8b", "Llama-3.1-8B"),
    (r"distill-llama-70b", "Llama-3.3-70B"),
    (r"r1-0528-qwen3-8b", "Qwen3-8B"),
    (r"distill-qwen-(1\.5|7|14|32)b", "Qwen2.5-{0}B"),
    (r"nemotron-70b", "Llama-3.1-70B"),
    (r"hermes-(?:3-llama-3\.1|4)-(8|70|405)b", "Llama-3.1-{0}B"),
    (r"hermes-4-14b", "Qwen3-14B"),
    (r"kimi-dev-72b", "Qwen2.5-72B"),
    (r"qwen3\.6-(27b|35b-a3b)|qwen3\.8-(27b)", "Qwen3.5-{0}"),
    (r"qwen3-coder-next", "Qwen3-Next-80B-A3B"),
    (r"(qwen3-(?:4b|30b-a3b|235b-a22b))-\w+-2507", "{0}-2507"),
    (r"(qwen2\.5)-(?:coder|math)-([\d.]+b)", "{0}-{1}"),
    (r"gpt-oss-safeguard-(20|120)b", "gpt-oss-{0}b"),
)
"""Fine-tuned or distilled from another model, whose shape they have though they begin with a third one's name."""

_RENAMED: tuple[tuple[str, str], ...] = (
    (r"deepseek-v3(?:\.1)?(?![.\d])", "DeepSeek-V3"),
    (r"kimi-k2-instruct-0905", "Kimi-K2-0905"),
    (r"kimi-k2\.[567](?!\d)", "Kimi-K2.5"),
    (r"deepseek-coder-v2-lite", "DeepSeek-V2-Lite"),
    (r"deepseek-coder-v2|deepseek-v2(?:\.5)?(?![.\d])", "DeepSeek-V2"),
    (r"phi-?4-(?:multimodal|mini)", "Phi-4-mini"),
    (r"phi-4", "Phi-4"),
    (r"phi-3\.5-moe", "Phi-3.5-MoE"),
    (r"phi-3-mini-4k", "Phi-3-mini-4k"),
    (r"phi-3(?:\.5)?-mini", "Phi-3-mini-128k"),
    (r"phi-3-medium", "Phi-3-medium"),
    (r"mistral-7b-(?:instruct-)?v0\.1|zephyr-7b|openhermes", "Mistral-7B-v0.1"),
    (r"mistral-7b", "Mistral-7B"),
    (r"mistral-nemo", "Mistral-Nemo-12B"),
    (r"ministral-8b", "Ministral-8B"),
    (r"mistral-large-3-675b", "Mistral-Large-3-675B"),
    (r"mistral-large-(?:instruct-)?24|mistral-large-2|mistral-large$", "Mistral-Large-123B"),
    (r"mistral-small-3\.[12]|magistral-small-2509", "Mistral-Small-3.1-24B"),
    (r"mistral-small-(?:24b|3)|magistral-small", "Mistral-Small-24B"),
    (r"mistral-small-(?:instruct-)?2409|mistral-small-22b|mistral-small$", "Mistral-Small-22B"),
    (r"devstral-small-2-24b", "Devstral-Small-2-24B"),
    (r"devstral-2-123b", "Devstral-2-123B"),
    (r"devstral-small-250[57]|devstral-small$|devstral$", "Devstral-24B"),
    (r"c4ai-command-r-plus|command-r-?plus|aya-expanse-104", "Command-R-Plus"),
    (r"command-r-?v01", "Command-R"),
    (r"glm-4(?:\.0)?-9b|glm-z1-9b", "GLM-4-9B"),
    (r"glm-4\.[67](?![\d.v]|-flash)", "GLM-4.6"),
    (r"intellect-3", "GLM-4.5-Air"),
    (r"internlm2(?:[.-]5)?-(?:chat-)?(7|20)b", "InternLM2-{0}B"),
    (r"yi-(?:1\.5-)?(6|9|34)b", "Yi-{0}B"),
    (r"granite-3\.\d-8b", "Granite-3.3-8B"),
    (r"codellama-34b", "CodeLlama-34B"),
    (r"llama-?(2|3|3\.1|3\.2|3\.3)-(\d+)b", "Llama-{0}-{1}B"),
    (r"llama-4-(scout|maverick)", "Llama-4-{0}"),
    (r"minimax-m2(?:\.[15])?(?![\d.])", "MiniMax-M2"),
    (r"ernie-4\.5-300b", "ERNIE-4.5-300B-A47B"),
    (r"nemotron-3-nano(?!-\d)|nemotron-3-nano-30b", "Nemotron-3-Nano-30B-A3B"),
    (r"nemotron-3-super", "Nemotron-3-Super-120B-A12B"),
    (r"nemotron-nano-9b", "Nemotron-Nano-9B-v2"),
    (r"olmo-2-\d{4}-(7|32)b", "OLMo-2-{0}B"),
    (r"olmo-3(?:\.1)?-(?:\d{4}-)?(7|32)b", "Olmo-3-{0}B"),
)


def _renamed(short: str, patterns: tuple[tuple[str, str], ...]) -> str:
    """Key of the row that the first matching pattern names, "" if none matches."""
    for pattern, row in patterns:
        found = re.search(pattern, short)
        if found:
            return name_key(row.format(*(g.title() if g.isalpha() else g for g in found.groups() if g)))
    return ""


def find_shape(name: str) -> ModelShape:
    """The table's row for a name as people write it (``neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8``).

    Raises:
        ConfigError: nothing matches; the message names the nearest row.
    """
    short = name.strip().rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-").removeprefix("meta-")
    by_key = {name_key(row): row for row in MODELS}
    if name_key(short) in by_key:
        return MODELS[by_key[name_key(short)]]
    # The longest row that the name begins with; a row must end where a part of the name ends, and is no other version.
    ends = {len(name_key(short[: m.start()])): m.start() for m in _PART_END.finditer(short)}
    rows = [k for k in by_key if name_key(short).startswith(k) and len(k) in ends and k != "tiny"]
    best = max(rows, key=len, default="")
    renamed = _renamed(short, _RENAMED)
    for key in (_renamed(short, _DERIVED), renamed if len(renamed) > len(best) else "", best):
        if key in by_key:
            row = MODELS[by_key[key]]
            if not _other_size(short, row):
                return row
    raise ConfigError(
        f"Unknown model {name!r}: it is not in the table. {nearest(short, MODELS)} "
        "Give the folder that holds its config.json instead.",
        param="model",
    )


_PART_END = re.compile(r"(?<=[a-z0-9])(?=[^a-z0-9]|$)(?!\.\d)")
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")
_SIZE_TOLERANCE = 0.3


def _other_size(short: str, row: ModelShape) -> bool:
    """Whether a name states a number of parameters that is not the row's (``DeepSeek-R1-tiny-1.1B``)."""
    sizes = [float(size) for size in _SIZE.findall(short)]
    known = (row.params_b, row.active_b)
    return bool(sizes) and not any(abs(s / k - 1) <= _SIZE_TOLERANCE for s in sizes for k in known)


def model_from_name(name: str, fmt: str = "auto") -> Architecture:
    """A model of the built-in table. ``fmt`` "auto" reads the format off the name, else takes the published one.

    Raises:
        ConfigError: it is not in the table, or its weights are of a kind that is not modelled.
    """
    check_name(name)
    shape = find_shape(name)
    if fmt not in ("", "auto"):
        chosen: WeightFormat = named_format(fmt)
        stated = format_from_name(name)
        if stated is not None and stated.precision == chosen.precision:
            chosen = stated
    else:
        chosen = format_from_name(name) or _published(name, shape)
    facts = facts_of_shape(shape)
    if chosen.name == "mxfp4" and shape.native == "mxfp4":
        chosen = replace(chosen, experts_only=True)
    if chosen.name == "fp8" and facts.kv_heads == facts.heads and facts.get("kv_lora_rank"):
        chosen = FORMATS["fp8-block"]
    if shape.native == "int4" and chosen.name == "int4":  # Kimi-K2-Thinking, K2.5
        chosen = replace(FORMATS["int4"], experts_only=True, group=32)
    return build(replace(facts, name=name), chosen)


_FP8_INSTRUCT = re.compile(
    r"ministral-3-\d+b-instruct|mistral-large-3-675b-instruct|devstral-(?:2-123b|small-2-24b)-instruct"
)
"""Mistral's published instruction models of December 2025: fp8, though neither the name nor the base model says so."""


def _published(name: str, shape: ModelShape) -> WeightFormat:
    """The format of the weights that are published under a name that states none."""
    if _FP8_INSTRUCT.search(name.lower()):
        return FORMATS["fp8"]
    return FORMATS["fp8-block" if shape.native == "fp8" else shape.native]


def model_from_config(config: Mapping[str, Any], name: str = "", fmt: str = "auto") -> Architecture:
    """A model from its ``config.json``; ``fmt`` "auto" follows its ``quantization_config``, or 16 bit without one.

    Raises:
        ConfigError: the configuration lacks what a sum needs, or states an unknown format.
    """
    try:
        facts = read_facts(config, name)
        if fmt not in ("", "auto"):
            return build(facts, named_format(fmt))
        return build(facts, format_from_config(facts.quantization) if facts.quantization else FORMATS["bf16"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration has a value of a kind that no model has there ({error}).", param="config.json"
        ) from error
