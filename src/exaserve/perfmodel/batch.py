# compiled
"""The batch of an engine: who decodes and who is being computed, what KV each holds, and when it needs more. PURE.

All decoding sequences advance together with one counter (``_tick``); they stand in the order of their last ticks, and a
block that one may offer to the prefix cache waits in a calendar under the tick at which it is due. Blocks that nobody
can share are only counted, by the phase (tick modulo block size) at which their sequences need them.

A simulator has thousands of engines and comes to each of them a few times in a second, when none of its memory is in
the processor's cache any more. So lists and plain numbers are preferred to dictionaries here, and what is rare is made
when it is first needed: with dictionaries, a run of 3,072 replicas took half as long again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from exaserve.perfmodel.blocks import BlockPool
from exaserve.perfmodel.profile import EngineProfile
from exaserve.perfmodel.sequence import EngineRequest, SequenceState

__all__ = ["NOBODY", "Batch"]

# Names of their own: looked up at once where this module is compiled.
_WAITING: Final = SequenceState.WAITING
_PREFILL: Final = SequenceState.PREFILL
_DECODE: Final = SequenceState.DECODE
_FINISHED: Final = SequenceState.FINISHED

NOBODY: Final[list[EngineRequest]] = []
"""Whom most steps bring a first or a last token; never changed."""
_NONE_DUE: Final[dict[int, dict[EngineRequest, None]]] = {}
"""Of engines that share no blocks; never changed."""


def _admission_order(request: EngineRequest) -> int:
    return request.order


class Batch:
    """An engine's sequences, waiting and running, and its KV cache.

    :class:`exaserve.perfmodel.engine.EngineModel` runs it.

    Args:
        profile: step times and limits.
        watermark: share of the blocks kept free when a waiting prompt is admitted, so that the batch can grow a
            little before it must preempt.
        prefix_caching: whether full blocks are reused between requests.
        speed: the engine's clock runs this many times faster than the hardware.
    """

    def __init__(
        self, profile: EngineProfile, *, watermark: float = 0.01, prefix_caching: bool = True, speed: float = 1.0
    ) -> None:
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1), not {watermark}")
        if speed <= 0.0:
            raise ValueError(f"speed must be positive, not {speed}")
        profile.validate()
        self.profile = profile
        self._len_max = profile.max_model_len
        self._seqs_max = profile.max_num_seqs
        self._budget = profile.token_budget
        self._fixed_s = profile.decode_fixed_s
        self._per_seq_s = profile.decode_per_seq_s
        self._per_kv_s = profile.decode_per_kv_token_s
        self._expert_s = profile.expert_s
        self._expert_share = profile.expert_share
        self._tokens_per_s = profile.prefill_tokens_per_s
        self._per_pair_s = profile.prefill_per_pair_s
        self._overhead_s = profile.overhead_s
        self._overlap = profile.overlap
        self._prompt_s = profile.prompt_s
        self.speed = speed
        self.slow = 1.0
        """Fault: steps take this many times longer."""
        self.block_size = profile.block_size
        self.pool = BlockPool(profile.kv_tokens_max // profile.block_size, prefix_caching)
        self.watermark_blocks = int(watermark * self.pool.total)
        self.waiting: deque[EngineRequest] = deque()
        self.decoding: list[EngineRequest] = []
        """The next to finish first."""
        self.busy = False
        """Between begin_step and end_step."""
        self._tick = 0
        self._finish_tick = 0
        """Of the first in ``decoding``, while there is one."""
        self._alloc_due = _NONE_DUE
        self._phases = [0] * self.block_size
        """Decoding sequences that take a plain block at ticks of that remainder."""
        self._grown = -1
        """The last tick whose growth has been given."""
        self._step_s = 0.0
        """Duration of the step under way."""
        self._prefilling: list[EngineRequest] = []
        """In the order of their admission."""
        self._planned = 0
        """Prompt tokens of the step under way, also those of requests that were aborted meanwhile."""
        self._admitted = 0
        """Admissions so far."""
        self._kv_tokens = 0
        self.steps_total = 0
        self.preemptions_total = 0
        self.prompt_tokens_total = 0
        """Prompt tokens of requests that got their first token, cached ones included."""
        self.prefill_tokens_total = 0
        """Tokens computed as prompt, those computed again after a preemption included."""
        self.generation_tokens_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self.aborts_total = 0
        self.busy_s = 0.0

    # -- what callers read ------------------------------------------------------------------------------------------

    @property
    def kv_use(self) -> float:
        """Share of KV blocks in use, 0..1."""
        return self.pool.use

    @property
    def kv_tokens(self) -> int:
        """Tokens of context over the decoding sequences."""
        return self._kv_tokens

    @property
    def running(self) -> list[EngineRequest]:
        """Admitted requests, oldest first."""
        return sorted(self.decoding + self._prefilling, key=_admission_order)

    @property
    def running_count(self) -> int:
        return len(self.decoding) + len(self._prefilling)

    def outputs(self, request: EngineRequest) -> int:
        """Tokens generated so far."""
        if request.state is _DECODE:
            return request.emitted + self._tick - request.base_tick
        return request.emitted

    # -- a sequence's life ------------------------------------------------------------------------------------------

    def _compute(self, now: float, finished: list[EngineRequest]) -> tuple[list[EngineRequest], list[EngineRequest]]:
        """The chunks of the step are computed; prompts that are whole leave ``_prefilling`` and emit a token.

        Returns those whose first token it is, and ``finished`` with those whose last it is.
        """
        first: list[EngineRequest] = []
        rest: list[EngineRequest] = []
        for request in self._prefilling:
            request.computed += request.chunk
            request.chunk = 0
            if request.computed < request.target:
                rest.append(request)
                continue
            if request.first_token_at < 0.0:
                request.first_token_at = now
                self.prompt_tokens_total += request.prompt_tokens
                first.append(request)
            if not self._emit(request, now):
                if finished is NOBODY:
                    finished = []
                finished.append(request)
        self._prefilling = rest
        return first, finished

    def _publish(self, request: EngineRequest, start: int, stop: int) -> None:
        """Offers blocks ``start`` to ``stop`` of a sequence, now full, to the prefix cache."""
        hashes = request.hashes
        if not hashes or not self.pool.caching:
            return
        publish, held = self.pool.publish, request.held
        for h in hashes[start:stop]:
            if publish(h):
                held.append(h)
                request.private -= 1

    def _enter(self, request: EngineRequest) -> None:
        self._admitted = request.order = self._admitted + 1
        self._prefilling.append(request)

    def _preempt(self) -> EngineRequest:
        """Takes everything from the request admitted last, puts it back at the front of the queue, and returns it."""
        request = max(self.decoding + self._prefilling, key=_admission_order)
        outputs = self.outputs(request)
        self._leave(request)
        request.emitted = outputs
        request.target = request.prompt_tokens + outputs
        request.computed = 0
        request.state = _WAITING
        request.preemptions += 1
        self.preemptions_total += 1
        self.waiting.appendleft(request)
        return request

    def _emit(self, request: EngineRequest, now: float) -> bool:
        """A prompt is computed and has left ``_prefilling``: its next token is out, and it decodes from now on.

        False where that token was its last, and it is done.
        """
        request.state = _DECODE
        request.emitted += 1
        request.base_tick = tick = self._tick
        left = request.output_tokens - request.emitted
        if left <= 0:
            self._free(request)
            request.state = _FINISHED
            request.finished_at = now
            return False
        self._kv_tokens += request.target
        request.finish_tick = tick + left
        self._join(request)
        size = self.block_size
        grows = tick + -request.target % size
        if len(request.hashes) <= request.target // size:
            request.plain_from = grows
            self._phases[grows % size] += 1
        else:
            self._schedule_growth(request, grows)
        return True

    def _join(self, request: EngineRequest) -> None:
        """Puts a request among those that decode, after those that finish no later."""
        decoding, due = self.decoding, request.finish_tick
        low, high = 0, len(decoding)
        if high and decoding[high - 1].finish_tick <= due:
            low = high
        while low < high:
            middle = (low + high) >> 1
            if decoding[middle].finish_tick <= due:
                low = middle + 1
            else:
                high = middle
        decoding.insert(low, request)
        if not low:
            self._finish_tick = due

    def _plain_blocks(self, request: EngineRequest) -> int:
        """Blocks that a decoding sequence has been given and that only ``_phases`` counts."""
        since = self._grown - request.plain_from
        return since // self.block_size + 1 if since >= 0 else 0

    def _schedule_growth(self, request: EngineRequest, tick: int) -> None:
        """Notes when a decoding sequence next needs a block, unless it will have finished by then."""
        self._drop_growth(request)
        if tick < request.finish_tick:
            request.alloc_tick = tick
            if self._alloc_due is _NONE_DUE:
                self._alloc_due = {}
            self._alloc_due.setdefault(tick, {})[request] = None
        else:
            request.alloc_tick = -1

    def _drop_growth(self, request: EngineRequest) -> None:
        day = self._alloc_due.get(request.alloc_tick)
        if day is not None:
            day.pop(request, None)
            if not day:
                del self._alloc_due[request.alloc_tick]

    def _leave(self, request: EngineRequest) -> None:
        """Takes a running request out of the batch and frees its blocks; its state is the caller's to set."""
        if request.state is _PREFILL:
            self._prefilling.remove(request)
            request.chunk = 0
            self._free(request)
            return
        generated = self._tick - request.base_tick
        request.emitted += generated
        request.computed = request.target + generated
        self._kv_tokens -= request.computed
        grown_from, size = request.plain_from, self.block_size
        if grown_from >= 0:
            request.private += self._plain_blocks(request)
            self._phases[grown_from % size] -= 1
            request.plain_from = -1
        else:
            blocks, rest = divmod(request.computed, size)
            if not rest:
                self._publish(request, blocks - 1, blocks)
            self._drop_growth(request)
            request.alloc_tick = -1
        decoding = self.decoding
        if decoding[0] is request:
            decoding.pop(0)
            if decoding:
                self._finish_tick = decoding[0].finish_tick
        else:
            decoding.remove(request)
        request.finish_tick = -1
        self._free(request)

    def _free(self, request: EngineRequest) -> None:
        self.pool.give(request.private, request.held)
        request.private = 0
        if request.held:
            request.held = []

    def _finish(self, request: EngineRequest, now: float) -> None:
        self._leave(request)
        request.state = _FINISHED
        request.finished_at = now

    def validate(self) -> None:
        """Asserts the invariants: blocks conserved, each request in one place, counters equal to what they count."""
        self.pool.validate()
        private = {r: r.private + (self._plain_blocks(r) if r.plain_from >= 0 else 0) for r in self.running}
        assert sum(private.values()) == self.pool.private
        assert len({*self.decoding, *self._prefilling}) == self.running_count <= self._seqs_max
        assert all(r.state is _WAITING and not r.held and not r.private for r in self.waiting)
        assert all(r.state is _DECODE for r in self.decoding)
        assert all(r.state is _PREFILL for r in self._prefilling)
        contexts = {r: r.target + self._tick - r.base_tick for r in self.decoding}
        assert self._kv_tokens == sum(contexts.values())
        for request, context in contexts.items():
            blocks = len(request.held) + private[request]
            assert blocks * self.block_size >= context, "a sequence's KV does not fit its blocks"
            assert self.outputs(request) < request.output_tokens
        ticks = [r.finish_tick for r in self.decoding]
        assert ticks == sorted(ticks)
        assert not ticks or ticks[0] == self._finish_tick > self._tick
        assert sum(r.chunk for r in self._prefilling) <= self._planned
        assert not self._planned or self.busy
        assert set().union(*self._alloc_due.values()) <= set(self.decoding)
        assert not _NONE_DUE
        assert not NOBODY
        assert sum(self._phases) == sum(r.plain_from >= 0 for r in self.decoding)
        assert all(n >= 0 for n in self._phases)
        assert all(t >= self._tick for t in self._alloc_due)
