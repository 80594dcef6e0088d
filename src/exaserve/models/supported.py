"""Which models the planner can lay out. What it cannot is refused with the reason, never planned as something else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.models.table import MODELS

__all__ = ["check_configuration", "check_name"]

_ALSO = (
    "aquila", "baichuan", "bamba", "bloom", "chatglm", "cohere", "cohere2", "dbrx", "deepseek", "deepseek_v2",
    "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "falcon", "gemma",
    "gemma2", "gemma3", "gemma4", "gemma4_unified", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa",
    "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm", "internlm2", "internlm3", "jamba", "kimi_k2", "kimi_k25",
    "kimi_linear", "llama", "llama4", "minimax_m2", "ministral", "ministral3", "mistral", "mistral4", "mixtral",
    "mpt", "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi3", "phimoe", "qwen", "qwen2",
    "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl",
    "qwen3_vl_moe", "seed_oss", "smollm3", "stablelm", "starcoder2", "step3p5", "yi",
)  # fmt: skip
_DECODERS = frozenset(_ALSO) | {
    str(shape.config.get("model_type", "llama")).removesuffix("_text") for shape in MODELS.values()
}
"""``model_type`` of the language part. Their layers are those of :mod:`exaserve.models.blocks`."""

_ENCODERS = (
    "albert", "bert", "camembert", "clip", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "esm", "flaubert", "funnel", "longformer", "modernbert", "mpnet", "new", "nomic_bert", "roberta", "roformer",
    "siglip", "vit", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet",
)  # fmt: skip
_POOLED = re.compile(
    r"For(?:MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|ImageClassification"
    r"|RewardModel|ProcessRewardModel|Embedding|Retrieval|CTC|PreTraining)$"
)
_GGUF = re.compile(r"gguf|[-_.](?:i?q\d(?:_[k01])?(?:_[sml])?|bf16)\.gguf$", re.IGNORECASE)


_OTHER_WIDTHS = re.compile(r"(?<![a-z0-9])(?:exl[23]|[\d.]*bpw|[12356]-?bit|aqlm|quip|hqq)(?![a-z0-9])", re.IGNORECASE)
_DRAFTS = re.compile(r"eagle|medusa|speculator|dflash|draft", re.IGNORECASE)


def check_name(name: str) -> None:
    """Raises ConfigError for a name of weights that the planner has no memory model for."""
    if _GGUF.search(name):
        raise ConfigError(
            f"{name} is in llama.cpp's format (GGUF): its blocks mix several widths, and llama.cpp lays memory out in "
            "its own way, neither of which is modelled here. For an estimate name the 16-bit model with --format int4 "
            "or int8; for exact figures start llama-server once and read its log.",
            param="model",
        )
    if _OTHER_WIDTHS.search(name):
        raise ConfigError(
            f"{name} is in a format whose layout is not modelled here. For an estimate name the 16-bit model with "
            "--format, one that is as wide.",
            param="model",
        )
    if _DRAFTS.search(name):
        raise ConfigError(
            f"{name} is a draft for speculative decoding, not a model of its own; name the model it drafts for.",
            param="model",
        )


_KEYS_DECIDE = (
    "What decides is model_type and architectures, and then the keys that name the layers: num_hidden_layers, "
    "layer_types, hidden_size, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, num_experts, "
    "num_experts_per_tok, moe_intermediate_size, vocab_size."
)


def check_configuration(config: Mapping[str, Any], language: Mapping[str, Any], nested: bool) -> None:
    """Raises ConfigError for a ``config.json`` whose layers the planner does not know.

    Args:
        language: the part that describes the language model. nested: whether it is a section of its own.
    """
    stated = str(language.get("model_type") or config.get("model_type") or "").lower()
    classes = [str(c) for c in config.get("architectures") or language.get("architectures") or ()]
    kind = stated.removesuffix("_text")
    called = f"model_type {stated!r}" + (f", {', '.join(classes)}" if classes else "")
    if kind in _ENCODERS:
        raise ConfigError(
            f"{called}: an encoder generates nothing and keeps no KV cache; what is planned here is decoders. "
            "It needs its weights and a batch of inputs: any card that holds them, one engine each.",
            param="model_type",
        )
    if config.get("is_encoder_decoder") or language.get("is_encoder_decoder"):
        raise ConfigError(
            f"{called}: encoder and decoder with a cross-attention cache are not modelled; only decoders are planned.",
            param="is_encoder_decoder",
        )
    pooled = next((c for c in classes if _POOLED.search(c)), "")
    if pooled:
        raise ConfigError(
            f"{called}: a model that classifies or embeds generates nothing, so its load is not what is planned here.",
            param="architectures",
        )
    if not stated:
        said = f"; architectures says {', '.join(classes)}, but the layers follow from model_type" if classes else ""
        raise ConfigError(
            f"config.json has no model_type{said}. Write it in, as another copy of it gives it. {_KEYS_DECIDE}",
            param="model_type",
        )
    if kind not in _DECODERS:
        raise ConfigError(
            f"{called}: this architecture's layers are not known here, and a sum over guessed ones would be wrong. "
            "If they are those of a known one, say so by its model_type in a copy of the config.json. "
            f"{_KEYS_DECIDE} Known: {', '.join(sorted(_DECODERS))}.",
            param="model_type",
        )
    if not nested and classes and not any(_is_known_class(c) for c in classes):
        raise ConfigError(
            f"{called}: no engine class of a known architecture; engines choose the layers by this name. "
            "If it is a known one under another name, say so by its class in a copy of the config.json.",
            param="architectures",
        )


_STEMS = frozenset(k.replace("_", "") for k in _DECODERS) | frozenset(
    ("qwenlmhead", "codellama", "commandr", "starcoder", "gpt", "rw", "ernie45", "kimi", "kimivl", "minicpmv", "molmo")
)
_SUFFIX = re.compile(r"(?:ForCausalLM|ForConditionalGeneration|LMHeadModel|ChatModel|Model|ForCausalLMWithValueHead)$")


def _is_known_class(name: str) -> bool:
    """``Qwen2MoeForCausalLM`` is ``qwen2_moe``; what else a class can (``…VLForCausalLM``) may follow."""
    stem = _SUFFIX.sub("", name).lower()
    return any(stem == known or (len(known) >= 3 and stem.startswith(known)) for known in _STEMS)
