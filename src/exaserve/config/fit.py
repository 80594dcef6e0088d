"""Whether a pool's replicas fit the cards they are started on, by the planner's memory model."""

from __future__ import annotations

from collections.abc import Sequence

from exaserve.config.cluster import Pool
from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_name
from exaserve.perfmodel import find_hardware
from exaserve.planning import EngineVersion, MemoryRequest, Parallelism, plan_memory

__all__ = ["misfit"]

_PLANNED = ("vllm", "sglang")
"""Engines whose memory the planner models."""
_OTHER_MEMORY = (
    "--quantization",
    "-q",
    "--cpu-offload-gb",
    "--load-format",
    "--torchao-config",
    "--num-gpu-blocks-override",
)
"""Arguments that change what a replica needs in ways that are not modelled."""


def misfit(pool: Pool) -> str:
    """Why a replica of the pool would not start on its cards; "" where it would, or where nobody can tell.

    Nobody can tell where the model or the hardware is not in the tables, or an argument changes what is needed.
    """
    arguments = _flags(pool.engine_args)
    if pool.engine not in _PLANNED or pool.accelerator == "cpu" or pool.profile or pool.kv_tokens_max:
        return ""
    if any(name in arguments for name in _OTHER_MEMORY):
        return ""
    try:
        hardware = find_hardware(pool.hardware)
        plan = plan_memory(
            MemoryRequest(
                arch=model_from_name(pool.model, pool.precision),
                hardware=hardware,
                placement=Parallelism(
                    pool.tensor_parallel_size,
                    pool.pipeline_parallel_size,
                    "--enable-expert-parallel" in arguments or "--ep-size" in arguments,
                ),
                version=EngineVersion(name="sglang" if pool.engine == "sglang" else "vllm"),
                utilization=pool.gpu_memory_utilization or _share(arguments),
                max_model_len=pool.max_model_len or _whole(arguments, "--max-model-len"),
                max_num_seqs=pool.max_num_seqs,
                max_num_batched_tokens=_whole(arguments, "--max-num-batched-tokens"),
                kv_bytes=1.0 if arguments.get("--kv-cache-dtype", "").startswith("fp8") else 2.0,
                eager="--enforce-eager" in arguments,
            )
        )
    except ConfigError:
        return ""
    if plan.fits:
        return ""
    cards = pool.tensor_parallel_size * pool.pipeline_parallel_size
    what = f"{cards} x {hardware.name}" if cards > 1 else f"one {hardware.name}"
    return f"{pool.model} does not start on {what}: {plan.refusals[0]}"


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """``--flag value`` and ``--flag=value`` as a mapping; a flag without a value has ""."""
    found: dict[str, str] = {}
    for word, following in zip(arguments, (*arguments[1:], ""), strict=False):
        if word.startswith("-"):
            name, _, value = word.partition("=")
            found[name] = value or ("" if following.startswith("-") else following)
    return found


def _share(arguments: dict[str, str]) -> float:
    for name in ("--gpu-memory-utilization", "--mem-fraction-static"):
        try:
            return float(arguments[name])
        except (KeyError, ValueError):
            continue
    return 0.9


def _whole(arguments: dict[str, str], name: str) -> int:
    text = arguments.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
