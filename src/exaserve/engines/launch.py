"""The command line that starts one replica of an engine on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["LAUNCHERS", "LaunchRequest", "launch_argv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What a replica is to be.

    Attributes:
        model: path or name that the engine loads.
        served_name: what clients call it.
        host / port: where it listens.
        precision: of the weights; "auto" leaves the choice to the engine.
        tp / pp: tensor and pipeline parallel sizes.
        max_model_len: prompt and output, tokens; 0 leaves the choice to the engine.
        max_num_seqs: sequences at once; 0 leaves the choice to the engine.
        extra: further arguments, last, so that they win.
    """

    model: str
    served_name: str
    host: str
    port: int
    precision: str = "auto"
    tp: int = 1
    pp: int = 1
    max_model_len: int = 0
    max_num_seqs: int = 0
    extra: tuple[str, ...] = ()


_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_QUANTIZATIONS = {"fp8": "fp8", "awq": "awq", "gptq": "gptq"}
"""Others (int8, int4, mxfp4, nvfp4) are read from the published weights by the engines themselves."""


def _where_set(**flags: object) -> list[str]:
    """``--flag value`` for every value that is not 0 or empty; ``_`` becomes ``-``."""
    argv: list[str] = []
    for name, value in flags.items():
        if value:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def _precision(wanted: str) -> list[str]:
    return _where_set(dtype=_DTYPES.get(wanted), quantization=_QUANTIZATIONS.get(wanted))


def _vllm(r: LaunchRequest) -> list[str]:
    argv = ["vllm", "serve", r.model, "--host", r.host, "--port", str(r.port), "--served-model-name", r.served_name]
    argv += ["--tensor-parallel-size", str(r.tp), "--pipeline-parallel-size", str(r.pp), *_precision(r.precision)]
    return argv + _where_set(max_model_len=r.max_model_len, max_num_seqs=r.max_num_seqs)


def _sglang(r: LaunchRequest) -> list[str]:
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--served-model-name", r.served_name, "--tp-size", str(r.tp), "--pp-size", str(r.pp), "--enable-metrics"]
    argv += _precision(r.precision)
    return argv + _where_set(context_length=r.max_model_len, max_running_requests=r.max_num_seqs)


def _trtllm(r: LaunchRequest) -> list[str]:
    argv = ["trtllm-serve", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--tp_size", str(r.tp), "--pp_size", str(r.pp)]
    argv += ["--max_seq_len", str(r.max_model_len)] if r.max_model_len else []
    return argv + (["--max_batch_size", str(r.max_num_seqs)] if r.max_num_seqs else [])


def _llamacpp(r: LaunchRequest) -> list[str]:
    # llama.cpp divides its context between its slots.
    slots = r.max_num_seqs or 1
    argv = [
        "llama-server",
        "-m",
        r.model,
        "--host",
        r.host,
        "--port",
        str(r.port),
        "--alias",
        r.served_name,
        "--metrics",
    ]
    return argv + _where_set(parallel=r.max_num_seqs, ctx_size=r.max_model_len * slots)


LAUNCHERS: Mapping[str, Callable[[LaunchRequest], list[str]]] = MappingProxyType(
    {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "llamacpp": _llamacpp}
)


def launch_argv(engine: str, request: LaunchRequest) -> list[str]:
    """Program and arguments. KeyError for an engine that is not in :data:`LAUNCHERS`."""
    return [*LAUNCHERS[engine](request), *request.extra]
