"""What a fixed number of clients see who each send the next request when the last is answered, as benchmarks do. PURE.

A replica that holds b requests decodes about b of them at a time, and between two tokens of one it computes the prompts
of the others: each of the b - 1 others brings one in the time that one request takes. So, with s(b) a decode step, P
what a prompt adds to the steps it is in, and o output tokens::

    time per token = s(b) + (b - 1) P / o x (share of a request's time that is decoding) x meeting

``meeting`` is 1 where requests are spread evenly in time. Requests of one length that began together stay together:
their prompts are then computed before most of them decode, and meet fewer of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from exaserve.perfmodel.profile import EngineProfile

__all__ = ["ClosedLoop", "closed_loop", "offline_tokens_s", "static_batch_s"]

_ROUNDS = 4

ROUNDS_OF_PROMPTS = 10
"""Requests of each client in a benchmark's run; the first of all come at once."""

LONGEST = 4.0
"""The longest answer over the mean one, where lengths are those of conversations: a run waits for it at its end."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Seconds per output token and to the first one (both means), and requests in the batch (the rest wait)."""

    token_s: float
    first_s: float
    held: float


def held_at_most(p: EngineProfile, prompt: float, output: float) -> float:
    """Requests of such lengths that the batch and the cache hold at once."""
    return max(1.0, min(float(p.max_num_seqs), p.kv_tokens_max / (prompt + 0.5 * output)))


def _decode_s(p: EngineProfile, batch: float, context: float) -> float:
    return p.step_s(0.0, batch, batch * context)


def _added_s(p: EngineProfile, batch: float, prompt: float, output: float) -> float:
    """What one prompt adds to the steps that compute it beside ``batch`` others, some of which bring prompts too."""
    together = min(max(1.0, batch / max(1.0, output)), max(1.0, p.token_budget / prompt))
    tokens, context = together * prompt, prompt + 0.5 * output
    chunks = max(1, math.ceil(tokens / p.token_budget))
    mixed = p.step_s(tokens / chunks, batch, batch * context, 0.5 * prompt * tokens / chunks)
    return chunks * (mixed - _decode_s(p, batch, context)) / together


def closed_loop(p: EngineProfile, clients: float, prompt: float, output: float, meeting: float = 1.0) -> ClosedLoop:
    """The steady state of ``clients`` clients whose requests have ``prompt`` and ``output`` tokens."""
    held = min(clients, held_at_most(p, prompt, output))
    context = prompt + 0.5 * output
    added = _added_s(p, held, prompt, output)
    own = p.first_s + p.prefill_s(prompt, 0.5 * held, 0.5 * held * context)
    batch, token_s = held, 0.0
    for _ in range(_ROUNDS):
        step = _decode_s(p, batch, context)
        decoding = output * step / (output * step + own)
        token_s = step + max(0.0, held - 1.0) * added / max(1.0, output) * decoding * meeting
        batch = max(1.0, held * output * token_s / (output * token_s + own))
    cycle = own + output * token_s
    others = max(0.0, held - 1.0) * added
    # The step under way, prompts of others that are being computed, and those that all begin with at once.
    first = (
        own
        + (0.5 * token_s + others * min(1.0, added / cycle) if held > 1.0 else 0.0)
        + 0.5 * others / ROUNDS_OF_PROMPTS
    )
    return ClosedLoop(token_s, first + (clients / held - 1.0) * cycle, held)


def offline_tokens_s(
    p: EngineProfile, prompt: float, output: float, requests: float = math.inf, spread: bool = False
) -> float:
    """Output tokens per second of one replica with all ``requests`` queued at once, until the last has its answer.

    ``spread``: their lengths differ as those of conversations do.
    """
    held = held_at_most(p, prompt, output)
    context = prompt + 0.5 * output
    steady_s = (_decode_s(p, held, context) + held * _added_s(p, held, prompt, output) / max(1.0, output)) / held
    if math.isinf(requests):
        return 1.0 / steady_s
    rest = requests % held if requests > held else requests
    took_s = (requests - rest) * output * steady_s + (static_batch_s(p, rest, prompt, output) if rest else 0.0)
    together = min(held, requests)
    if spread:
        took_s += (LONGEST - 1.0) * output * _decode_s(p, max(1.0, together / LONGEST**2), LONGEST * context)
    return requests * output / took_s


def static_batch_s(p: EngineProfile, batch: float, prompt: float, output: float) -> float:
    """Seconds for ``batch`` requests that begin and end together."""
    tokens = batch * prompt
    steps = max(1, math.ceil(tokens / p.token_budget))
    first = steps * p.step_s(tokens / steps, 0.0, 0.0, 0.5 * batch * prompt * prompt / steps)
    return first + max(0.0, output - 1.0) * _decode_s(p, batch, prompt + 0.5 * output)
