# compiled
"""A continuous-batching engine in virtual time, after vLLM's V1 scheduler. PURE: nothing sleeps or reads a clock.

One step runs a batch: every decoding sequence gets one token, and what is left of the token budget goes to prompts,
oldest first, in chunks. A prompt is admitted from the first-come-first-served queue when a sequence slot and enough
KV blocks are free; nothing overtakes the head of the queue. When a decoding sequence needs a block and none is free,
the sequence admitted last loses all its blocks and goes back to the front of the queue, to be computed again
(preemption by recompute).

How a caller drives it::

    engine.submit(request, now)
    ends_at = engine.begin_step(now)        # None: nothing to do
    result = engine.end_step(ends_at)       # result.first, result.finished, and engine.decoding got one more token each

A pure decode step costs O(1) however large the batch (:mod:`exaserve.perfmodel.batch` says how);
:class:`exaserve.perfmodel.runs.RunEngine` takes many of them as one event.
"""

from __future__ import annotations

from typing import Final

from exaserve.perfmodel.batch import NOBODY, Batch
from exaserve.perfmodel.sequence import EngineRequest, FinishReason, SequenceState, StepResult
from exaserve.perfmodel.step import step_s

__all__ = ["EngineModel", "EngineRequest", "FinishReason", "SequenceState", "StepResult"]

# Names of their own: looked up at once where this module is compiled.
_NEW: Final = SequenceState.NEW
_WAITING: Final = SequenceState.WAITING
_PREFILL: Final = SequenceState.PREFILL
_DECODE: Final = SequenceState.DECODE
_ABORTED: Final = SequenceState.ABORTED


class EngineModel(Batch):
    """One replica's scheduler, batch and KV cache."""

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queues a new request. ValueError if it could never finish here; the engine is then unchanged."""
        if request.state is not _NEW:
            raise ValueError("a request can be submitted once")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("prompt and output need at least one token each")
        if request.prompt_tokens + request.output_tokens > self._len_max:
            raise ValueError(
                f"{request.prompt_tokens} prompt + {request.output_tokens} output tokens exceed max_model_len "
                f"{self._len_max}"
            )
        request.state = _WAITING
        request.submitted_at = now
        request.target = request.prompt_tokens
        self.waiting.append(request)

    def abort(self, request: EngineRequest, now: float) -> bool:
        """Ends a request at once and frees its blocks, also in the middle of a step. False if it had ended already."""
        if request.state is _WAITING:
            self.waiting.remove(request)
        elif request.state in (_PREFILL, _DECODE):
            self._leave(request)
        else:
            return False
        request.state = _ABORTED
        request.finished_at = now
        self.aborts_total += 1
        return True

    def begin_step(self, now: float) -> float | None:
        """Forms the next batch and returns when it will be done, or None when there is nothing to do."""
        assert not self.busy, "begin_step before the last step's end_step"
        if not self.decoding and not self._prefilling and not self.waiting:
            return None
        preempted = False
        if self._alloc_due or self._phases[self._tick % self.block_size]:
            preempted = self._grow()
        self._grown = self._tick
        budget = self._budget - len(self.decoding)
        if self._prefilling:
            for request in self._prefilling.copy():
                if request.state is _PREFILL and budget > 0:
                    chunk = min(budget, request.target - request.computed)
                    chunk, more = self._extend(request, chunk)
                    preempted = preempted or more
                    budget -= chunk
        if self.waiting and budget > 0 and not preempted:
            self._admit(budget, now)
        self._time_plan()
        if not self._planned and not self.decoding:
            return None
        self.busy = True
        return now + self._step_s

    def _time_plan(self) -> None:
        """What the step computes of prompts, and how long it takes."""
        tokens = pairs = 0
        for request in self._prefilling:
            chunk = request.chunk
            if chunk:
                tokens += chunk
                pairs += chunk * (request.computed + (chunk >> 1))
        self._planned = tokens
        self._step_s = self._duration(tokens, len(self.decoding), pairs)

    def _duration(self, tokens: int, count: int, pairs: int) -> float:
        """Seconds of a step with ``tokens`` of prompts, ``pairs`` of attention in them, and ``count`` decoding."""
        seconds = step_s(
            self._fixed_s,
            self._overhead_s,
            self._per_seq_s,
            self._per_kv_s,
            self._expert_s,
            self._expert_share,
            self._tokens_per_s,
            self._per_pair_s,
            self._overlap,
            self._prompt_s,
            tokens,
            count,
            self._kv_tokens,
            float(pairs),
        )
        return seconds * self.slow / self.speed

    def end_step(self, now: float) -> StepResult:
        """Applies the step that :meth:`begin_step` formed."""
        assert self.busy, "end_step without begin_step"
        self.busy = False
        self.busy_s += self._step_s
        self.steps_total += 1
        decoding = self.decoding
        decoded = len(decoding)
        self._tick = tick = self._tick + 1
        self._kv_tokens += decoded
        first = finished = NOBODY
        if decoded and self._finish_tick == tick:
            finished = []
            while decoding and self._finish_tick == tick:
                request = decoding[0]
                self._finish(request, now)
                finished.append(request)
        prefilled = self._planned
        if prefilled:
            self._planned = 0
            self.prefill_tokens_total += prefilled
            decoded += len(self._prefilling)
            first, finished = self._compute(now, finished)
            decoded -= len(self._prefilling)
        self.generation_tokens_total += decoded
        return StepResult(first, finished, decoded, prefilled)

    # -- KV blocks --------------------------------------------------------------------------------------------------

    def _grow(self) -> bool:
        """Gives each decoding sequence at a block boundary its next block. True if one had to be preempted."""
        tick, size = self._tick, self.block_size
        due = self._alloc_due.get(tick, {})
        plain = self._phases[tick % size]
        if not due and self.pool.take(plain):
            return False
        preempted = False
        if not due or len(due) + plain > self.pool.free:
            requests = [r for r in self.running if r in due or (r.plain_from >= 0 and not (tick - r.plain_from) % size)]
        else:
            self.pool.take(plain)
            requests = list(due)
        for request in requests:
            if request.state is not _DECODE:
                continue
            index = (request.target + tick - request.base_tick) // size - 1
            if index >= 0:
                self._publish(request, index, index + 1)
            while not self.pool.take(1):
                preempted = True
                if self._preempt() is request:
                    break
            else:
                if request.plain_from < 0:
                    request.private += 1
                    self._schedule_growth(request, tick + size)
        return preempted

    def _extend(self, request: EngineRequest, chunk: int) -> tuple[int, bool]:
        """Blocks for a running prompt's next chunk, preempting if need be: (tokens planned, whether it preempted)."""
        need = -(-(request.computed + chunk) // self.block_size) - len(request.held) - request.private
        preempted = False
        while not self.pool.take(max(0, need)):
            preempted = True
            if self._preempt() is request:
                return 0, True
        self._plan_chunk(request, chunk, max(0, need))
        return chunk, preempted

    def _plan_chunk(self, request: EngineRequest, chunk: int, taken: int) -> None:
        request.private += taken
        request.chunk = chunk
        size = self.block_size
        self._publish(request, request.computed // size, (request.computed + chunk) // size)

    def _admit(self, budget: int, now: float) -> None:
        """Moves requests from the head of the queue into the batch while slots, budget and blocks last."""
        waiting, pool, size = self.waiting, self.pool, self.block_size
        slots = self._seqs_max - self.running_count
        while waiting and budget > 0 and slots > 0:
            request = waiting[0]
            # The last token is always computed, since its result is the next token.
            hits, hits_free = pool.lookup(request.hashes, (request.target - 1) // size)
            chunk = min(budget, request.target - hits * size)
            need = -(-(hits * size + chunk) // size) - hits
            reserve = self.watermark_blocks if self.decoding or self._prefilling else 0
            if pool.free - hits_free < need + reserve:
                break
            waiting.popleft()
            pool.hit(request.hashes, hits)
            taken = pool.take(need)
            assert taken
            if request.hashes:
                request.held = list(request.hashes[:hits])
            request.computed = hits * size
            request.state = _PREFILL
            if request.scheduled_at < 0.0:
                request.scheduled_at = now
                request.cached_tokens = hits * size
                if pool.caching:
                    self.prefix_queries_total += request.target
                    self.prefix_hits_total += hits * size
            self._enter(request)
            self._plan_chunk(request, chunk, need)
            budget -= chunk
            slots -= 1
