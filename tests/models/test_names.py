"""Names of models: with owners, dates and quantisers' suffixes they lead to row and format, others to an error."""

from __future__ import annotations

import pytest

from exaserve.domain.errors import ConfigError
from exaserve.models import MODELS, find_shape, model_from_name
from exaserve.models.formats import format_from_name

AS_WRITTEN = {
    "Llama-3.1-8B": (
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    ),
    "Llama-3.1-70B": (
        "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8",
        "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF",
        "NousResearch/Hermes-4-70B",
    ),
    "Llama-3.1-405B": ("amd/Llama-3.1-405B-Instruct-MXFP4-Preview",),
    "Llama-3.3-70B": (
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "nvidia/Llama-3.3-70B-Instruct-FP4",
    ),
    "Llama-3-8B": ("llama-3-8b",),
    "Llama-3-70B": ("Llama-3-70B",),
    "Llama-2-13B": (
        "meta-llama/Llama-2-13b-chat-hf",
        "TheBloke/Llama-2-13B-GPTQ",
    ),
    "Llama-4-Scout": ("meta-llama/Llama-4-Scout-17B-16E-Instruct",),
    "CodeLlama-34B": ("codellama/CodeLlama-34b-Instruct-hf",),
    "Qwen3-235B-A22B": ("nvidia/Qwen3-235B-A22B-FP8",),
    "Qwen3-235B-A22B-2507": ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",),
    "Qwen3-30B-A3B-2507": ("Qwen/Qwen3-30B-A3B-Thinking-2507",),
    "Qwen3-4B-2507": ("Qwen/Qwen3-4B-Instruct-2507",),
    "Qwen3-VL-30B-A3B": ("Qwen/Qwen3-VL-30B-A3B-Instruct-FP8",),
    "Qwen3-Coder-30B-A3B": ("Qwen/Qwen3-Coder-30B-A3B-Instruct",),
    "Qwen3-Next-80B-A3B": (
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "Qwen/Qwen3-Coder-Next",
    ),
    "Qwen3.5-397B-A17B": ("Qwen/Qwen3.5-397B-A17B-FP8",),
    "Qwen3.5-27B": ("Qwen/Qwen3.6-27B",),
    "Qwen3.5-0.8B": ("Qwen/Qwen3.5-0.8B",),
    "Qwen2.5-32B": (
        "Qwen/Qwen2.5-Coder-32B-Instruct-AWQ",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    ),
    "Qwen2.5-7B": ("Qwen/Qwen2.5-7B-Instruct",),
    "Qwen2.5-72B": (
        "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4",
        "moonshotai/Kimi-Dev-72B",
    ),
    "QwQ-32B": ("Qwen/QwQ-32B-AWQ",),
    "Qwen1.5-7B": ("Qwen/Qwen1.5-7B-Chat (MHA)",),
    "DeepSeek-R1": (
        "deepseek-ai/DeepSeek-R1-0528",
        "nvidia/DeepSeek-R1-0528-FP4",
        "amd/DeepSeek-R1-MXFP4",
    ),
    "DeepSeek-V3": (
        "deepseek-ai/DeepSeek-V3.1",
        "deepseek-ai/DeepSeek-V3.1-Terminus",
        "nvidia/DeepSeek-V3.1-NVFP4",
        "deepseek-ai/DeepSeek-V3-0324",
    ),
    "DeepSeek-V3.2": ("deepseek-ai/DeepSeek-V3.2-Exp",),
    "Kimi-K2": ("moonshotai/Kimi-K2-Instruct",),
    "Kimi-K2-0905": ("moonshotai/Kimi-K2-Instruct-0905",),
    "Kimi-K2-Thinking": ("moonshotai/Kimi-K2-Thinking",),
    "Kimi-K2.5": (
        "moonshotai/Kimi-K2.5",
        "nvidia/Kimi-K2.5-NVFP4",
        "moonshotai/Kimi-K2.7-Code",
    ),
    "GLM-5": (
        "zai-org/GLM-5",
        "zai-org/GLM-5-FP8",
        "nvidia/GLM-5-NVFP4",
    ),
    "GLM-5.2": ("zai-org/GLM-5.2-FP8",),
    "GLM-4.6": (
        "zai-org/GLM-4.7",
        "zai-org/GLM-4.7-FP8",
    ),
    "GLM-4.7-Flash": ("zai-org/GLM-4.7-Flash",),
    "GLM-4.5-Air": (
        "zai-org/GLM-4.5-Air-FP8",
        "PrimeIntellect/INTELLECT-3",
    ),
    "MiniMax-M2": (
        "MiniMaxAI/MiniMax-M2",
        "MiniMaxAI/MiniMax-M2.1",
        "nvidia/MiniMax-M2.5-NVFP4",
    ),
    "MiniMax-M2.7": ("MiniMaxAI/MiniMax-M2.7",),
    "Mistral-7B": ("mistralai/Mistral-7B-Instruct-v0.3",),
    "Mistral-7B-v0.1": ("mistralai/Mistral-7B-Instruct-v0.1",),
    "Mixtral-8x7B": ("mistralai/Mixtral-8x7B-Instruct-v0.1",),
    "Mistral-Small-24B": (
        "mistralai/Mistral-Small-24B-Instruct-2501",
        "mistralai/Magistral-Small-2506",
    ),
    "Mistral-Small-22B": ("mistralai/Mistral-Small-Instruct-2409",),
    "Mistral-Small-3.1-24B": ("mistralai/Mistral-Small-3.2-24B-Instruct-2506",),
    "Mistral-Small-4-119B": ("mistralai/Mistral-Small-4-119B-2603",),
    "Mistral-Large-123B": ("mistralai/Mistral-Large-Instruct-2411",),
    "Mistral-Large-3-675B": ("mistralai/Mistral-Large-3-675B-Instruct-2512",),
    "Ministral-8B": ("mistralai/Ministral-8B-Instruct-2410",),
    "Ministral-3-3B": ("mistralai/Ministral-3-3B-Base-2512",),
    "Ministral-3-8B": ("Ministral-3-8B",),
    "Ministral-3-14B": ("mistralai/Ministral-3-14B-Reasoning-2512",),
    "Devstral-24B": ("mistralai/Devstral-Small-2507",),
    "Devstral-2-123B": ("mistralai/Devstral-2-123B-Instruct-2512",),
    "Devstral-Small-2-24B": ("mistralai/Devstral-Small-2-24B-Instruct-2512",),
    "Gemma-3-27B": ("google/gemma-3-27b-it",),
    "Gemma-3-4B": ("google/gemma-3-4b-it",),
    "Gemma-3-270M": ("google/gemma-3-270m-it",),
    "Gemma-4-E4B": ("google/gemma-4-E4B-it",),
    "Gemma-4-26B-A4B": ("google/gemma-4-26B-A4B-it",),
    "Phi-4": ("microsoft/phi-4",),
    "Phi-3-mini-4k": ("microsoft/Phi-3-mini-4k-instruct",),
    "gpt-oss-120b": ("openai/gpt-oss-120b",),
    "gpt-oss-20b": (
        "openai/gpt-oss-20b",
        "openai/gpt-oss-safeguard-20b",
    ),
    "Nemotron-3-Nano-30B-A3B": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
    "Nemotron-3-Super-120B-A12B": ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",),
    "Step-3.5-Flash": ("stepfun-ai/Step-3.5-Flash-FP8",),
    "Hunyuan-A13B": ("tencent/Hunyuan-A13B-Instruct-FP8",),
    "ERNIE-4.5-21B-A3B": ("baidu/ERNIE-4.5-21B-A3B-PT",),
    "Seed-OSS-36B": ("ByteDance-Seed/Seed-OSS-36B-Instruct",),
    "Olmo-3-7B": ("allenai/Olmo-3-7B-Instruct",),
    "Olmo-3-32B": (
        "allenai/Olmo-3-1125-32B",
        "allenai/Olmo-3.1-32B-Think",
    ),
    "OLMo-2-7B": ("allenai/OLMo-2-1124-7B-Instruct",),
    "Yi-34B": ("01-ai/Yi-1.5-34B-Chat",),
    "InternLM2-7B": ("internlm/internlm2_5-7b-chat",),
    "Command-R-Plus": ("CohereForAI/c4ai-command-r-plus",),
    "Falcon-40B": ("tiiuae/falcon-40b-instruct",),
}


@pytest.mark.parametrize(("row", "names"), AS_WRITTEN.items(), ids=AS_WRITTEN)
def test_names_as_people_write_them(row: str, names: tuple[str, ...]) -> None:
    for name in names:
        assert find_shape(name).name == row, name


@pytest.mark.parametrize("row", MODELS)
def test_a_row_s_own_name_finds_it(row: str) -> None:
    assert find_shape(row).name == row
    if row != "tiny":
        assert find_shape(f"somebody/{row}-AWQ").name == row


@pytest.mark.parametrize(
    "name",
    # Other versions, other sizes, other kinds: near a row, and not it.
    [
        "deepseek-ai/DeepSeek-V4-Flash",
        "DeepSeek-V3.9",
        "DeepSeek-R1-tiny-1.1B",
        "zai-org/GLM-5.9",
        "zai-org/GLM-4.5V",
        "moonshotai/Kimi-K3",
        "MiniMaxAI/MiniMax-M3",
        "MiniMax-M2.9",
        "mistralai/Mistral-Medium-3.5-128B",
        "mistralai/Mistral-Small-5-200B",
        "Qwen/Qwen3-Embedding-8B",
        "Qwen/Qwen3-Omni-30B-A3B",
        "google/gemma-3n-E4B-it",
        "stepfun-ai/Step-3.7-Flash",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5",
        "Llama-3.2-11B-Vision",
        "tiny-random-gpt2",
        "Lama-3.1-9B-Extra",
        "",
    ],
)
def test_another_model_is_not_taken_for_one_of_the_table(name: str) -> None:
    with pytest.raises(ConfigError, match="Unknown model") as caught:
        find_shape(name)
    assert caught.value.param == "model"
    assert "folder that holds its config.json" in caught.value.message


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean Llama-3\.1-8B"):
        find_shape("Llama-3.1-9B")


FORMATS_OF_NAMES = {
    "Qwen/Qwen3-8B-FP8": "fp8-block",
    "zai-org/GLM-5-FP8": "fp8-block",
    "RedHatAI/Qwen3-8B-FP8-dynamic": "fp8",
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8": "fp8",
    "amd/Llama-3.1-70B-Instruct-FP8-KV": "fp8",
    "meta-llama/Llama-3.1-405B-Instruct-FP8": "fbgemm-fp8",
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": "awq",
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": "gptq",
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": "gptq8",
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": "nvfp4",
    "nvidia/DeepSeek-R1-FP4": "nvfp4",
    "amd/DeepSeek-R1-MXFP4": "mxfp4",
    "unsloth/Qwen2.5-7B-Instruct-bnb-4bit": "bnb4",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "int4",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "int8",
    "mlx-community/Qwen3-8B-4bit": "int4",
    "unsloth/gpt-oss-20b-BF16": "bf16",
    "google/gemma-3-4b-it": "",
    "google/gemma-4-26B-A4B-it": "",
    "Qwen/Qwen3-8B": "",
}


@pytest.mark.parametrize(("name", "fmt"), FORMATS_OF_NAMES.items(), ids=FORMATS_OF_NAMES)
def test_formats_that_names_state(name: str, fmt: str) -> None:
    found = format_from_name(name)
    assert (found.name if found else "") == fmt


@pytest.mark.parametrize(
    ("name", "fmt", "experts_only"),
    [
        ("deepseek-ai/DeepSeek-V3.1", "fp8-block", False),
        ("MiniMaxAI/MiniMax-M2.5", "fp8-block", False),
        ("zai-org/GLM-5", "bf16", False),
        ("moonshotai/Kimi-K2.5", "int4", True),
        ("moonshotai/Kimi-K2-Thinking", "int4", True),
        ("moonshotai/Kimi-K2-Instruct-0905", "fp8-block", False),
        ("openai/gpt-oss-120b", "mxfp4", True),
        ("mistralai/Ministral-3-8B-Instruct-2512", "fp8", False),
        ("mistralai/Ministral-3-8B-Reasoning-2512", "bf16", False),
    ],
)
def test_weights_are_in_the_format_they_are_published_in(name: str, fmt: str, experts_only: bool) -> None:
    found = model_from_name(name).fmt
    assert (found.name, found.experts_only) == (fmt, experts_only)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("turboderp/Llama-3-70B-exl2", "not modelled"),
        ("mlx-community/Qwen3-8B-3bit", "not modelled"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "draft"),
        ("bartowski/Llama-3-8B-GGUF", "GGUF"),
    ],
)
def test_weights_that_are_not_modelled_are_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model_from_name(name)
