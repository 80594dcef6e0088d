"""What a checkpoint says of its precision: folders, the hub's cache, names."""

from __future__ import annotations

import json

import pytest

from exaserve.config import hub_folder
from exaserve.engines.checkpoint import own_quantization

FP8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}


@pytest.mark.parametrize(
    ("config", "beside", "method"),
    [
        ({}, None, ""),
        (FP8, None, "fp8"),
        ({"text_config": FP8}, None, "fp8"),
        ({"compression_config": {"format": "float-quantized"}}, None, "compressed-tensors"),
        ({"model_type": "llama"}, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, "modelopt"),
        ({"model_type": "llama"}, {"quantization": {"quant_algo": None}}, ""),
        ({"quantization_config": None}, None, ""),
    ],
)
def test_a_folder(config, beside, method, tmp_path) -> None:
    model = tmp_path / "Model-FP8"  # what is in the folder counts more than its name
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    if beside is not None:
        (model / "hf_quant_config.json").write_text(json.dumps(beside))
    assert own_quantization(str(model), tmp_path) == method


def test_the_hubs_cache(tmp_path) -> None:
    assert own_quantization("org/model", tmp_path) == ""
    repository = tmp_path / "models--org--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(FP8))
    assert own_quantization("org/model", tmp_path) == "fp8"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("org/Llama-3.1-70B-Instruct", ""),
        ("org/Llama-3.1-70B-Instruct-FP8-dynamic", "fp8"),
        ("org/Qwen3-32B-AWQ", "awq"),
        ("org/Llama-quantized.w4a16", "w4a16"),
        ("fp8/Llama-3.1-8B", ""),
        ("org/Awqward-7B", ""),
        ("org/DeepSeek-NVFP4/", "nvfp4"),
    ],
)
def test_a_name_says_it_where_nothing_else_is_known(name, method, tmp_path) -> None:
    assert own_quantization(name, tmp_path) == method


def test_what_is_no_json_object_says_nothing(tmp_path) -> None:
    for text in ("", "[1]", "{", "\xff"):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        assert own_quantization(str(tmp_path), tmp_path) == ""


def test_where_the_hub_keeps_things() -> None:
    assert str(hub_folder({"HOME": "/h"})) == "/h/.cache/huggingface/hub"
    assert str(hub_folder({"HOME": "/h", "HF_HOME": "/x"})) == "/x/hub"
    assert str(hub_folder({"HF_HOME": "/x", "HF_HUB_CACHE": "/y"})) == "/y"
