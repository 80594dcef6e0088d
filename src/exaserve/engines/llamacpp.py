"""llama.cpp's server.

It has no metrics unless started with ``--metrics``. Releases since May 2025 say nothing of the KV cache; some print
broken lines between good ones. Adapters apply to every request, whatever model it names.
"""

from __future__ import annotations

from exaserve.engines.base import Engine, Launch, LaunchRequest, MetricSource, flags

__all__ = ["LLAMACPP"]

_DEFAULT_SEQS = 256
"""What a pool says where nobody has said anything."""
_SLOTS = 4
"""Of a llama.cpp server that chooses for itself."""


def _launch(r: LaunchRequest) -> Launch:
    """``llama-server``: a GGUF file, or a hub's name with an optional quantisation (``org/name:Q4_K_M``).

    Its context is for all slots together, and each given slot has its share; 256 of them would leave nobody anything.
    """
    slots = 0 if r.max_num_seqs == _DEFAULT_SEQS else r.max_num_seqs
    source = "-m" if r.model.endswith(".gguf") or r.model.startswith(("/", ".")) else "-hf"
    argv = ["llama-server", source, r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--alias", r.served_name, "--metrics"]
    argv += flags(parallel=slots, ctx_size=r.max_model_len * (slots or _SLOTS))
    return Launch((*argv, *r.extra), {"LLAMA_CACHE": f"{r.cache_dir}/llama.cpp"} if r.cache_dir else {})


LLAMACPP = Engine(
    name="llamacpp",
    aliases=("llama.cpp",),
    prefixes=(b"llamacpp:",),
    sources={
        "running": (MetricSource(b"llamacpp:requests_processing"),),
        "waiting": (MetricSource(b"llamacpp:requests_deferred"),),
        "kv_use": (MetricSource(b"llamacpp:kv_cache_usage_ratio", "max"),),
        "prompt_tokens_total": (MetricSource(b"llamacpp:prompt_tokens_total"),),
        "generation_tokens_total": (MetricSource(b"llamacpp:tokens_predicted_total"),),
    },
    expected=("running", "waiting", "prompt_tokens_total", "generation_tokens_total"),
    launch=_launch,
    named_adapters=False,
)
