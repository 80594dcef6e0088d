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

A pure decode step costs O(1) however large the batch: all decoding sequences advance together with one counter
(``_tick``), and what happens to a single one (its last token, a block to offer to the prefix cache) waits in a calendar
under the tick at which it is due. Blocks that nobody can share are only counted, by the phase (tick modulo block size)
at which their sequences need them.

:class:`exaserve.perfmodel.runs.RunEngine` takes many of them as one event.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from exaserve.perfmodel import EngineProfile
from exaserve.perfmodel.blocks import BlockPool
from exaserve.perfmodel.sequence import FinishReason, Request, State, StepResult
from exaserve.perfmodel.step import step_s

__all__ = ["Engine", "FinishReason", "Request", "State", "StepResult"]

# Names of their own: looked up at once where this module is compiled.
_NEW: Final = State.NEW
_WAITING: Final = State.WAITING
_PREFILL: Final = State.PREFILL
_DECODE: Final = State.DECODE
_FINISHED: Final = State.FINISHED
_ABORTED: Final = State.ABORTED


class Engine:
    """One replica's scheduler, batch and KV cache.

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
        self._fixed_s = profile.decode_fixed_s
        self._per_seq_s = profile.decode_per_seq_s
        self._per_kv_s = profile.decode_per_kv_token_s
        self._expert_s = profile.expert_s
        self._expert_share = profile.expert_share
        self._tokens_per_s = profile.prefill_tokens_per_s
        self._per_pair_s = profile.prefill_per_pair_s
        self._overhead_s = profile.overhead_s
        self.speed = speed
        self.slow = 1.0
        """Fault: steps take this many times longer."""
        self.block_size = profile.block_size
        self.pool = BlockPool(profile.kv_tokens_max // profile.block_size, prefix_caching)
        self.watermark_blocks = int(watermark * self.pool.total)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        """Admitted requests, oldest first."""
        self.decoding: dict[Request, None] = {}
        self.busy = False
        """Between begin_step and end_step."""
        self._tick = 0
        self._alloc_due: dict[int, dict[Request, None]] = {}
        self._finish_due: dict[int, dict[Request, None]] = {}
        self._phases = [0] * self.block_size
        """Decoding sequences that take a plain block at ticks of that remainder."""
        self._grown = -1
        """The last tick whose growth has been given."""
        self._step_s = 0.0
        """Duration of the step under way."""
        self._prefilling: dict[Request, None] = {}
        self._plan: list[tuple[Request, int]] = []
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
    def waiting_tokens(self) -> int:
        """Prompt tokens not yet computed, queued and running."""
        queued = sum(r.prompt_tokens for r in self.waiting)
        return queued + sum(r.target - r.computed for r in self._prefilling)

    def outputs(self, request: Request) -> int:
        """Tokens generated so far."""
        if request.state is _DECODE:
            return request.emitted + self._tick - request.base_tick
        return request.emitted

    # -- what callers do --------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Queues a new request. ValueError if it could never finish here; the engine is then unchanged."""
        if request.state is not _NEW:
            raise ValueError("a request can be submitted once")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("prompt and output need at least one token each")
        if request.prompt_tokens + request.output_tokens > self.profile.max_model_len:
            raise ValueError(
                f"{request.prompt_tokens} prompt + {request.output_tokens} output tokens exceed max_model_len "
                f"{self.profile.max_model_len}"
            )
        request.state = _WAITING
        request.submitted_at = now
        request.target = request.prompt_tokens
        self.waiting.append(request)

    def abort(self, request: Request, now: float) -> bool:
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
        if not self.running and not self.waiting:
            return None
        preempted = False
        if self._alloc_due or self._phases[self._tick % self.block_size]:
            preempted = self._grow()
        self._grown = self._tick
        budget = self.profile.token_budget - len(self.decoding)
        tokens = pairs = 0
        if self._prefilling:
            for request in list(self._prefilling):
                if request.state is _PREFILL and budget > 0:
                    chunk = min(budget, request.target - request.computed)
                    chunk, more = self._extend(request, chunk)
                    preempted = preempted or more
                    budget -= chunk
        if self.waiting and budget > 0 and not preempted:
            self._admit(budget, now)
        for request, chunk in self._plan:
            tokens += chunk
            pairs += chunk * (request.computed + (chunk >> 1))
        if not tokens and not self.decoding:
            return None
        duration = self._duration(tokens, len(self.decoding), pairs)
        self.busy = True
        self._step_s = duration
        return now + duration

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
        decoded = len(self.decoding)
        self._tick += 1
        self._kv_tokens += decoded
        finished: list[Request] = []
        first: list[Request] = []
        if self._tick in self._finish_due:
            for request in list(self._finish_due[self._tick]):
                self._finish(request, now)
                finished.append(request)
        prefilled = 0
        if self._plan:
            for request, chunk in self._plan:
                prefilled += chunk
                # The plan's request may have been aborted, or preempted and aborted, while the step ran.
                if request.state is _PREFILL:
                    request.computed += chunk
                    if request.computed >= request.target:
                        decoded += 1
                        self._emit(request, now, first, finished)
            self._plan = []
            self.prefill_tokens_total += prefilled
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
                victim = next(reversed(self.running))
                self._preempt(victim)
                if victim is request:
                    break
            else:
                if request.plain_from < 0:
                    request.private += 1
                    self._schedule_growth(request, tick + size)
        return preempted

    def _extend(self, request: Request, chunk: int) -> tuple[int, bool]:
        """Blocks for a running prompt's next chunk, preempting if need be: (tokens planned, whether it preempted)."""
        need = -(-(request.computed + chunk) // self.block_size) - len(request.held) - request.private
        preempted = False
        while not self.pool.take(max(0, need)):
            preempted = True
            victim = next(reversed(self.running))
            self._preempt(victim)
            if victim is request:
                return 0, True
        self._plan_chunk(request, chunk, max(0, need))
        return chunk, preempted

    def _plan_chunk(self, request: Request, chunk: int, taken: int) -> None:
        request.private += taken
        self._plan.append((request, chunk))
        size = self.block_size
        self._publish(request, request.computed // size, (request.computed + chunk) // size)

    def _publish(self, request: Request, start: int, stop: int) -> None:
        """Offers blocks ``start`` to ``stop`` of a sequence, now full, to the prefix cache."""
        hashes = request.hashes
        if not hashes or not self.pool.caching:
            return
        publish, held = self.pool.publish, request.held
        for h in hashes[start:stop]:
            if publish(h):
                held.append(h)
                request.private -= 1

    def _admit(self, budget: int, now: float) -> None:
        """Moves requests from the head of the queue into the batch while slots, budget and blocks last."""
        waiting, pool, size = self.waiting, self.pool, self.block_size
        slots = self.profile.max_num_seqs - len(self.running)
        while waiting and budget > 0 and slots > 0:
            request = waiting[0]
            # The last token is always computed, since its result is the next token.
            hits, hits_free = pool.lookup(request.hashes, (request.target - 1) // size)
            chunk = min(budget, request.target - hits * size)
            need = -(-(hits * size + chunk) // size) - hits
            reserve = self.watermark_blocks if self.running else 0
            if pool.free - hits_free < need + reserve:
                break
            waiting.popleft()
            pool.hit(request.hashes, hits)
            taken = pool.take(need)
            assert taken
            request.held = list(request.hashes[:hits])
            request.computed = hits * size
            request.state = _PREFILL
            if request.scheduled_at < 0.0:
                request.scheduled_at = now
                request.cached_tokens = hits * size
                if pool.caching:
                    self.prefix_queries_total += request.target
                    self.prefix_hits_total += hits * size
            self.running[request] = None
            self._prefilling[request] = None
            self._plan_chunk(request, chunk, need)
            budget -= chunk
            slots -= 1

    def _preempt(self, request: Request) -> None:
        """Takes everything from a running request and puts it back at the front of the queue."""
        outputs = self.outputs(request)
        self._leave(request)
        request.emitted = outputs
        request.target = request.prompt_tokens + outputs
        request.computed = 0
        request.state = _WAITING
        request.preemptions += 1
        self.preemptions_total += 1
        self.waiting.appendleft(request)

    # -- a sequence's life ------------------------------------------------------------------------------------------

    def _emit(self, request: Request, now: float, first: list[Request], finished: list[Request]) -> None:
        """A prompt is computed: its next token is out, and it decodes from now on (or is done)."""
        del self._prefilling[request]
        request.state = _DECODE
        request.emitted += 1
        request.base_tick = tick = self._tick
        self.decoding[request] = None
        self._kv_tokens += request.target
        if request.first_token_at < 0.0:
            request.first_token_at = now
            self.prompt_tokens_total += request.prompt_tokens
            first.append(request)
        left = request.output_tokens - request.emitted
        if left <= 0:
            self._finish(request, now)
            finished.append(request)
            return
        request.finish_tick = tick + left
        self._finish_due.setdefault(tick + left, {})[request] = None
        size = self.block_size
        grows = tick + -request.target % size
        if len(request.hashes) <= request.target // size:
            request.plain_from = grows
            self._phases[grows % size] += 1
        else:
            self._schedule_growth(request, grows)

    def _plain_blocks(self, request: Request) -> int:
        """Blocks that a decoding sequence has been given and that only ``_phases`` counts."""
        since = self._grown - request.plain_from
        return since // self.block_size + 1 if since >= 0 else 0

    def _schedule_growth(self, request: Request, tick: int) -> None:
        """Notes when a decoding sequence next needs a block, unless it will have finished by then."""
        self._drop(self._alloc_due, request.alloc_tick, request)
        if tick < request.finish_tick:
            request.alloc_tick = tick
            self._alloc_due.setdefault(tick, {})[request] = None
        else:
            request.alloc_tick = -1

    @staticmethod
    def _drop(calendar: dict[int, dict[Request, None]], tick: int, request: Request) -> None:
        if tick >= 0:
            day = calendar.get(tick)
            if day is not None:
                day.pop(request, None)
                if not day:
                    del calendar[tick]

    def _leave(self, request: Request) -> None:
        """Takes a running request out of the batch and frees its blocks; its state is the caller's to set."""
        if request.finish_tick >= 0:
            generated = self._tick - request.base_tick
            request.emitted += generated
            request.computed = request.target + generated
            self._kv_tokens -= request.computed
            grown_from, size = request.plain_from, self.block_size
            if grown_from >= 0:
                since = self._grown - grown_from
                if since >= 0:
                    request.private += since // size + 1
                self._phases[grown_from % size] -= 1
                request.plain_from = -1
            else:
                blocks, rest = divmod(request.computed, size)
                if not rest:
                    self._publish(request, blocks - 1, blocks)
                self._drop(self._alloc_due, request.alloc_tick, request)
                request.alloc_tick = -1
            del self.decoding[request]
            day = self._finish_due[request.finish_tick]
            del day[request]
            if not day:
                del self._finish_due[request.finish_tick]
            request.finish_tick = -1
        elif request.state is _DECODE:
            del self.decoding[request]
            self._kv_tokens -= request.target
        else:
            del self._prefilling[request]
        del self.running[request]
        self.pool.give(request.private, request.held)
        request.private = 0
        if request.held:
            request.held = []

    def _finish(self, request: Request, now: float) -> None:
        self._leave(request)
        request.state = _FINISHED
        request.finished_at = now

    def validate(self) -> None:
        """Asserts the invariants: blocks conserved, each request in one place, counters equal to what they count."""
        self.pool.validate()
        private = {r: r.private + (self._plain_blocks(r) if r.plain_from >= 0 else 0) for r in self.running}
        assert sum(private.values()) == self.pool.private
        assert self.decoding.keys() | self._prefilling.keys() == self.running.keys()
        assert not self.decoding.keys() & self._prefilling.keys()
        assert len(self.running) <= self.profile.max_num_seqs
        assert all(r.state is _WAITING and not r.held and not r.private for r in self.waiting)
        assert all(r.state is _DECODE for r in self.decoding)
        assert all(r.state is _PREFILL for r in self._prefilling)
        contexts = {r: r.target + self._tick - r.base_tick for r in self.decoding}
        assert self._kv_tokens == sum(contexts.values())
        for request, context in contexts.items():
            blocks = len(request.held) + private[request]
            assert blocks * self.block_size >= context, "a sequence's KV does not fit its blocks"
            assert self.outputs(request) < request.output_tokens
        assert set().union(*self._finish_due.values()) == self.decoding.keys()
        assert set().union(*self._alloc_due.values()) <= self.decoding.keys()
        assert sum(self._phases) == sum(r.plain_from >= 0 for r in self.decoding)
        assert all(n >= 0 for n in self._phases)
        assert all(t >= self._tick for t in self._alloc_due)
        assert all(t > self._tick for t in self._finish_due)
