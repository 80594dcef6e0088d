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
    (r"deepseek-?r1-distill-llama-8b|r1-distill-llama-8b", "Llama-3.1-8B"),
    (r"deepseek-?r1-distill-llama-70b|r1-distill-llama-70b", "Llama-3.3-70B"),
    (r"r1-0528-qwen3-8b", "Qwen3-8B"),
    (r"distill-qwen-(1\.5|7|14|32)b", "Qwen2.5-{0}B"),
    (r"nemotron-70b", "Llama-3.1-70B"),
    (r"hermes-3-llama-3\.1-(8|70|405)b", "Llama-3.1-{0}B"),
    (r"qwen3\.6-(27b|35b-a3b)|qwen3\.8-(27b)", "Qwen3.5-{0}"),
    (r"qwen3-235b-a22b", "Qwen3-235B-A22B"),
    (r"(qwen2\.5)-(?:coder|math)-([\d.]+b)", "{0}-{1}"),
)
"""Fine-tuned or distilled from another model, whose shape they have though they begin with a third one's name."""

_RENAMED: tuple[tuple[str, str], ...] = (
    (r"deepseek-(?:v3\.1|v3-0324|v3)|deepseek-r1", "DeepSeek-V3"),
    (r"kimi-k2-thinking", "Kimi-K2-Thinking"),
    (r"kimi-k2", "Kimi-K2"),
    (r"deepseek-coder-v2-lite", "DeepSeek-V2-Lite"),
    (r"deepseek-coder-v2|deepseek-v2\.5|deepseek-v2", "DeepSeek-V2"),
    (r"phi-?4-(?:multimodal|mini)", "Phi-4-mini"),
    (r"phi-4", "Phi-4"),
    (r"phi-3\.5-moe", "Phi-3.5-MoE"),
    (r"phi-3(?:\.5)?-mini(?:-instruct)?-?(4k)?", "Phi-3-mini-128k"),
    (r"phi-3-medium", "Phi-3-medium"),
    (r"mistral-7b-(?:instruct-)?v0\.1|zephyr-7b|openhermes", "Mistral-7B-v0.1"),
    (r"mistral-7b", "Mistral-7B"),
    (r"mistral-nemo", "Mistral-Nemo-12B"),
    (r"mistral-large", "Mistral-Large-123B"),
    (r"mistral-small-(?:24b|3)|magistral-small", "Mistral-Small-24B"),
    (r"mistral-small", "Mistral-Small-22B"),
    (r"devstral", "Devstral-24B"),
    (r"c4ai-command-r-plus|command-r-?plus|aya-expanse-104", "Command-R-Plus"),
    (r"command-r-?v01", "Command-R"),
    (r"glm-4(?:\.0)?-9b|glm-z1-9b", "GLM-4-9B"),
    (r"glm-4\.[67](?!-flash)", "GLM-4.6"),
    (r"internlm2(?:[.-]5)?-(?:chat-)?(7|20)b", "InternLM2-{0}B"),
    (r"yi-(?:1\.5-)?(6|9|34)b", "Yi-{0}B"),
    (r"granite-3\.\d-8b", "Granite-3.3-8B"),
    (r"codellama-34b", "CodeLlama-34B"),
    (r"llama-?(2|3|3\.1|3\.2|3\.3)-(\d+)b", "Llama-{0}-{1}B"),
    (r"llama-4-(scout|maverick)", "Llama-4-{0}"),
    (r"minimax-m2", "MiniMax-M2"),
    (r"ernie-4\.5-300b", "ERNIE-4.5-300B-A47B"),
    (r"nemotron-3-nano", "Nemotron-3-Nano-30B-A3B"),
    (r"nemotron-nano-9b", "Nemotron-Nano-9B-v2"),
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
    # The longest row that the name begins with; a row must end where a part of the name ends.
    ends = {len(name_key(short[:i])) for i in range(1, len(short) + 1) if i == len(short) or not short[i].isalnum()}
    best = max((k for k in by_key if name_key(short).startswith(k) and len(k) in ends), key=len, default="")
    derived = _renamed(short, _DERIVED)
    if derived in by_key:
        return MODELS[by_key[derived]]
    renamed = _renamed(short, _RENAMED)
    if renamed in by_key and len(renamed) > len(best):
        return MODELS[by_key[renamed]]
    if best:
        return MODELS[by_key[best]]
    raise ConfigError(
        f"Unknown model {name!r}: it is not in the table. {nearest(short, MODELS)} "
        "Give the folder that holds its config.json instead.",
        param="model",
    )


_GATE_IGNORED = ("mlp.gate", "visual", "vision_tower", "lm_head")


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
        chosen = format_from_name(name) or _native(shape)
    facts = facts_of_shape(shape)
    if chosen.name == "mxfp4" and shape.native == "mxfp4":
        chosen = replace(chosen, experts_only=True)
    if chosen.name == "fp8" and facts.kv_heads == facts.heads and facts.get("kv_lora_rank"):
        chosen = FORMATS["fp8-block"]
    if shape.name == "Kimi-K2-Thinking" and chosen.name == "int4":
        chosen = replace(FORMATS["int4"], experts_only=True, group=32)
    return build(replace(facts, name=name), chosen)


def _native(shape: ModelShape) -> WeightFormat:
    if shape.native == "fp8":
        return FORMATS["fp8-block"]
    return FORMATS[shape.native]


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
