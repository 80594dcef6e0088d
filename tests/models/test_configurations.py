"""Configurations as publishers write them are read whole; a key that decides the layers and is missing is an error."""

from __future__ import annotations

from typing import Any

import pytest

from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_config

MLA = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61,
    "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18_432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "vocab_size": 129_280, "max_position_embeddings": 163_840, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, **MLA,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "DeepSeek-V3": (DEEPSEEK, 671.0),
    "Qwen3-30B-A3B": (
        {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 48,
            "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "intermediate_size": 6144, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "vocab_size": 151_936, "max_position_embeddings": 40_960, "sliding_window": None,
            "tie_word_embeddings": False,
        },
        30.5,
    ),
    # Leaves out what its class has by default.
    "gemma-3-4b-it": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10_240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
            },
            "vision_config": {
                "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
                "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
            },
        },
        4.30,
    ),
    "Kimi-K2.5": (
        {
            "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
            "text_config": {
                **DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64,
                "n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163_840,
                "num_nextn_predict_layers": 0, "max_position_embeddings": 262_144,
                "quantization_config": {
                    "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
                    "config_groups": {
                        "group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
                    },
                },
            },
            "vision_config": {
                "vt_num_hidden_layers": 27, "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "patch_size": 14,
                "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2],
            },
        },
        1026.9,
    ),
    "gpt-oss-120b": (
        {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 36,
            "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18, "vocab_size": 201_088,
            "max_position_embeddings": 131_072, "attention_bias": True, "tie_word_embeddings": False,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        },
        116.8,
    ),
    "Mistral-Small-3.1-24B": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "spatial_merge_size": 2,
            "text_config": {
                "model_type": "mistral", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 32,
                "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 32_768, "vocab_size": 131_072,
                "max_position_embeddings": 131_072, "sliding_window": None,
            },
            "vision_config": {
                "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                "patch_size": 14, "image_size": 1540,
            },
        },
        24.01,
    ),
    # Keys in sections of their own.
    "dbrx-base": (
        {
            "architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
            "max_seq_len": 32_768, "vocab_size": 100_352, "tie_word_embeddings": False,
            "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "ffn_config": {
                "ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4
            },
        },
        131.6,
    ),
    "falcon-7b": (
        {
            "architectures": ["FalconForCausalLM"], "model_type": "falcon", "num_hidden_layers": 32,
            "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65_024, "multi_query": True,
            "new_decoder_architecture": False,
        },
        6.92,
    ),
    "starcoder": (
        {
            "architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144,
            "n_head": 48, "n_inner": 24_576, "n_positions": 8192, "vocab_size": 49_152, "multi_query": True,
        },
        15.5,
    ),
    # Its intermediate_size is gate and up together.
    "Qwen-7B": (
        {
            "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "num_hidden_layers": 32, "hidden_size": 4096,
            "num_attention_heads": 32, "intermediate_size": 22_016, "kv_channels": 128, "vocab_size": 151_936,
            "seq_length": 8192, "tie_word_embeddings": False,
        },
        7.72,
    ),
    "Step-3.5-Flash": (
        {
            "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_hidden_layers": 45,
            "hidden_size": 4096, "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128,
            "intermediate_size": 11_264, "moe_intermediate_size": 1280, "moe_num_experts": 288, "moe_top_k": 8,
            "share_expert_dim": 1280, "moe_layers_enum": ",".join(str(i) for i in range(3, 45)),
            # Three more than there are layers: the draft's.
            "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12, "sliding_window": 512,
            "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
            "use_head_wise_attn_gate": True, "vocab_size": 128_896, "max_position_embeddings": 262_144,
            "tie_word_embeddings": False,
        },
        196.8,
    ),
    # The newer way to write the pattern of a hybrid.
    "Nemotron-H": (
        {
            "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 4096,
            "layers_block_type": [
                {"M": "mamba", "-": "mlp", "*": "attention"}[c]
                for c in "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
            ],
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21_504,
            "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
            "vocab_size": 131_072, "max_position_embeddings": 8192, "tie_word_embeddings": False,
        },
        8.10,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_add_up_to_the_published_total(name: str) -> None:
    config, total = PUBLISHED[name]
    assert model_from_config(config).parameters / 1e9 == pytest.approx(total, rel=0.01)


def test_published_contexts_are_not_stretched_twice() -> None:
    assert model_from_config(PUBLISHED["gemma-3-4b-it"][0]).facts.context == 131_072


def without(name: str, *keys: str) -> dict[str, Any]:
    config = PUBLISHED[name][0]
    inner = config.get("text_config")
    cut = {k: v for k, v in config.items() if k not in keys}
    return {**cut, "text_config": {k: v for k, v in inner.items() if k not in keys}} if inner else cut


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("DeepSeek-V3", "kv_lora_rank"),  # else ordinary attention
        ("DeepSeek-V3", "qk_rope_head_dim"),
        ("DeepSeek-V3", "n_routed_experts"),  # else dense
        ("DeepSeek-V3", "num_experts_per_tok"),
        ("DeepSeek-V3", "moe_intermediate_size"),
        ("DeepSeek-V3", "first_k_dense_replace"),
        ("DeepSeek-V3", "n_shared_experts"),
        ("DeepSeek-V3", "intermediate_size"),
        ("DeepSeek-V3", "max_position_embeddings"),
        ("Qwen3-30B-A3B", "num_experts"),
        ("Qwen3-30B-A3B", "num_key_value_heads"),
        ("Qwen3-30B-A3B", "head_dim"),
        ("gpt-oss-120b", "sliding_window"),
        ("Step-3.5-Flash", "layer_types"),
        ("Step-3.5-Flash", "attention_other_setting"),
        ("Step-3.5-Flash", "num_attention_groups"),
        ("Nemotron-H", "layers_block_type"),
        ("Nemotron-H", "ssm_state_size"),
        ("Mistral-Small-3.1-24B", "num_key_value_heads"),
        ("gemma-3-4b-it", "num_hidden_layers"),
        ("gemma-3-4b-it", "sliding_window"),
    ],
)
def test_a_missing_key_that_decides_is_an_error_that_names_it(name: str, key: str) -> None:
    with pytest.raises(ConfigError, match=r"Write it in") as caught:
        model_from_config(without(name, key))
    assert key in caught.value.message
    assert (caught.value.param or "-") in caught.value.message


@pytest.mark.parametrize("name", ["DeepSeek-V3", "gpt-oss-120b", "falcon-7b"])
def test_without_a_model_type_nothing_is_taken_for_a_llama(name: str) -> None:
    with pytest.raises(ConfigError, match="no model_type") as caught:
        model_from_config(without(name, "model_type"))
    assert caught.value.param == "model_type"
    for key in ("architectures", "num_hidden_layers", "num_key_value_heads", "num_experts_per_tok"):
        assert key in caught.value.message


def test_an_unknown_architecture_says_which_keys_decide() -> None:
    unknown = {**DEEPSEEK, "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"]}
    with pytest.raises(ConfigError, match=r"'deepseek_v4', DeepseekV4ForCausalLM.*model_type and architectures"):
        model_from_config(unknown)


def test_a_tower_of_unknown_size_is_not_counted_as_nothing() -> None:
    config = {**PUBLISHED["gemma-3-4b-it"][0], "vision_config": {"model_type": "siglip_vision_model"}}
    with pytest.raises(ConfigError, match="tower of unknown size"):
        model_from_config(config)


@pytest.mark.parametrize(
    ("change", "full"),
    [
        ({"use_sliding_window": False, "sliding_window": 4096}, 48),
        ({"sliding_window": 4096}, 48),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, 20),
    ],
)
def test_qwen_s_windows_are_off_unless_switched_on(change: dict[str, Any], full: int) -> None:
    arch = model_from_config({**PUBLISHED["Qwen3-30B-A3B"][0], **change})
    assert sum(layer.kind == "full" for layer in arch.layers) == full


def test_layers_that_share_an_index_have_none() -> None:
    dsa = {**DEEPSEEK, "model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"]}
    dsa |= {"index_n_heads": 32, "index_head_dim": 128}
    own = model_from_config(dsa)
    kinds = ["full" if i % 4 == 0 else "shared" for i in range(61)]
    some = model_from_config({**dsa, "index_topk_freq": 4, "indexer_types": kinds})
    assert sum(len(layer.caches) for layer in own.layers) == 2 * 61
    assert sum(len(layer.caches) for layer in some.layers) == 61 + 16
    assert own.parameters - some.parameters == 45 * (32 * 128 * 1536 + 128 * 7168 + 32 * 7168)
    spaced = model_from_config({**dsa, "index_topk_freq": 4, "index_skip_topk_offset": 3})
    assert sum(len(layer.caches) for layer in spaced.layers) == 61 + 3 + 14  # 0, 1, 2, 6, 10 …
    with pytest.raises(ConfigError, match="indexer_types"):
        model_from_config({**dsa, "index_topk_freq": 4})
