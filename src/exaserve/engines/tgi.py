"""Text Generation Inference.

It says nothing of the KV cache: ``tgi_batch_current_max_tokens`` is a bound on the batch, not its use.
"""

from __future__ import annotations

from exaserve.engines.base import Engine, MetricSource

__all__ = ["TGI"]

TGI = Engine(
    name="tgi",
    prefixes=(b"tgi_",),
    sources={
        "running": (MetricSource(b"tgi_batch_current_size"),),
        "waiting": (MetricSource(b"tgi_queue_size"),),
    },
    expected=("running", "waiting"),
)
