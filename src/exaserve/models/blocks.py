"""The parts a layer is made of: attention of every kind, feed-forward layers, experts, state-space mixers."""

from __future__ import annotations

from collections.abc import Callable

from exaserve.models.facts import Facts
from exaserve.models.tensors import Cache, Split, Tensor

__all__ = ["Covers", "Part", "attention", "experts", "feed_forward", "gated_delta", "kimi_delta", "mamba", "mla"]

Covers = Callable[[str], bool]
"""Whether the matrix at a path inside the layer is in the checkpoint's format."""

Part = tuple[list[Tensor], list[Cache]]

_QKV_BIAS = ("qwen2", "opt", "starcoder2", "phimoe", "gpt_oss", "glm4", "chatglm", "seed_oss", "mpt", "gpt2", "bloom")
_O_BIAS = ("opt", "starcoder2", "gpt_oss", "phimoe", "gpt2", "bloom")
_NO_BIAS_OVERRIDE = ("glm4_moe_lite",)
_QK_NORM = ("qwen3", "gemma3", "gemma4", "olmo2", "olmo3", "olmoe", "exaone4")
UNGATED = ("opt", "falcon", "starcoder2", "nemotron", "gpt2", "bloom", "mpt", "gpt_neox", "gptj", "gpt_bigcode")


def matrix(
    covers: Covers, name: str, rows: int, cols: int, split: Split = "column", count: int = 1, heads: int = 0
) -> Tensor:
    return Tensor(name.rsplit(".", 1)[-1], rows, cols, split, covers(name), count, heads=heads)


def vector(name: str, size: int, split: Split = "none") -> Tensor:
    return Tensor(name, size, 1, split)


def attention(
    f: Facts,
    covers: Covers,
    kind: str,
    window: int,
    heads: int = 0,
    kv: int = 0,
    dim: int = 0,
    key_is_value: bool = False,
) -> Part:
    """Grouped-query attention; ``kind`` is full, sliding or chunked."""
    heads, kv, dim = heads or f.heads, kv or f.kv_heads, dim or f.head_dim
    q_rows = heads * dim * (2 if f.get("attn_output_gate") else 1)
    tensors = [
        matrix(covers, "self_attn.q_proj", q_rows, f.hidden),
        matrix(covers, "self_attn.k_proj", kv * dim, f.hidden, "kv", heads=kv),
        matrix(covers, "self_attn.o_proj", f.hidden, heads * dim, "row"),
    ]
    if not key_is_value:
        tensors.append(matrix(covers, "self_attn.v_proj", kv * dim, f.hidden, "kv", heads=kv))
    if f.get("attention_bias", f.model_type.startswith(_QKV_BIAS)) or f.get("qkv_bias"):
        tensors += [vector("q_bias", q_rows, "column"), Tensor("kv_bias", kv * dim, 1, "kv", count=2, heads=kv)]
    if f.model_type.startswith(_O_BIAS):
        tensors.append(vector("o_bias", f.hidden))
    if f.get("use_head_wise_attn_gate"):
        tensors.append(matrix(covers, "self_attn.g_proj", heads, f.hidden))
    if f.model_type.startswith(_QK_NORM) or f.get("use_qk_norm"):
        tensors.append(vector("qk_norm", 2 * dim))
    if f.model_type.startswith("gpt_oss"):
        tensors.append(vector("sinks", heads, "column"))
    return tensors, [Cache("full" if kind == "full" else kind, kv, 2 * dim, window)]  # type: ignore[arg-type]


def mla(f: Facts, covers: Covers) -> Part:
    """Multi-head latent attention (DeepSeek, Kimi): one latent vector a token, the same on every rank."""
    rank, rope = int(f.get("kv_lora_rank")), int(f.get("qk_rope_head_dim", 64))
    nope, value = int(f.get("qk_nope_head_dim", 128)), int(f.get("v_head_dim", 128))
    q_rank = f.get("q_lora_rank")
    if q_rank:
        tensors = [
            matrix(covers, "self_attn.q_a_proj", int(q_rank), f.hidden, "none"),
            matrix(covers, "self_attn.q_b_proj", f.heads * (nope + rope), int(q_rank)),
            vector("q_a_norm", int(q_rank)),
        ]
    else:
        tensors = [matrix(covers, "self_attn.q_proj", f.heads * (nope + rope), f.hidden)]
    tensors += [
        matrix(covers, "self_attn.kv_a_proj_with_mqa", rank + rope, f.hidden, "none"),
        matrix(covers, "self_attn.kv_b_proj", f.heads * (nope + value), rank),
        matrix(covers, "self_attn.o_proj", f.hidden, f.heads * value, "row"),
        vector("kv_a_norm", rank),
    ]
    caches = [Cache("mla", 1, rank + rope)]
    index_heads, index_dim = int(f.get("index_n_heads", 0)), int(f.get("index_head_dim", 128))
    if index_heads:
        # Sparse attention's index: a key of one byte a value and a scale for each token.
        tensors += [
            matrix(covers, "self_attn.indexer.wq_b", index_heads * index_dim, int(q_rank or f.hidden), "none"),
            matrix(covers, "self_attn.indexer.wk", index_dim, f.hidden, "none"),
            Tensor("weights_proj", index_heads, f.hidden, "none"),
        ]
        caches.append(Cache("mla", 1, (index_dim + 4) // 2))
    return tensors, caches


def feed_forward(f: Facts, covers: Covers, width: int, path: str = "mlp") -> list[Tensor]:
    gated = not f.model_type.startswith(UNGATED)
    tensors = [
        matrix(covers, f"{path}.gate_proj", width, f.hidden, "column", 2 if gated else 1),
        matrix(covers, f"{path}.down_proj", f.hidden, width, "row"),
    ]
    if f.model_type.startswith(("opt", "starcoder2", "gpt2", "bloom")):
        tensors += [vector("mlp_bias", width, "column"), vector("mlp_bias", f.hidden)]
    return tensors


def experts(f: Facts, covers: Covers) -> list[Tensor]:
    """Routed experts, the router, and what every token also passes through."""
    gated = not f.model_type.startswith(UNGATED)
    quantised = covers("mlp.experts.0.gate_proj")
    latent = int(f.get("moe_latent_size", 0))
    width = latent or f.hidden
    tensors = [
        Tensor("gate_up", f.moe_mlp, width, "column", quantised, 2 if gated else 1, f.experts),
        Tensor("down", width, f.moe_mlp, "row", quantised, 1, f.experts),
        Tensor("router", f.experts, f.hidden, "none"),
    ]
    if f.model_type.startswith("gpt_oss"):
        tensors += [
            Tensor("expert_bias", f.moe_mlp, 1, "column", count=2, experts=f.experts),
            Tensor("expert_bias", f.hidden, 1, "none", experts=f.experts),
        ]
    if latent:  # Nemotron 3 Super: to the experts' width and back
        tensors.append(matrix(covers, "mixer.fc_latent_proj", latent, f.hidden, "none", 2))
    if f.shared_mlp:
        tensors += feed_forward(f, covers, f.shared_mlp, "mlp.shared_experts")
    if f.model_type.startswith(("qwen2_moe", "qwen3_next", "qwen3_5_moe")):
        tensors.append(Tensor("shared_gate", 1, f.hidden, "none"))
    return tensors


def _state_dtype(f: Facts) -> int:
    """Bytes of a value of the recurrent state."""
    return 4 if str(f.get("mamba_ssm_dtype", f.get("mamba_ssm_cache_dtype", ""))).endswith("32") else 2


def gated_delta(f: Facts, covers: Covers) -> Part:
    """Gated delta net (Qwen3-Next, Qwen3.5)."""
    key = int(f.get("linear_num_key_heads", 16)) * int(f.get("linear_key_head_dim", 128))
    heads, dim = int(f.get("linear_num_value_heads", 32)), int(f.get("linear_value_head_dim", 128))
    value, kernel = heads * dim, int(f.get("linear_conv_kernel_dim", 4))
    tensors = [
        matrix(covers, "linear_attn.in_proj_qkvz", 2 * key + 2 * value, f.hidden),
        matrix(covers, "linear_attn.in_proj_ba", 2 * heads, f.hidden),
        matrix(covers, "linear_attn.out_proj", f.hidden, value, "row"),
        Tensor("conv1d", 2 * key + value, kernel, "column"),
        vector("a_log_dt_norm", 2 * heads + dim, "column"),
    ]
    recurrent = heads * dim * int(f.get("linear_key_head_dim", 128))
    return tensors, [Cache("state", state_values=(((2 * key + value) * (kernel - 1), 2), (recurrent, _state_dtype(f))))]


def kimi_delta(f: Facts, covers: Covers) -> Part:
    """Kimi delta attention."""
    linear = f.get("linear_attn_config", {})
    heads, dim = int(linear.get("num_heads", 32)), int(linear.get("head_dim", 128))
    width, kernel = heads * dim, int(linear.get("short_conv_kernel_size", 4))
    tensors = [
        matrix(covers, "self_attn.q_proj", width, f.hidden, "column", 3),
        matrix(covers, "self_attn.o_proj", f.hidden, width, "row"),
        matrix(covers, "self_attn.f_a_proj", dim, f.hidden, "none", 2),
        matrix(covers, "self_attn.f_b_proj", width, dim, "column", 2),
        matrix(covers, "self_attn.b_proj", heads, f.hidden),
        Tensor("conv1d", 3 * width, kernel, "column"),
    ]
    return tensors, [Cache("state", state_values=((3 * width * (kernel - 1), 2), (heads * dim * dim, 4)))]


def mamba(f: Facts, covers: Covers) -> Part:
    """Mamba 2 (Nemotron-H, Granite 4, Bamba), or Mamba 1 (Jamba) where the configuration has no head counts."""
    heads = int(f.get("mamba_num_heads", f.get("mamba_n_heads", 0)))
    state = int(f.get("ssm_state_size", f.get("mamba_d_state", f.get("state_size", 16))))
    kernel = int(f.get("conv_kernel", f.get("mamba_d_conv", 4)))
    if not heads:
        inner = int(f.get("mamba_expand", 2)) * f.hidden
        rank = int(f.get("mamba_dt_rank", f.hidden // 16))
        tensors = [
            matrix(covers, "mamba.in_proj", 2 * inner, f.hidden),
            matrix(covers, "mamba.x_proj", rank + 2 * state, inner, "row"),
            matrix(covers, "mamba.dt_proj", inner, rank),
            matrix(covers, "mamba.out_proj", f.hidden, inner, "row"),
            Tensor("conv1d", inner, kernel + state, "column"),
        ]
        return tensors, [Cache("state", state_values=((inner * (kernel - 1), 2), (inner * state, _state_dtype(f))))]
    dim = int(f.get("mamba_head_dim", f.get("mamba_d_head", 64)))
    groups = int(f.get("n_groups", f.get("mamba_n_groups", 1)))
    inner, conv = heads * dim, heads * dim + 2 * groups * state
    tensors = [
        matrix(covers, "mixer.in_proj", inner + conv + heads, f.hidden),
        matrix(covers, "mixer.out_proj", f.hidden, inner, "row"),
        Tensor("conv1d", conv, kernel + 1, "column"),
        vector("a_d_dt_norm", 3 * heads + inner, "column"),
    ]
    return tensors, [Cache("state", state_values=((conv * (kernel - 1), 2), (heads * dim * state, _state_dtype(f))))]
