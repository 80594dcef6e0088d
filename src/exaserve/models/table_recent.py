"""Models of 2025 and 2026, from each one's published ``config.json`` or, where that leaves a key out, the default of
its class in the transformers library; parameters as published, without draft layers.
"""

from __future__ import annotations

from typing import Any

from exaserve.models.shape import ModelShape, dense, mixture, sibling

__all__ = ["RECENT"]

_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14,
    "image_size": 1540,
}  # fmt: skip
_MINISTRAL: dict[str, Any] = {"model_type": "ministral3", "vision_config": _PIXTRAL}
_OLMO3: dict[str, Any] = {"model_type": "olmo3", "sliding_window": 4096, "sliding_window_pattern": 4}
_MLA: dict[str, Any] = {"n_shared_experts": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
_GLM_MLA: dict[str, Any] = {**_MLA, "qk_nope_head_dim": 192, "v_head_dim": 256, "num_nextn_predict_layers": 1}
_GDN: dict[str, Any] = {
    "model_type": "qwen3_5", "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "attn_output_gate": True, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "linear_num_value_heads": 16, "tie_word_embeddings": True,
}  # fmt: skip
_QWEN35_VISION = {
    "model_type": "qwen3_5", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 16,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
}  # fmt: skip
_GEMMA4: dict[str, Any] = {"model_type": "gemma4", "global_head_dim": 512, "tie_word_embeddings": True}
_PER_LAYER: dict[str, Any] = {**_GEMMA4, "sliding_window": 512, "hidden_size_per_layer_input": 256}
_STEP: dict[str, Any] = {
    "layer_types": ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(45)],
    "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
    "use_head_wise_attn_gate": True, "moe_layers_enum": ",".join(str(i) for i in range(3, 45)), "sliding_window": 512,
    "intermediate_size": 11_264, "share_expert_dim": 1_280, "use_qk_norm": True,
}  # fmt: skip
_MISTRAL_24B = dense(
    "Mistral-Small-3.1-24B", 24.011, 40, 5120, 32, 8, 128, 131_072, 131_072, 32_768, "mistral", vision_config=_PIXTRAL
)
_GLM5 = mixture("GLM-5", (743.9, 40.0), 78, 6144, (64, 64, 256), 154_880, 202_752, (256, 8), 2_048, "glm_moe_dsa",
    mla=576, q_lora_rank=2048, intermediate_size=12_288, first_k_dense_replace=3, index_n_heads=32,
    index_head_dim=128, **_GLM_MLA)  # fmt: skip

RECENT: tuple[ModelShape, ...] = (
    # Mistral
    _MISTRAL_24B,
    sibling(_MISTRAL_24B, "Devstral-Small-2-24B", context=393_216),
    dense("Ministral-3-3B", 3.849, 26, 3072, 32, 8, 128, 131_072, 262_144, 9_216, **_MINISTRAL,
          tie_word_embeddings=True),
    dense("Ministral-3-8B", 8.918, 34, 4096, 32, 8, 128, 131_072, 262_144, 14_336, **_MINISTRAL),
    dense("Ministral-3-14B", 13.945, 40, 5120, 32, 8, 128, 131_072, 262_144, 16_384, **_MINISTRAL),
    dense("Devstral-2-123B", 125.03, 88, 12288, 96, 8, 128, 131_072, 262_144, 28_672, "ministral3"),
    mixture("Mistral-Small-4-119B", (119.4, 6.5), 36, 4096, (32, 32, 128), 131_072, 1_048_576, (128, 4), 2_048,
            "mistral4", mla=320, q_lora_rank=1024, intermediate_size=12_288, first_k_dense_replace=0,
            vision_config=_PIXTRAL, **{**_MLA, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "v_head_dim": 128}),
    mixture("Mistral-Large-3-675B", (675.6, 41.0), 61, 7168, (128, 128, 192), 131_072, 294_912, (128, 4), 4_096,
            "deepseek_v3", mla=576, q_lora_rank=1536, intermediate_size=16_384, first_k_dense_replace=3,
            qk_nope_head_dim=128, v_head_dim=128, **_MLA,
            vision_config={**_PIXTRAL, "hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48}),
    # Qwen
    dense("Qwen3.5-0.8B", 0.853, 24, 1024, 8, 2, 256, 248_320, 262_144, 3_584, **_GDN,
          vision_config={**_QWEN35_VISION, "depth": 12, "hidden_size": 768, "intermediate_size": 3072}),
    dense("Qwen3.5-2B", 2.213, 24, 2048, 8, 2, 256, 248_320, 262_144, 6_144, **_GDN, vision_config=_QWEN35_VISION),
    # Google; the small ones of Gemma 4 hear and see by towers that are counted whole
    dense("Gemma-3-270M", 0.268, 18, 640, 4, 1, 256, 262_144, 32_768, 2_048, "gemma3_text", (15, 512),
          sliding_window=512, sliding_window_pattern=6, tie_word_embeddings=True),
    dense("Gemma-4-E2B", 5.12, 35, 1536, 8, 1, 256, 262_144, 131_072, 6_144, sliding=(28, 512), **_PER_LAYER,
          num_kv_shared_layers=20, use_double_wide_mlp=True, sliding_window_pattern=5, other_parameters=475_000_000),
    dense("Gemma-4-E4B", 7.95, 42, 2560, 8, 2, 256, 262_144, 131_072, 10_240, sliding=(35, 512), **_PER_LAYER,
          num_kv_shared_layers=18, sliding_window_pattern=6, other_parameters=475_000_000),
    dense("Gemma-4-12B", 11.95, 48, 3840, 16, 8, 256, 262_144, 262_144, 15_360, sliding=(40, 1024), **_GEMMA4,
          num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=1024, sliding_window_pattern=6),
    # Zhipu
    _GLM5,
    sibling(_GLM5, "GLM-5.2", params_b=743.4, context=1_048_576,
            config={"index_topk_freq": 4, "index_skip_topk_offset": 3}),
    mixture("GLM-4.7-Flash", (29.94, 3.6), 47, 2048, (20, 20, 256), 154_880, 202_752, (64, 4), 1_536, "glm4_moe_lite",
            mla=576, q_lora_rank=768, intermediate_size=10_240, first_k_dense_replace=1, **_GLM_MLA),
    # NVIDIA: experts work on a narrower, "latent" width
    mixture("Nemotron-3-Super-120B-A12B", (120.6, 12.7), 88, 4096, (32, 2, 128), 131_072, 262_144, (512, 22), 2_688,
            "nemotron_h", moe_latent_size=1_024, n_shared_experts=1, moe_shared_expert_intermediate_size=5_376,
            mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
            num_nextn_predict_layers=1,
            hybrid_override_pattern="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*"
            "EMEMEMEME"),
    # StepFun: layers with a window have more query heads
    mixture("Step-3.5-Flash", (196.81, 11.0), 45, 4096, (64, 8, 128), 128_896, 262_144, (288, 8), 1_280, "step3p5",
            sliding=(33, 512), **_STEP),
    # Baidu
    dense("ERNIE-4.5-0.3B", 0.361, 18, 1024, 16, 2, 128, 103_424, 131_072, 3_072, "ernie4_5", tie_word_embeddings=True),
    mixture("ERNIE-4.5-21B-A3B", (21.83, 3.0), 28, 2560, (20, 4, 128), 103_424, 131_072, (64, 6), 1_536, "ernie4_5_moe",
            intermediate_size=12_288, moe_num_shared_experts=2, moe_layer_start_index=1, tie_word_embeddings=True),
    # Ai2
    dense("Olmo-3-7B", 7.298, 32, 4096, 32, 32, 128, 100_278, 65_536, 11_008, sliding=(24, 4096), **_OLMO3),
    dense("Olmo-3-32B", 32.234, 64, 5120, 40, 8, 128, 100_278, 65_536, 27_648, sliding=(48, 4096), **_OLMO3),
)  # fmt: skip
