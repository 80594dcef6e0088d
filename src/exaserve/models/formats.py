"""Weight formats: how many bytes a matrix takes with its scales and zeros, and which modules a checkpoint leaves out.

What engines allocate, by format:

- 16 bit: 2 bytes a weight.
- fp8 / int8: 1 byte, and 32-bit scales per tensor, per output channel, or per block of 128 x 128.
- int4 by AWQ, GPTQ or compressed-tensors: half a byte, a 16-bit scale per group (128 inputs unless said otherwise) and,
  if asymmetric, a 4-bit zero per group.
- bitsandbytes nf4: half a byte and, as measured on public logs, 4 bytes per 128 weights.
- mxfp4: half a byte and an 8-bit exponent per 32 weights. nvfp4: half a byte and an fp8 scale per 16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest

__all__ = ["FORMATS", "WeightFormat", "format_from_config", "format_from_name", "named_format"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a checkpoint stores its matrices.

    Attributes:
        name: key in :data:`FORMATS`.
        precision: what checkpoints and engines call it.
        bits: per weight, without scales.
        group: inputs per scale; 0 where scales are not by group.
        group_bytes: bytes of scale (and zero) per group.
        block: output x input block that shares a 32-bit scale; (0, 0) where there is none.
        channel_bytes: bytes of scale per output channel.
        experts_only: only the routed experts are in this format (gpt-oss).
        ignored: modules that stay at 16 bit, as the checkpoint names them.
        lm_head: whether the output layer is in this format too.
        unquantised_layers: first and last layers kept whole, by index (negative counts from the end).
    """

    name: str
    precision: str
    bits: float = 16.0
    group: int = 0
    group_bytes: float = 0.0
    block: tuple[int, int] = (0, 0)
    channel_bytes: float = 0.0
    experts_only: bool = False
    ignored: tuple[str, ...] = ()
    lm_head: bool = False
    unquantised_layers: tuple[int, ...] = ()
    _exact: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    _patterns: tuple[re.Pattern[str], ...] = field(default=(), repr=False, compare=False)

    @property
    def quantised(self) -> bool:
        return self.bits < 16

    def matrix_bytes(self, rows: int, cols: int) -> float:
        """Bytes of one matrix of ``rows`` outputs and ``cols`` inputs in this format, with its scales."""
        size = rows * cols * self.bits / 8
        if self.group:
            size += rows * math.ceil(cols / self.group) * self.group_bytes
        if self.block[0]:
            size += math.ceil(rows / self.block[0]) * math.ceil(cols / self.block[1]) * 4
        return size + rows * self.channel_bytes

    def leaving_out(self, modules: Sequence[str]) -> WeightFormat:
        """This format for a checkpoint that keeps ``modules`` at 16 bit: paths, parts of paths, or ``re:`` patterns."""
        names = tuple(str(m) for m in modules)
        exact = frozenset(n.removeprefix("model.") for n in names if ".layers." in n or n.startswith("layers."))
        loose = [n for n in names if n.removeprefix("model.") not in exact]
        patterns = []
        for name in loose:
            text = name.removeprefix("re:") if name.startswith("re:") else _as_pattern(name)
            try:
                patterns.append(re.compile(text))
            except re.error:
                patterns.append(re.compile(re.escape(name)))
        return replace(self, ignored=names, _exact=exact, _patterns=tuple(patterns))

    def covers(self, path: str, layer: int | None = None, layers: int = 0) -> bool:
        """Whether the matrix at ``path`` (such as ``layers.3.self_attn.q_proj`` or ``lm_head``) is quantised."""
        if not self.quantised:
            return False
        if layer is not None and layer in {i % layers for i in self.unquantised_layers if layers}:
            return False
        if path == "lm_head" and not self.lm_head:
            return False
        if path in self._exact or any(path.startswith(e + ".") for e in self._exact):
            return False
        return not any(p.search(f"model.{path}") for p in self._patterns)

    def input_granularity(self) -> int:
        """Inputs that a shard must hold a whole number of, 1 if any."""
        return self.group or self.block[1] or 1


def _as_pattern(name: str) -> str:
    """A name without layer index matches on the dots of a path; ``*`` matches anything."""
    body = re.escape(name).replace(r"\*", ".*")
    return rf"(^|\.){body}(\.|$)" if not name.endswith("*") else rf"(^|\.){body}"


_INT4 = WeightFormat("int4", "int4", 4, group=128, group_bytes=2.0)

FORMATS: Mapping[str, WeightFormat] = {
    "bf16": WeightFormat("bf16", "bf16"),
    "fp16": WeightFormat("fp16", "fp16"),
    "fp8": WeightFormat("fp8", "fp8", 8, channel_bytes=4.0),
    "fp8-block": WeightFormat("fp8-block", "fp8", 8, block=(128, 128)),
    "fbgemm-fp8": WeightFormat("fbgemm-fp8", "fp8", 8, channel_bytes=4.0, unquantised_layers=(0, -1)),
    "int8": WeightFormat("int8", "int8", 8, channel_bytes=4.0),
    "int4": _INT4,
    "gptq": replace(_INT4, name="gptq", precision="gptq", group_bytes=2.5),
    "gptq8": WeightFormat("gptq8", "int8", 8, group=128, group_bytes=3.0),
    "awq": replace(_INT4, name="awq", precision="awq", group_bytes=2.5),
    "bnb4": WeightFormat("bnb4", "int4", 4, group=128, group_bytes=4.0),
    "bnb8": WeightFormat("bnb8", "int8", 8, channel_bytes=4.0),
    "mxfp4": WeightFormat("mxfp4", "mxfp4", 4, group=32, group_bytes=1.0),
    "nvfp4": WeightFormat("nvfp4", "nvfp4", 4, group=16, group_bytes=1.0),
}
"""By name. ``fp8`` has a scale per output channel, ``fp8-block`` one per 128 x 128 (DeepSeek, Qwen3)."""

_ALIASES = {
    "auto": "bf16",
    "none": "bf16",
    "bfloat16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "w8a8": "int8",
    "int8-w8a8": "int8",
    "w8a16": "int8",
    "w4a16": "int4",
    "awq4": "awq",
    "awq-int4": "awq",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "gptq-int4": "gptq",
    "gptq4": "gptq",
    "gptq-int8": "gptq8",
    "int8-gptq": "gptq8",
    "int4-gptq": "gptq",
    "int4-awq": "awq",
    "bnb": "bnb4",
    "nf4": "bnb4",
    "bitsandbytes": "bnb4",
    "bnb-4bit": "bnb4",
    "fp4": "nvfp4",
    "fp8_block": "fp8-block",
    "fbgemm_fp8": "fbgemm-fp8",
    "modelopt_fp4": "nvfp4",
    "modelopt": "fp8",
    "auto-round": "gptq",
}


def named_format(name: str) -> WeightFormat:
    """The format of a name, aliases allowed. Raises ConfigError listing the known ones."""
    key = name.strip().lower().split(" ")[0]
    key = _ALIASES.get(key, key)
    if key not in FORMATS:
        raise ConfigError(f"Unknown weight format {name!r}. {nearest(name, FORMATS)}", param="format")
    return FORMATS[key]


_BLOCK_FP8 = re.compile(
    r"(?:qwen|deepseek-ai|moonshotai|minimaxai|zai-org)/|(?:[^/]*/)?(?:qwen3|deepseek|kimi|minimax|glm-5)"
)
_CHANNEL_FP8 = re.compile(r"(?:redhatai|neuralmagic|nm-testing|nvidia|amd)/|.*fp8[-_]?(?:dynamic|kv)")
_NAME_MARKS: tuple[tuple[str, str], ...] = (
    (r"nvfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp4", "nvfp4"),
    (r"bnb-?8", "bnb8"),
    (r"bnb", "bnb4"),
    (r"awq", "awq"),
    (r"gptq-?(?:int-?8|8-?bit)", "gptq8"),
    (r"gptq|auto-?round", "gptq"),
    (r"w4a16|int-?4|4-?bit", "int4"),
    (r"fp8", "fp8"),
    (r"w8a8|w8a16|int-?8|8-?bit", "int8"),
    (r"bf16", "bf16"),
)
"""What names say, the more telling before the less."""


def format_from_name(name: str) -> WeightFormat | None:
    """The format that a repository's name states (``…-AWQ``, ``…-FP8``), None where it states none.

    Publishers differ in what they call FP8: Qwen, DeepSeek and others scale by block, those who quantise others' models
    by channel; Meta leaves attention and the outer layers whole.
    """
    lower = name.lower()
    short = lower.rsplit("/", 1)[-1].replace("_", "-")
    marked = next((fmt for mark, fmt in _NAME_MARKS if re.search(mark, short)), None)
    if marked == "fp8":
        if lower.startswith("meta-llama/"):
            return FORMATS["fbgemm-fp8"].leaving_out(["self_attn"])
        if "fp8-block" in lower or (_BLOCK_FP8.match(lower) and not _CHANNEL_FP8.match(lower)):
            return FORMATS["fp8-block"]
    return FORMATS[marked] if marked else None


def format_from_config(section: Mapping[str, Any]) -> WeightFormat:
    """The format of a ``quantization_config`` section of ``config.json``.

    Raises:
        ConfigError: a method this planner does not know.
    """
    method = str(section.get("quant_method", section.get("quant_algo", ""))).lower().replace("_", "-")
    ignored: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules"):
        ignored += list(section.get(key) or ())
    if method in ("compressed-tensors", "sparseml"):
        base = _compressed_tensors(section)
    elif method in ("awq", "gptq", "auto-round", "autoround", "intel/auto-round", "awq-marlin", "gptq-marlin", "inc"):
        base = _grouped(section, "awq" if method.startswith("awq") else "gptq")
    elif method in ("fp8", "fbgemm-fp8"):
        base = FORMATS["fp8-block" if section.get("weight_block_size") else "fp8"]
        if section.get("weight_block_size"):
            rows, cols = section["weight_block_size"]
            base = replace(base, block=(int(rows), int(cols)))
    elif method in ("bitsandbytes", "bnb"):
        base = FORMATS["bnb8" if section.get("load_in_8bit") else "bnb4"]
    elif method == "mxfp4":
        base = replace(FORMATS["mxfp4"], experts_only=True)
    elif method.startswith("modelopt") or method in ("nvfp4", "fp4"):
        algo = str(section.get("quant_algo", section.get("quantization", {}).get("quant_algo", method))).upper()
        base = FORMATS["nvfp4" if "FP4" in algo else "fp8"]
        ignored += list(section.get("quantization", {}).get("exclude_modules") or ())
    elif method in ("experts-int8", "int8"):
        base = FORMATS["int8"]
    else:
        raise ConfigError(
            f"quantization_config has the method {method!r}, which this planner does not know. "
            f"Give --format, one of {', '.join(sorted(FORMATS))}.",
            param="quantization_config.quant_method",
        )
    return base.leaving_out(ignored) if ignored else base


def _grouped(section: Mapping[str, Any], name: str) -> WeightFormat:
    bits = float(section.get("bits", section.get("w_bit", 4)))
    group = int(section.get("group_size", section.get("q_group_size", 128)))
    zeros = bits / 8 if section.get("zero_point", not section.get("sym", False)) else 0.0
    if group <= 0:
        return replace(FORMATS[name], bits=bits, group=0, group_bytes=0.0, channel_bytes=2.0 + zeros)
    return replace(FORMATS[name], bits=bits, group=group, group_bytes=2.0 + zeros, lm_head=bool(section.get("lm_head")))


def _compressed_tensors(section: Mapping[str, Any]) -> WeightFormat:
    groups = section.get("config_groups") or {}
    weights = next((g["weights"] for g in groups.values() if g.get("weights")), None)
    if weights is None:
        return FORMATS["bf16"]
    bits, strategy = float(weights.get("num_bits", 8)), str(weights.get("strategy", "channel"))
    is_float = weights.get("type") == "float"
    if bits == 4 and is_float:
        return FORMATS["mxfp4" if int(weights.get("group_size") or 16) == 32 else "nvfp4"]
    if strategy == "group":
        group = int(weights.get("group_size") or 128)
        zeros = 0.0 if weights.get("symmetric", True) else bits / 8
        return replace(_INT4 if bits == 4 else FORMATS["int8"], bits=bits, group=group, group_bytes=2.0 + zeros)
    if strategy == "block":
        return FORMATS["fp8-block"]
    if bits == 8:
        return FORMATS["fp8" if is_float else "int8"]
    return replace(_INT4, bits=bits, group=0, group_bytes=0.0, channel_bytes=2.0)
