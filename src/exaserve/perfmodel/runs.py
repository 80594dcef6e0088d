# compiled
"""The engine model for callers that do not look at single tokens: a run of pure decode steps is one event.

::

    ends_at = engine.begin_run(now)     # to the end of the step that brings the next change
    ends_at = engine.cut_run(now)       # something was submitted meanwhile: to the end of the step now under way
    engine.advance(now)                 # counters as they are now, for a report
    result = engine.end_step(ends_at)

The durations of the steps are known, since the context grows by one token per sequence and step: step k of a
run takes ``d + k g``, n steps take ``n d + g n (n - 1) / 2``. A run ends when its steps would have ended one by one; a
test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from exaserve.perfmodel.engine import EngineModel
from exaserve.perfmodel.profile import EngineProfile
from exaserve.perfmodel.sequence import SequenceState, StepResult

__all__ = ["RunEngine"]

_PREFILL: Final = SequenceState.PREFILL


class RunEngine(EngineModel):
    """An engine whose pure decode steps are taken together."""

    def __init__(
        self, profile: EngineProfile, *, watermark: float = 0.01, prefix_caching: bool = True, speed: float = 1.0
    ) -> None:
        super().__init__(profile, watermark=watermark, prefix_caching=prefix_caching, speed=speed)
        self._steps = 0
        """Steps of the run under way that have not ended."""
        self._from = self._growth_s = 0.0
        """When the first of them began, and how much longer each takes than the one before."""

    @property
    def prefilling(self) -> bool:
        """Whether prompts are being computed; a step with prompts is never part of a run."""
        return bool(self._prefilling)

    def begin_run(self, now: float) -> float | None:
        """As :meth:`begin_step`, but where only decoding goes on, for all the steps up to the next change."""
        assert not self.busy, "begin_run before the last step's end_step"
        waiting = self.waiting
        if waiting or self._prefilling:
            if waiting and not self._prefilling and self._admit_plain(now):
                self._steps, self._from = 1, now
                return now + self._step_s
            return self._begin_general(now)
        count = len(self.decoding)
        if not count:
            return None
        tick, pool = self._tick, self.pool
        blocks = self._phases[tick % self.block_size]
        if self._alloc_due or blocks > pool.blank:
            return self._begin_general(now)
        pool.take_blank(blocks)
        self._grown = tick
        self.busy = True
        self._steps, self._from = 1, now
        self._step_s = step_s = self._duration(0, count, 0)
        return self._lengthen(now + step_s)

    def _begin_general(self, now: float) -> float | None:
        preemptions = self.preemptions_total
        end = self.begin_step(now)
        if end is None:
            return None
        self._steps, self._from = 1, now
        # A step that preempts admits nothing, and the next one may.
        return end if self._planned or self.preemptions_total != preemptions else self._lengthen(end)

    def _lengthen(self, end: float) -> float:
        """Makes a pure decode step, which began just now and ends at ``end``, as long a run as it can be."""
        steps = self._finish_tick - self._tick
        if self._alloc_due:
            steps = min(steps, min(self._alloc_due) - self._tick)
        count = len(self.decoding)
        if steps <= 1 or count * (steps // self.block_size + 1) > self.pool.free:
            return end
        self._steps = steps
        self._growth_s = growth_s = self._per_kv_s * self.slow / self.speed * count
        return self._from + steps * self._step_s + growth_s * (0.5 * steps * (steps - 1))

    def _admit_plain(self, now: float) -> bool:
        """Begins a step for the usual case: one new prompt that fits it whole and shares no blocks. False: not so."""
        tick, pool = self._tick, self.pool
        blocks = self._phases[tick % self.block_size]
        if not self._is_plain(blocks):
            return False
        pool.take_blank(blocks)
        self._grown = tick
        self._begin_plain(now)
        return True

    def _is_plain(self, blocks: int) -> bool:
        """Whether what waits is one prompt that a step fits whole and that shares no blocks, ``blocks`` going first."""
        request, count = self.waiting[0], len(self.decoding)
        return not (
            len(self.waiting) > 1
            or request.hashes
            or self._alloc_due
            or request.target > self._budget - count
            or count >= self._seqs_max
            or self.pool.blank < blocks - (-request.target // self.block_size) + self.watermark_blocks
        )

    def _begin_plain(self, now: float) -> None:
        """Forms the step of a plain prompt, which begins at ``now``."""
        request, pool = self.waiting.popleft(), self.pool
        tokens = request.target
        need = -(-tokens // self.block_size)
        pool.take_blank(need)
        request.computed = 0
        request.private = need
        request.state = _PREFILL
        if request.scheduled_at < 0.0:
            request.scheduled_at = now
            if pool.caching:
                self.prefix_queries_total += tokens
        self._enter(request)
        request.chunk = self._planned = tokens
        self.busy = True
        self._step_s = self._duration(tokens, len(self.decoding), tokens * (tokens >> 1))

    def join(self, now: float) -> float:
        """Something was submitted during a run: when the next change is.

        The newcomer begins with the step after the one under way. Where that is plain, the step is formed here, ahead
        of its time, and needs no event of its own; counters are then up to one step ahead of ``now``.
        """
        if now < self._from:
            self._join_planned()
            return self._from + self._step_s
        if self._planned:
            return self._from + self._step_s
        self.advance(now)
        if self._steps > 1 and self._is_plain(self._phases[(self._tick + 1) % self.block_size]):
            self._skip(1)
            self._begin_plain(self._from)
        self._steps = 1
        return self._from + self._step_s

    def _join_planned(self) -> None:
        """Takes what waits into the step that has been formed ahead of its time, as far as it fits."""
        budget = self._budget - len(self.decoding) - self._planned
        if budget > 0:
            self._admit(budget, self._from)
            self._time_plan()

    def replan(self, now: float) -> float:
        """After an abort: the step that was formed ahead of its time goes on without it. When the next change is."""
        if now < self._from:
            self._time_plan()
            if not self._planned and not self.decoding:
                self._step_s = 0.0
        return self._from + self._step_s

    def cut_run(self, now: float) -> float:
        """Shortens the run under way to the end of the step that is under way at ``now``, and returns that."""
        if self._steps > 1:
            self.advance(now)
            self._steps = 1
        return self._from + self._step_s

    def advance(self, now: float) -> None:
        """Counts the steps of the run under way that have ended by ``now``, all but its last."""
        if self._steps > 1:
            done = self._ended(now)
            if done > 0:
                self._skip(done)

    def end_step(self, now: float) -> StepResult:
        """Applies the step, or the run of steps, that began."""
        if self._steps > 1:
            self._skip(self._steps - 1)
        self._steps = 0
        return super().end_step(now)

    def step_end(self, now: float) -> float:
        """When the step under way at ``now`` ends."""
        return self._end_of(self._ended(now) + 1 if self._steps > 1 else 1)

    def delay(self, seconds: float) -> None:
        """The step under way ends that much later: the process was stopped meanwhile. After :meth:`cut_run` only."""
        self._from += seconds

    def uncomputed(self) -> Iterator[int]:
        """Prompt tokens that no step has begun to compute, for each prompt with some."""
        for request in self._prefilling:
            rest = request.target - request.computed - request.chunk
            if rest > 0:
                yield rest
        for request in self.waiting:
            yield request.prompt_tokens

    def _end_of(self, steps: int) -> float:
        return self._from + steps * self._step_s + self._growth_s * (0.5 * steps * (steps - 1))

    def _ended(self, now: float) -> int:
        """Steps of the run that have ended by ``now``, its last one never."""
        passed, growth, last = now - self._from, self._growth_s, self._steps - 1
        if passed <= 0.0:
            return 0
        if growth:
            half = self._step_s - 0.5 * growth
            done = int((math.sqrt(half * half + 2.0 * growth * passed) - half) / growth)
        else:
            done = int(passed / self._step_s)
        done = min(done, last)
        # The formula is good to a rounding error; what counts is on which side of ``now`` a step ends.
        while done and self._end_of(done) > now:
            done -= 1
        while done < last and self._end_of(done + 1) <= now:
            done += 1
        return done

    def _skip(self, steps: int) -> None:
        """Ends ``steps`` pure decode steps of the run and begins the one after them."""
        count, size, phases = len(self.decoding), self.block_size, self._phases
        end = self._end_of(steps)
        self.busy_s += end - self._from
        self._from, self._step_s = end, self._step_s + steps * self._growth_s
        self._steps -= steps
        tick = self._tick
        self._tick = self._grown = tick + steps
        self._kv_tokens += steps * count
        self.steps_total += steps
        self.generation_tokens_total += steps * count
        cycles, rest = divmod(steps, size)
        blocks = cycles * sum(phases) if cycles else 0
        for later in range(tick + 1, tick + 1 + rest):
            blocks += phases[later % size]
        if blocks:
            taken = self.pool.take(blocks)
            assert taken, "begin_run saw to it that there are enough"

    def validate(self) -> None:
        super().validate()
        assert (self._steps > 0) == self.busy
