"""Figures that real engines printed, each with its public source. Weights and memory in GiB per rank."""

from __future__ import annotations

from dataclasses import dataclass

from exaserve.models import model_from_name
from exaserve.perfmodel import find_hardware
from exaserve.planning import MeasuredMemory, MemoryPlan, MemoryRequest, Parallelism, parse_engine, plan_memory


@dataclass(frozen=True)
class Row:
    source: str
    model: str
    card: str
    version: str
    fmt: str = "auto"
    tp: int = 1
    pp: int = 1
    ep: bool = False
    memory_gib: float = 0.0
    utilization: float = 0.9
    length: int = 0
    seqs: int = 0
    batched: int = 0
    kv_bytes: float = 2.0
    weights_gib: float | None = None
    kv_gib: float | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        return f"{self.model.rsplit('/', 1)[-1]}-{self.card}x{self.tp}-{self.version}"

    def plan(self, measured: MeasuredMemory = MeasuredMemory()) -> MemoryPlan:  # noqa: B008
        return plan_memory(
            MemoryRequest(
                arch=model_from_name(self.model, self.fmt),
                hardware=find_hardware(self.card),
                placement=Parallelism(self.tp, self.pp, self.ep),
                version=parse_engine(self.version),
                memory_gib=(self.memory_gib,) if self.memory_gib else (),
                utilization=self.utilization,
                max_model_len=self.length,
                max_num_seqs=self.seqs,
                max_num_batched_tokens=self.batched,
                kv_bytes=self.kv_bytes,
                measured=measured,
            )
        )


ROWS = (
    Row("vllm-project/vllm#10517", "meta-llama/Llama-3.1-8B-Instruct", "RTX-3090", "V0 (Dec 2024)",
        memory_gib=23.58, length=20_000, weights_gib=14.9888, kv_gib=3.81, tokens=31_232),
    Row("vllm-project/vllm#10517", "meta-llama/Llama-3.1-8B-Instruct", "RTX-3090", "V0 (Dec 2024)",
        memory_gib=23.58, length=29_000, weights_gib=14.9888, tokens=23_648),
    Row("vllm-project/vllm#21348", "Qwen/Qwen3-235B-A22B-FP8", "H100", "V1 (Jul 2025)", tp=4, tokens=178_880),
    Row("vllm-project/vllm#21348", "Qwen/Qwen3-235B-A22B-FP8", "H100", "SGLang", tp=4, utilization=0.93,
        tokens=367_404),
    Row("a public log", "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "L40S", "0.10.2", tp=8, ep=True, length=32_768,
        weights_gib=27.72, kv_gib=10.65, tokens=238_208),
    Row("a public log", "Qwen/Qwen3-VL-30B-A3B-Instruct-FP8", "RTX-PRO-6000", "0.20.2", utilization=0.7,
        length=32_768, tokens=366_880),
    Row("a public log", "Qwen/Qwen3-4B-Instruct-2507-FP8", "RTX-5090", "V1", utilization=0.92, length=32_768,
        tokens=162_144),
    Row("vllm-project/vllm#23278", "openai/gpt-oss-120b", "H100", "0.10.1", weights_gib=65.9651),
    Row("vllm-project/vllm#33155", "openai/gpt-oss-120b", "H100", "0.14.1", weights_gib=64.38),
    Row("vllm-project/vllm#17327", "Qwen/Qwen3-30B-A3B", "RTX-4090", "0.8.5", tp=4, weights_gib=14.2474),
    Row("vllm-project/vllm#6746", "meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "H100", "0.5.3", tp=8,
        weights_gib=57.752),
    Row("vllm-project/vllm#10511", "meta-llama/Meta-Llama-3-8B", "H100", "0.6.5", weights_gib=14.96),
    Row("vllm-project/vllm#10511", "meta-llama/Meta-Llama-3-8B", "H100", "0.6.5", tp=2, weights_gib=7.48),
    Row("vllm-project/vllm#12569", "meta-llama/Llama-3.1-70B-w8a8", "H100", "V1 (Jan 2025)", fmt="int8",
        weights_gib=67.7229),
    Row("vllm-project/vllm#14447", "deepseek-ai/DeepSeek-R1-AWQ-int4", "RTX-3090", "0.7.x", fmt="int4", tp=16,
        utilization=0.99, weights_gib=21.21),
    Row("a public notebook", "Qwen/Qwen2.5-1.5B-Instruct", "T4", "0.7.3", memory_gib=14.56, utilization=0.5,
        length=32_768, weights_gib=2.8875, kv_gib=2.36, tokens=88_304),
    Row("a public log", "Qwen/Qwen3-8B", "RTX-2080-TI", "V0 0.8.5", tp=4, memory_gib=21.48, utilization=0.93,
        length=65_536, batched=8192, weights_gib=3.85, kv_gib=14.49),
    Row("a public log", "Qwen/Qwen2.5-7B-Instruct-AWQ", "RTX-4080", "0.26.0", weights_gib=5.29, kv_gib=8.0),
    Row("a public log", "microsoft/phi-4", "A100-80", "V0", fmt="bnb4", utilization=0.696, weights_gib=8.63,
        kv_gib=45.21),
    Row("a public log", "deepseek-ai/DeepSeek-R1", "H20-3E", "0.7.2", tp=8, pp=2, utilization=1.0, weights_gib=39.66,
        kv_gib=97.29),
    Row("a public log", "ibm-granite/granite-4.0-micro", "L40S", "0.11.0", fmt="fp8", weights_gib=3.4244),
    Row("a public log", "google/gemma-4-26B-A4B", "A100-80", "0.19.0", weights_gib=48.5),
    Row("a public log", "Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "A100-40", "V1", weights_gib=6.59),
    Row("a public log", "meta-llama/Llama-3.1-8B-Instruct", "A10", "V0 0.7.3", memory_gib=22.07, length=131_072,
        seqs=16, weights_gib=14.9888, kv_gib=4.60, tokens=37_696),
)  # fmt: skip
"""Sources are named ``owner/repository#number`` where they have one."""
