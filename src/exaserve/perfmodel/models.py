"""Model shapes, as each model's own published configuration file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["MODELS", "ModelShape"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides a model's memory and work.

    Attributes:
        name: key in :data:`MODELS`; the repository's name without its owner.
        params_b: parameters, 10^9, embeddings included.
        active_b: parameters used by one token, 10^9; equal to ``params_b`` for a dense model.
        layers: transformer layers.
        hidden: width of the residual stream.
        heads / kv_heads: query and key/value heads.
        head_dim: width of one head.
        vocab: rows of the embedding.
        context: longest context in tokens that the configuration allows.
        experts / experts_per_token: routed experts of a mixture-of-experts layer and how many of them a token takes;
            0 if dense.
        mla_values: latent values kept per token and layer by multi-head latent attention, 0 for ordinary attention.
            They are the same on every tensor-parallel rank, with no factor 2 for K and V.
        sliding_layers / window: layers that attend to the last ``window`` tokens only.
        native: precision of the published weights, where it is not 16 bit.
    """

    name: str
    params_b: float
    active_b: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    experts: int = 0
    experts_per_token: int = 0
    mla_values: int = 0
    sliding_layers: int = 0
    window: int = 0
    native: str = "bf16"


def _dense(
    name: str, params_b: float, layers: int, hidden: int, heads: int, kv: int, dim: int, vocab: int, ctx: int
) -> ModelShape:
    return ModelShape(name, params_b, params_b, layers, hidden, heads, kv, dim, vocab, ctx)


_ROWS = (
    _dense("Llama-3.2-1B", 1.236, 16, 2048, 32, 8, 64, 128_256, 131_072),
    _dense("Llama-3.2-3B", 3.213, 28, 3072, 24, 8, 128, 128_256, 131_072),
    _dense("Llama-3-8B", 8.030, 32, 4096, 32, 8, 128, 128_256, 8_192),
    _dense("Llama-3.1-8B", 8.030, 32, 4096, 32, 8, 128, 128_256, 131_072),
    _dense("Llama-3-70B", 70.55, 80, 8192, 64, 8, 128, 128_256, 8_192),
    _dense("Llama-3.1-70B", 70.55, 80, 8192, 64, 8, 128, 128_256, 131_072),
    _dense("Llama-3.3-70B", 70.55, 80, 8192, 64, 8, 128, 128_256, 131_072),
    _dense("Llama-3.1-405B", 405.85, 126, 16384, 128, 8, 128, 128_256, 131_072),
    _dense("Llama-2-7B", 6.738, 32, 4096, 32, 32, 128, 32_000, 4_096),
    _dense("Llama-2-13B", 13.016, 40, 5120, 40, 40, 128, 32_000, 4_096),
    _dense("Mistral-7B", 7.248, 32, 4096, 32, 8, 128, 32_768, 32_768),
    _dense("Mistral-Small-24B", 23.572, 40, 5120, 32, 8, 128, 131_072, 32_768),
    _dense("Qwen2.5-0.5B", 0.494, 24, 896, 14, 2, 64, 151_936, 32_768),
    _dense("Qwen2.5-1.5B", 1.544, 28, 1536, 12, 2, 128, 151_936, 32_768),
    _dense("Qwen2.5-7B", 7.616, 28, 3584, 28, 4, 128, 152_064, 32_768),
    _dense("Qwen2.5-14B", 14.770, 48, 5120, 40, 8, 128, 152_064, 32_768),
    _dense("Qwen2.5-32B", 32.764, 64, 5120, 40, 8, 128, 152_064, 32_768),
    _dense("Qwen2.5-72B", 72.706, 80, 8192, 64, 8, 128, 152_064, 32_768),
    _dense("Qwen3-0.6B", 0.596, 28, 1024, 16, 8, 128, 151_936, 40_960),
    _dense("Qwen3-4B", 4.022, 36, 2560, 32, 8, 128, 151_936, 40_960),
    _dense("Qwen3-8B", 8.191, 36, 4096, 32, 8, 128, 151_936, 40_960),
    _dense("Qwen3-14B", 14.768, 40, 5120, 40, 8, 128, 151_936, 40_960),
    _dense("Qwen3-32B", 32.762, 64, 5120, 64, 8, 128, 151_936, 40_960),
    _dense("Phi-4", 14.660, 40, 5120, 40, 10, 128, 100_352, 16_384),
    _dense("Gemma-2-9B", 9.242, 42, 3584, 16, 8, 256, 256_000, 8_192),
    _dense("opt-125m", 0.125, 12, 768, 12, 12, 64, 50_272, 2_048),
    ModelShape("Mixtral-8x7B", 46.703, 12.88, 32, 4096, 32, 8, 128, 32_000, 32_768, 8, 2),
    ModelShape("Mixtral-8x22B", 140.63, 39.15, 56, 6144, 48, 8, 128, 32_768, 65_536, 8, 2),
    ModelShape("Qwen3-30B-A3B", 30.532, 3.34, 48, 2048, 32, 4, 128, 151_936, 40_960, 128, 8),
    ModelShape("Qwen3-235B-A22B", 235.09, 22.19, 94, 4096, 64, 4, 128, 151_936, 40_960, 128, 8),
    ModelShape(
        "gpt-oss-20b",
        20.91,
        3.61,
        24,
        2880,
        64,
        8,
        64,
        201_088,
        131_072,
        32,
        4,
        sliding_layers=12,
        window=128,
        native="mxfp4",
    ),
    ModelShape(
        "gpt-oss-120b",
        116.83,
        5.13,
        36,
        2880,
        64,
        8,
        64,
        201_088,
        131_072,
        128,
        4,
        sliding_layers=18,
        window=128,
        native="mxfp4",
    ),
    ModelShape("DeepSeek-V2-Lite", 15.706, 2.66, 27, 2048, 16, 16, 192, 102_400, 32_768, 64, 6, mla_values=576),
    ModelShape(
        "DeepSeek-V3", 671.03, 37.55, 61, 7168, 128, 128, 192, 129_280, 163_840, 256, 8, mla_values=576, native="fp8"
    ),
    ModelShape(
        "DeepSeek-R1", 671.03, 37.55, 61, 7168, 128, 128, 192, 129_280, 163_840, 256, 8, mla_values=576, native="fp8"
    ),
    ModelShape("Kimi-K2", 1026.4, 32.9, 61, 7168, 64, 64, 192, 163_840, 131_072, 384, 8, mla_values=576, native="fp8"),
    # For tests: a model of four layers, as a CPU engine runs it.
    _dense("tiny", 0.005, 4, 256, 4, 2, 64, 1_024, 32_768),
)

MODELS: Mapping[str, ModelShape] = MappingProxyType({row.name: row for row in _ROWS})
