"""Start-up logs: every shape that engines have printed, and no text that crashes the reader."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.models import model_from_name
from exaserve.perfmodel import HARDWARE
from exaserve.planning import MeasuredMemory, MemoryRequest, Parallelism, compare, plan_memory, read_log

V1 = """\
INFO 09-20 10:00:00 [api_server.py:1896] vLLM API server version 0.10.2
INFO 09-20 10:00:01 [core.py:75] Initializing a V1 LLM engine (v0.10.2) with config: \
model='Qwen/Qwen3-235B-A22B-Instruct-2507-FP8', speculative_config=None, max_seq_len=32768, \
tensor_parallel_size=8, pipeline_parallel_size=1, quantization=fp8, kv_cache_dtype=auto, enable_expert_parallel=True
(Worker_TP0 pid=1) INFO 09-20 10:02:00 [gpu_model_runner.py:2392] Model loading took 27.72 GiB and 90.1 seconds
(Worker_TP0 pid=1) INFO 09-20 10:03:00 [gpu_worker.py:298] Available KV cache memory: 10.65 GiB
(Worker_TP1 pid=2) INFO 09-20 10:03:00 [gpu_worker.py:298] Available KV cache memory: 10.66 GiB
(EngineCore_0 pid=3) INFO 09-20 10:03:01 [kv_cache_utils.py:864] GPU KV cache size: 238,208 tokens
(EngineCore_0 pid=3) INFO 09-20 10:03:01 [kv_cache_utils.py:868] \
Maximum concurrency for 32,768 tokens per request: 7.27x
(Worker_TP0 pid=1) INFO 09-20 10:04:00 [gpu_model_runner.py:3118] Graph capturing finished in 31 secs, took 3.45 GiB
"""
V0 = """\
INFO 12-01 10:00:00 model_runner.py:1097] Loading model weights took 14.9888 GB
INFO 12-01 10:00:01 worker.py:241] the current vLLM instance can use total_gpu_memory (23.58GiB) x \
gpu_memory_utilization (0.90) = 21.22GiB
INFO 12-01 10:00:01 worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.35GiB; \
PyTorch activation peak memory takes 2.07GiB; the rest of the memory reserved for KV Cache is 3.81GiB.
INFO 12-01 10:00:01 gpu_executor.py:76] # GPU blocks: 1952, # CPU blocks: 2048
INFO 12-01 10:00:01 gpu_executor.py:80] Maximum concurrency for 20000 tokens per request: 1.56x
"""
NEWEST = (
    "INFO 09-01 [kv_cache_utils.py:2146] GPU KV cache size: 2,558,976 tokens, "
    "Maximum concurrency for 1,048,576 tokens per request: 2.44x\n"
)
SGLANG = """\
[2025-07-22 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-235B-A22B-FP8', tp_size=4, \
mem_fraction_static=0.93, context_length=32768, chunked_prefill_size=8192)
[2025-07-22 10:01:00 TP0] Load weight end. type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=21.60 GB, \
mem usage=55.30 GB.
[2025-07-22 10:01:10 TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB
"""
REFUSED = (
    "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated "
    "maximum model length is 34736.\n"
)
REFUSED_V0 = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in "
    "KV cache (37696).\n"
)


def test_v1() -> None:
    facts = read_log(V1)
    assert facts.model == "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
    assert (facts.version.generation, facts.version.minor, facts.version.patch) == (1, 10, 2)
    assert (facts.whole("tp"), facts.whole("length"), facts.tokens) == (8, 32_768, 238_208)
    assert facts.get("weights_gib") == 27.72
    assert facts.get("kv_gib") == 10.65  # the smallest rank decides
    assert facts.get("graphs_gib") == 3.45
    assert facts.get("concurrency") == 7.27
    assert facts.expert_parallel
    assert not facts.kv_fp8


def test_v0() -> None:
    facts = read_log(V0)
    assert facts.version.generation == 0
    assert (facts.get("total_gib"), facts.get("utilization")) == (23.58, 0.9)
    assert (facts.get("weights_gib"), facts.get("non_torch_gib"), facts.get("activation_gib")) == (14.9888, 0.35, 2.07)
    assert facts.tokens == 31_232


def test_one_line_of_the_newest() -> None:
    facts = read_log(NEWEST)
    assert (facts.tokens, facts.whole("length"), facts.get("concurrency")) == (2_558_976, 1_048_576, 2.44)


def test_sglang() -> None:
    facts = read_log(SGLANG)
    assert facts.engine == "sglang"
    assert facts.model == "Qwen/Qwen3-235B-A22B-FP8"
    assert (facts.whole("tp"), facts.tokens, facts.get("utilization")) == (4, 367_404, 0.93)
    assert facts.get("weights_gib") == 55.30


@pytest.mark.parametrize(("text", "longest"), [(REFUSED, 34_736), (REFUSED_V0, 37_696)])
def test_refusals(text: str, longest: int) -> None:
    assert read_log(text).whole("longest") == longest


def test_unified_memory_shows_negative_graphs() -> None:
    assert read_log("Graph capturing finished in 9 secs, took -0.03 GiB").get("graphs_gib") == -0.03


def test_a_log_beside_its_prediction() -> None:
    facts = read_log(V1)
    assert facts.model is not None
    request = MemoryRequest(
        model_from_name(facts.model),
        HARDWARE["L40S"],
        Parallelism(8, 1, ep=True),
        version=facts.version,
        max_model_len=facts.whole("length"),
    )
    known = MeasuredMemory(facts.get("weights_gib"), kv_gib=facts.get("kv_gib"))
    from dataclasses import replace

    rows = {r.name: r for r in compare(facts, plan_memory(request), plan_memory(replace(request, measured=known)))}
    assert abs(rows["weights"].deviation) < 0.03
    assert abs(rows["KV cache"].deviation) < 0.05
    assert abs(rows["KV cache from the log's own memory"].deviation) < 0.005
    assert "outside PyTorch" not in rows  # this log does not say


COUNTED = """\
(EngineCore pid=1) INFO 07-30 [core.py:121] Initializing a V1 LLM engine (v0.26.0) with config: model='Qwen/Qwen3-8B'
(EngineCore pid=1) INFO 07-30 [gpu_model_runner.py:6737] Estimated CUDA graph memory: 0.58 GiB total
(EngineCore pid=1) INFO 07-30 [gpu_worker.py:560] Available KV cache memory: 13.33 GiB
(EngineCore pid=1) INFO 07-30 [gpu_worker.py:726] Actual usage is 15.27 GiB for weight, 1.96 GiB for peak activation, \
0.07 GiB for non-torch memory, and 0.65 GiB for CUDAGraph memory.
"""


def test_a_log_of_an_engine_that_counts_its_graphs() -> None:
    facts = read_log(COUNTED)
    assert (facts.version.minor, facts.get("graphs_gib"), facts.get("activation_gib")) == (26, 0.58, 1.96)
    assert (facts.get("weights_gib"), facts.get("non_torch_gib")) == (15.27, 0.07)
    request = MemoryRequest(
        model_from_name("Qwen/Qwen3-8B"), HARDWARE["L40S"], version=facts.version, max_model_len=8192
    )
    plan = plan_memory(request)
    rows = {r.name: r.predicted for r in compare(facts, plan)}
    stage = plan.stages[0]
    assert rows["activation peak"] == pytest.approx((stage.activation + stage.graphs) / 2**30)


@given(
    st.sampled_from([V1, V0, SGLANG, REFUSED, NEWEST]), st.integers(0, 1500), st.integers(0, 1500), st.text(max_size=20)
)
def test_damaged_logs_never_crash(text: str, cut: int, at: int, junk: str) -> None:
    damaged = text[cut:]
    damaged = damaged[:at] + junk + damaged[at:]
    facts = read_log(damaged)
    written = {float(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*(?:\.\d+)?", damaged) if n.strip("-,")}
    assert set(facts.figures.values()) <= written, "a figure that the log does not state"
    sizes = {1, 16, facts.whole("block_size")}
    assert facts.tokens is None or any(facts.tokens == int(n) * size for n in written for size in sizes)


def test_a_figure_of_four_hundred_digits_is_no_figure() -> None:
    facts = read_log(
        f"GPU KV cache size: {'9' * 400} tokens\nMaximum concurrency for {'8' * 400} tokens per request: 2x"
    )
    assert facts.tokens is None
    assert facts.whole("length") == 0
