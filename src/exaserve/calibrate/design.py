"""Which runs a calibration needs, cut to what the engine allows. PURE.

The runs are the text-book baseline of one replica: lone prompts of 128, 512, 2048 and 8192 tokens, then steady batches
of several sizes at several context lengths, then short probes into loaded batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["BatchRun", "Design", "ProbeRun", "design_runs"]

KV_SHARE_MAX = 0.7
"""Share of the cache that a run may fill: above it engines preempt, and measure that."""
OUTPUT_RESERVE = 16
STEPS_MIN = 16
PREFILL_TOKENS_PER_STEP = 1_024
"""A careful guess at how many prompt tokens a step takes, for how long early sequences must wait for late ones."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """``sequences`` prompts of ``prompt_tokens`` sent together, with answers long enough that all decode at once."""

    sequences: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """A background batch, and short prompts sent into it after some of its tokens."""

    background: BatchRun
    after_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What to run.

    Attributes:
        prompts: lengths of lone prompts, tokens; each ``repeats`` times, after ``repeats_cold`` that do not count.
        batches: sequences at once.
        contexts: prompt lengths of the batches, tokens.
        steps: decode steps measured of each batch.
        probes: background batches for the score's weights, as (sequences, context).
        probe_tokens: length of the short prompts.
        probe_after_s: when they are sent, after the background's last first token, seconds.
    """

    prompts: tuple[int, ...] = (128, 512, 2048, 8192)
    repeats: int = 5
    repeats_cold: int = 1
    batches: tuple[int, ...] = (1, 4, 16, 64)
    contexts: tuple[int, ...] = (128, 2048, 8192)
    steps: int = 64
    probes: tuple[tuple[int, int], ...] = ((1, 128), (8, 512), (8, 2048), (32, 512), (32, 2048))
    probe_tokens: int = 128
    probe_after_s: tuple[float, ...] = (0.2, 1.0, 3.0)


def design_runs(design: Design, limits: Mapping[str, int]) -> tuple[list[int], list[BatchRun], list[ProbeRun]]:
    """Lone prompts, batches and probes within an engine's limits.

    Args:
        limits: ``max_model_len``, ``kv_tokens_max``, ``max_num_seqs``, as far as they are known (0 or absent if not).
    """
    longest = (limits.get("max_model_len") or 1 << 30) - OUTPUT_RESERVE
    prompts = sorted({n for n in design.prompts if n <= longest})
    if prompts and prompts[-1] < longest < max(design.prompts):
        prompts.append(longest)  # the longest there is carries the quadratic part best
    return prompts, list(_batches(design, limits)), list(_probes(design, limits))


def _fitting(sequences: int, prompt: int, steps: int, limits: Mapping[str, int]) -> BatchRun | None:
    """A batch within the limits; its answers are cut where the context is short, and it is dropped where too short."""
    waits = -(-sequences * prompt // PREFILL_TOKENS_PER_STEP)
    output = steps + waits + 8
    length = limits.get("max_model_len") or 1 << 30
    output = min(output, length - prompt - OUTPUT_RESERVE)
    room = KV_SHARE_MAX * (limits.get("kv_tokens_max") or 1 << 60)
    if output < waits + STEPS_MIN or sequences * (prompt + output) > room:
        return None
    return BatchRun(sequences, prompt, output) if sequences <= (limits.get("max_num_seqs") or sequences) else None


def _batches(design: Design, limits: Mapping[str, int]) -> Iterator[BatchRun]:
    length = limits.get("max_model_len") or 1 << 30
    contexts = sorted({min(c, max(128, length - 2 * design.steps - 64)) for c in design.contexts})
    for sequences, context in itertools.product(sorted(set(design.batches)), contexts):
        batch = _fitting(sequences, context, design.steps, limits)
        if batch is not None:
            yield batch


def _probes(design: Design, limits: Mapping[str, int]) -> Iterator[ProbeRun]:
    for sequences, context in design.probes:
        # As long as the probes need; how long a step takes is not known yet, so the background is ended when they are.
        batch = _fitting(sequences, context, 2_048, limits)
        if batch is not None:
            yield ProbeRun(batch, design.probe_after_s)
