"""What a cluster of emulated replicas can do at most with a mix of requests, found in virtual time."""

from __future__ import annotations

import random

from exaserve.bench import Mix
from exaserve.config import Pool
from exaserve.perfmodel import profile
from exaserve.perfmodel.engine import Engine, Request

__all__ = ["replica_capacity_per_s"]

_REQUESTS = 600
_IN_REPLICA = (4, 8, 12, 16, 24, 32, 64)
"""Requests a saturated replica holds. Too few leave its batch inefficient, too many make its KV cache thrash."""


def replica_capacity_per_s(pool: Pool, mix: Mix, seed: int = 0) -> float:
    """Requests per second that one replica completes at most, over how many it may hold at once.

    The same engine model as the emulator's, run without a clock, so that "80 % load" means the same on every machine.
    """
    return max(_throughput_per_s(pool, mix, held, seed) for held in _IN_REPLICA)


def _throughput_per_s(pool: Pool, mix: Mix, held: int, seed: int) -> float:
    engine = Engine(
        profile(
            pool.hardware,
            pool.model,
            pool.precision,
            tp=pool.tensor_parallel_size,
            pp=pool.pipeline_parallel_size,
            max_num_seqs=pool.max_num_seqs,
            token_budget=pool.emulator.token_budget,
            block_size=pool.emulator.block_size,
            max_model_len=pool.max_model_len or None,
        ),
        speed=pool.emulator.speed,
    )
    rng = random.Random(seed)
    now, submitted, finished = 0.0, 0, 0
    while finished < _REQUESTS:
        while submitted - finished < held:
            scenario = rng.choices(mix.scenarios, mix.shares())[0]
            engine.submit(Request(scenario.prompt_tokens, scenario.output.draw(rng)), now)
            submitted += 1
        ends_at = engine.begin_step(now)
        assert ends_at is not None, "there is work"
        now = ends_at
        finished += len(engine.end_step(now).finished)
    return finished / now
