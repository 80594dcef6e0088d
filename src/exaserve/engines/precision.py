"""Precisions of weights in the words of engines that follow PyTorch's and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from exaserve.engines.base import LaunchRequest, flags

__all__ = ["DTYPES", "precision_flags"]

DTYPES: Mapping[str, str] = MappingProxyType({"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"})
_ON_THE_FLY = {"fp8": "fp8"}
"""What vLLM and SGLang make of 16-bit weights while they load (``Engine.quantizes``). All else (awq, gptq, int8, int4,
mxfp4, nvfp4) exists only as published, and the engines read it from the checkpoint themselves: naming it can only
contradict that or, for AWQ and GPTQ, choose a slower kernel."""


def precision_flags(r: LaunchRequest) -> list[str]:
    """``--dtype`` and ``--quantization`` of vLLM and SGLang, as far as the checkpoint leaves them open."""
    method = None if r.quantized else _ON_THE_FLY.get(r.precision)
    return flags(dtype=DTYPES.get(r.precision), quantization=method)
