# compiled
"""One request inside the engine model: what was asked, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

__all__ = ["EngineRequest", "FinishReason", "SequenceState", "StepResult"]


class SequenceState(Enum):
    NEW = "new"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


_NEW: Final = SequenceState.NEW
_NO_BLOCKS: Final[list[int]] = []
"""Held by all that share no block; never changed."""


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class EngineRequest:
    """One sequence: what was asked, and where it stands. Times are seconds on the caller's clock, -1 before they
    happen.

    Args:
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens to generate: the caller has already taken the least of the client's bound, a stop string's
            place and the emulated end of text.
        reason: why generation ends there.
        hashes: chained hashes of the full blocks of prompt *and* output as far as they are known, one per block; the
            prefix cache works on these. Empty: this request neither hits nor fills the cache.
        tag: anything the caller wants to find again.
    """

    __slots__ = (
        "alloc_tick",
        "base_tick",
        "cached_tokens",
        "chunk",
        "computed",
        "emitted",
        "finish_tick",
        "finished_at",
        "first_token_at",
        "hashes",
        "held",
        "order",
        "output_tokens",
        "plain_from",
        "preemptions",
        "private",
        "prompt_tokens",
        "reason",
        "scheduled_at",
        "state",
        "submitted_at",
        "tag",
        "target",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        reason: FinishReason = FinishReason.LENGTH,
        hashes: Sequence[int] = (),
        tag: Any = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.reason = reason
        self.hashes = hashes
        self.tag = tag
        self.state = _NEW
        self.submitted_at = self.scheduled_at = self.first_token_at = self.finished_at = -1.0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache at first admission."""
        self.preemptions = 0
        self.computed = 0
        """Tokens whose KV is computed; kept up to date outside the decode state only."""
        self.target = 0
        """Tokens to prefill: the prompt, plus what was generated before a preemption."""
        self.chunk = 0
        """Prompt tokens that the step under way computes."""
        self.order = 0
        """Grows from admission to admission."""
        self.held: list[int] = _NO_BLOCKS
        """Hashes of the shared blocks this sequence holds, a chain from the prompt's start but for duplicates."""
        self.private = 0
        """Blocks of its own, but for those taken since ``plain_from``."""
        self.emitted = 0
        """Tokens generated up to ``base_tick``; :meth:`Engine.outputs` gives the current number."""
        self.base_tick = 0
        self.alloc_tick = self.finish_tick = -1
        self.plain_from = -1
        """First tick at which a decoding sequence takes a block that it can share with nobody; -1 for others."""


class StepResult:
    """What a step brought. Each request in ``Engine.decoding`` and in ``finished`` has one more token than before.

    Attributes:
        first: requests whose first token this was (they may be in ``finished`` as well).
        finished: requests that are complete; their blocks are free.
        decoded: sequences that got a token.
        prefilled: prompt tokens computed.
    """

    __slots__ = ("decoded", "finished", "first", "prefilled")

    def __init__(self, first: list[EngineRequest], finished: list[EngineRequest], decoded: int, prefilled: int) -> None:
        self.first = first
        self.finished = finished
        self.decoded = decoded
        self.prefilled = prefilled
