"""Models: their parameters add up to the published totals, and their configurations are read as engines read them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.domain.errors import ConfigError
from exaserve.models import MODELS, model_from_config, model_from_name
from exaserve.models.architecture import build
from exaserve.models.facts import facts_of_shape
from exaserve.models.formats import FORMATS, format_from_config

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("name", [n for n in MODELS if n != "tiny"])
def test_parameters_add_up_to_the_published_total(name: str) -> None:
    arch = build(facts_of_shape(MODELS[name]), FORMATS["bf16"])
    assert arch.parameters / 1e9 == pytest.approx(MODELS[name].params_b, rel=0.007)


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n].experts])
def test_active_parameters_are_near_the_published_ones(name: str) -> None:
    # Publishers count embeddings differently.
    arch = build(facts_of_shape(MODELS[name]), FORMATS["bf16"])
    assert arch.active_parameters / 1e9 == pytest.approx(MODELS[name].active_b, rel=0.17)


def test_a_config_and_the_table_s_row_are_the_same_model() -> None:
    assert model_from_config(LLAMA).parameters == model_from_name("Llama-3.1-8B").parameters == 8_030_261_248


def test_formats_of_quantisation_sections() -> None:
    awq = format_from_config({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True})
    assert (awq.bits, awq.group, awq.group_bytes) == (4, 64, 2.5)
    gptq = format_from_config({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True})
    assert (gptq.bits, gptq.group) == (8, 0)
    block = format_from_config({"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert block.block == (128, 128)
    mixed = format_from_config(
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
            "ignore": ["lm_head", "re:.*self_attn.*"],
        }
    )
    assert not mixed.covers("layers.3.self_attn.q_proj")
    assert mixed.covers("layers.3.mlp.gate_proj")
    nv = format_from_config({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})
    assert (nv.bits, nv.group) == (4, 16)
    with pytest.raises(ConfigError, match="does not know"):
        format_from_config({"quant_method": "homegrown"})


def test_ignored_modules_stay_at_sixteen_bit() -> None:
    section = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.gate_proj", "self_attn"]}
    plain = model_from_config({**LLAMA, "quantization_config": {"quant_method": "fp8"}})
    some = model_from_config({**LLAMA, "quantization_config": section})
    names = {t.name for layer in some.kinds for t in layer.tensors if t.quantised}
    assert names == {"gate_proj", "down_proj"}
    assert len(some.kinds) == 2  # the first layer differs
    assert len(plain.kinds) == 1


def test_a_gate_that_stays_whole_is_not_a_gate_projection() -> None:
    fmt = FORMATS["fp8"].leaving_out(["mlp.gate", "lm_head", "visual"])
    assert not fmt.covers("layers.1.mlp.gate")
    assert fmt.covers("layers.1.mlp.gate_proj")


def test_vision_towers_count_and_stay_whole() -> None:
    arch = model_from_name("Qwen/Qwen2.5-VL-7B-Instruct-AWQ")
    text = model_from_name("Qwen/Qwen2.5-7B-Instruct-AWQ")
    assert arch.vision
    assert not arch.vision[0].quantised
    assert 0.6e9 < arch.parameters - text.parameters < 0.75e9


def test_nested_configurations_describe_the_language_model() -> None:
    wrapped = {"model_type": "some_vl", "text_config": LLAMA, "vision_config": {"hidden_size": 64, "depth": 2}}
    arch = model_from_config(wrapped)
    assert arch.facts.layers == 32
    assert arch.vision


def test_old_multi_query_names() -> None:
    falcon = {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "vocab_size": 65_024,
        "multi_query": True,
    }
    assert model_from_config(falcon).facts.kv_heads == 1
    glm = {
        "model_type": "chatglm",
        "num_layers": 40,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "padded_vocab_size": 151_552,
        "ffn_hidden_size": 13_696,
        "kv_channels": 128,
        "seq_length": 131_072,
    }
    assert model_from_config(glm).facts.kv_heads == 2
    assert model_from_config(glm).facts.context == 131_072


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_configuration_without_what_sums_need_says_so(missing: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_from_config({k: v for k, v in LLAMA.items() if k != missing})
    assert missing in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*LLAMA, "num_experts", "layer_types", "sliding_window", "rope_scaling", "text_config", "vision_config"]
)


@given(st.dictionaries(KEYS, JSON, max_size=5))
def test_odd_configurations_are_refused_or_read_but_never_crash(odd: dict[str, object]) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(ConfigError):
        assert model_from_config({**LLAMA, **odd}).parameters > 0
