"""The engine model against what a continuous-batching engine promises, under any order of events."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.perfmodel import EngineProfile
from exaserve.perfmodel.blocks import BlockPool
from exaserve.perfmodel.engine import EngineModel, EngineRequest, FinishReason, SequenceState

SMALL = EngineProfile(
    prefill_tokens_per_s=1_000.0,
    decode_fixed_s=0.01,
    decode_per_seq_s=0.0001,
    decode_per_kv_token_s=1e-7,
    kv_tokens_max=320,
    kv_bytes_per_token=1.0,
    max_num_seqs=4,
    token_budget=32,
    max_model_len=160,
    block_size=8,
    overhead_s=0.001,
)


def run(engine: EngineModel, now: float = 0.0, steps_max: int = 10_000) -> float:
    """Steps until nothing is left; returns the time."""
    for _ in range(steps_max):
        end = engine.begin_step(now)
        if end is None:
            return now
        assert end > now
        now = end
        engine.end_step(now)
        engine.validate()
    raise AssertionError("the engine does not come to an end")


def chain(*parts: int) -> list[int]:
    """Chained hashes: equal up to the first part that differs."""
    out, last = [], 0
    for part in parts:
        last = hash((last, part))
        out.append(last)
    return out


def test_one_request_from_queue_to_end() -> None:
    engine = EngineModel(SMALL)
    request = EngineRequest(20, 5)
    engine.submit(request, 1.0)
    assert (request.state, len(engine.waiting), request.submitted_at) == (SequenceState.WAITING, 1, 1.0)
    end = engine.begin_step(1.0)
    assert end is not None
    assert engine.kv_use == pytest.approx(3 / 40)
    result = engine.end_step(end)
    assert (result.first, result.prefilled, result.decoded) == ([request], 20, 1)
    assert (engine.outputs(request), request.first_token_at) == (1, end)
    last = run(engine, end)
    assert (request.state, engine.outputs(request), request.finished_at) == (SequenceState.FINISHED, 5, last)
    assert (engine.kv_use, engine.generation_tokens_total, engine.prompt_tokens_total) == (0.0, 5, 20)
    assert engine.steps_total == 5


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    engine = EngineModel(SMALL)
    engine.submit(EngineRequest(100, 2), 0.0)
    chunks = []
    now = 0.0
    while (end := engine.begin_step(now)) is not None:
        now = end
        chunks.append(engine.end_step(now).prefilled)
    assert chunks == [32, 32, 32, 4, 0]


def test_decodes_come_before_prompts_in_the_budget() -> None:
    engine = EngineModel(SMALL)
    first = EngineRequest(8, 50)
    engine.submit(first, 0.0)
    now = engine.begin_step(0.0)
    assert now is not None
    engine.end_step(now)
    engine.submit(EngineRequest(100, 2), now)
    end = engine.begin_step(now)
    assert end is not None
    result = engine.end_step(end)
    assert (result.prefilled, result.decoded, engine.outputs(first)) == (31, 1, 2)


def test_sequences_are_bounded_and_nobody_overtakes() -> None:
    engine = EngineModel(SMALL)
    requests = [EngineRequest(8, 3) for _ in range(10)]
    for request in requests:
        engine.submit(request, 0.0)
    engine.begin_step(0.0)
    assert (len(engine.running), len(engine.waiting)) == (4, 6)
    engine.end_step(0.1)
    run(engine, 0.1)
    starts = [request.first_token_at for request in requests]
    assert starts == sorted(starts)


def test_the_watermark_keeps_blocks_free_but_never_locks_out_a_lone_prompt() -> None:
    engine = EngineModel(SMALL, watermark=0.5)
    running = EngineRequest(64, 90)
    engine.submit(running, 0.0)
    now = 0.0
    for _ in range(3):
        end = engine.begin_step(now)
        assert end is not None
        now = end
        engine.end_step(now)
    late = EngineRequest(100, 2)
    engine.submit(late, now)
    # 8 to 9 of 40 blocks are in use; 4 for the first chunk leave more than half, the last chunks do not need to.
    end = engine.begin_step(now)
    assert end is not None
    assert late.state is SequenceState.PREFILL
    engine.end_step(end)
    run(engine, end)
    lone = EngineModel(SMALL, watermark=0.99)
    lone.submit(EngineRequest(150, 10), 0.0)
    run(lone)


def test_preemption_takes_the_latest_and_recomputes_it() -> None:
    # Two sequences of 160 tokens fit exactly; three that grow to 120 do not.
    engine = EngineModel(SMALL, watermark=0.0, prefix_caching=False)
    requests = [EngineRequest(60, 60) for _ in range(3)]
    for request in requests:
        engine.submit(request, 0.0)
    run(engine)
    assert engine.preemptions_total >= 1
    assert requests[0].preemptions == 0
    assert requests[2].preemptions >= 1
    assert [engine.outputs(r) for r in requests] == [60, 60, 60]
    assert engine.generation_tokens_total == 180
    assert engine.prefill_tokens_total > engine.prompt_tokens_total == 180
    # Recomputation costs time, but a first token is counted once.
    assert requests[2].finished_at > requests[0].finished_at


def test_equal_prompts_hit_the_prefix_cache() -> None:
    engine = EngineModel(SMALL)
    hashes = chain(1, 2, 3, 4)
    first = EngineRequest(32, 2, hashes=hashes)
    engine.submit(first, 0.0)
    now = run(engine)
    second = EngineRequest(33, 2, hashes=hashes)
    engine.submit(second, now)
    run(engine, now)
    assert (first.cached_tokens, second.cached_tokens) == (0, 32)
    assert (engine.prefix_hits_total, engine.prefix_queries_total) == (32, 65)
    assert second.first_token_at - second.submitted_at < first.first_token_at - first.submitted_at
    # The last token is always computed: an equal prompt of whole blocks hits all but its last block.
    third = EngineRequest(32, 2, hashes=hashes)
    engine.submit(third, now + 1)
    run(engine, now + 1)
    assert third.cached_tokens == 24


def test_only_the_equal_beginning_is_hit() -> None:
    engine = EngineModel(SMALL)
    engine.submit(EngineRequest(32, 1, hashes=chain(1, 2, 3, 4)), 0.0)
    now = run(engine)
    other = EngineRequest(32, 1, hashes=chain(1, 2, 9, 4))
    engine.submit(other, now)
    run(engine, now)
    assert other.cached_tokens == 16


def test_an_answer_sent_back_as_history_is_hit_too() -> None:
    engine = EngineModel(SMALL)
    blocks = chain(1, 2, 3, 4, 5)
    engine.submit(EngineRequest(16, 17, hashes=blocks[:4]), 0.0)
    now = run(engine)
    follow_up = EngineRequest(40, 1, hashes=blocks)
    engine.submit(follow_up, now)
    run(engine, now)
    # 16 prompt and 16 of the 17 generated tokens have their KV computed.
    assert follow_up.cached_tokens == 32


def test_cached_blocks_are_evicted_oldest_first_and_from_the_end_of_a_prefix() -> None:
    pool = BlockPool(4, caching=True)
    for name in (1, 2, 3, 4):
        assert pool.take(1)
        assert pool.publish(name)
    pool.give(0, [1, 2])
    pool.give(0, [3, 4])
    assert (pool.free, pool.blank, pool.cached) == (4, 0, 4)
    assert pool.take(1)
    assert pool.lookup([1, 2], 9) == (1, 1)
    assert pool.lookup([3, 4], 9) == (2, 2)
    assert pool.evictions_total == 1
    assert not pool.take(4)
    pool.validate()


def test_without_caching_nothing_is_kept() -> None:
    engine = EngineModel(SMALL, prefix_caching=False)
    for _ in range(2):
        request = EngineRequest(32, 2, hashes=chain(1, 2, 3, 4))
        engine.submit(request, 0.0)
        run(engine)
        assert request.cached_tokens == 0
    assert engine.prefix_queries_total == 0


@pytest.mark.parametrize("when", ["waiting", "prefill", "decode", "between"])
def test_abort_frees_at_once(when: str) -> None:
    engine = EngineModel(SMALL)
    request = EngineRequest(40, 50, hashes=chain(1, 2, 3, 4, 5))
    engine.submit(request, 0.0)
    now = 0.0
    if when != "waiting":
        end = engine.begin_step(now)
        assert end is not None
        now = end
        if when != "prefill":
            engine.end_step(now)
            end = engine.begin_step(now)
            assert end is not None
            now = end
            if when == "between":
                engine.end_step(now)
    assert engine.abort(request, now)
    engine.validate()
    assert (engine.kv_use, len(engine.running), len(engine.waiting)) == (0.0, 0, 0)
    assert request.state is SequenceState.ABORTED
    assert not engine.abort(request, now)
    if engine.busy:
        assert engine.end_step(now).decoded == 0
    assert engine.begin_step(now) is None
    assert engine.aborts_total == 1


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: EngineRequest(0, 1),
        lambda: EngineRequest(1, 0),
        lambda: EngineRequest(160, 1),
    ],
)
def test_what_can_never_finish_is_refused(request_of: Callable[[], EngineRequest]) -> None:
    engine = EngineModel(SMALL)
    with pytest.raises(ValueError, match="token"):
        engine.submit(request_of(), 0.0)
    assert engine.begin_step(0.0) is None


def test_a_request_is_submitted_once() -> None:
    engine = EngineModel(SMALL)
    request = EngineRequest(1, 1)
    engine.submit(request, 0.0)
    with pytest.raises(ValueError, match="once"):
        engine.submit(request, 0.0)


def test_slow_and_speed_scale_time() -> None:
    def duration(slow: float, speed: float) -> float:
        engine = EngineModel(SMALL, speed=speed)
        engine.slow = slow
        engine.submit(EngineRequest(20, 20), 0.0)
        return run(engine)

    normal = duration(1.0, 1.0)
    assert duration(4.0, 1.0) == pytest.approx(4 * normal)
    assert duration(1.0, 10.0) == pytest.approx(normal / 10)


# -- properties -------------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 130), st.integers(1, 29), st.integers(0, 3)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 8), st.just(0), st.just(0)),
        st.tuples(st.just("half"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def play(events: list[tuple[str, int, int, int]], engine: EngineModel) -> tuple[list[EngineRequest], float]:
    """Applies events; "half" leaves a step open, so that what follows happens in the middle of it."""
    requests: list[EngineRequest] = []
    now = 0.0
    open_until: float | None = None
    for kind, a, b, family in events:
        if kind == "submit":
            hashes = chain(*([family] * (a // SMALL.block_size))) if family else []
            request = EngineRequest(a, b, hashes=hashes)
            requests.append(request)
            engine.submit(request, now)
        elif kind == "abort" and a < len(requests):
            engine.abort(requests[a], now)
        elif kind in ("step", "half"):
            for _ in range(a or 1):
                if open_until is None:
                    open_until = engine.begin_step(now)
                if open_until is not None and kind == "step":
                    now = max(now, open_until)
                    before = {r: engine.outputs(r) for r in engine.running}
                    result = engine.end_step(now)
                    open_until = None
                    for r in [*engine.decoding, *result.finished]:
                        assert engine.outputs(r) == before[r] + 1
        engine.validate()
    if open_until is not None:
        engine.end_step(open_until)
    return requests, now


@given(events=EVENTS, caching=st.booleans(), watermark=st.sampled_from([0.0, 0.05, 0.5]))
def test_nothing_is_lost_under_any_order_of_events(
    events: list[tuple[str, int, int, int]], caching: bool, watermark: float
) -> None:
    engine = EngineModel(SMALL, prefix_caching=caching, watermark=watermark)
    requests, now = play(events, engine)
    run(engine, now)
    for request in requests:
        if request.state is SequenceState.FINISHED:
            assert engine.outputs(request) == request.output_tokens
        else:
            assert request.state is SequenceState.ABORTED
            assert engine.outputs(request) <= request.output_tokens
    assert engine.generation_tokens_total == sum(engine.outputs(r) for r in requests)
    assert (engine.kv_use, engine.kv_tokens, len(engine.running), len(engine.waiting)) == (0.0, 0, 0, 0)
    assert engine.pool.free == engine.pool.total


@given(events=EVENTS)
def test_first_come_first_served(events: list[tuple[str, int, int, int]]) -> None:
    engine = EngineModel(SMALL)
    requests, now = play(events, engine)
    run(engine, now)
    started = [r.scheduled_at for r in requests if r.scheduled_at >= 0]
    assert started == sorted(started)


@given(events=EVENTS)
def test_the_same_events_give_the_same_times(events: list[tuple[str, int, int, int]]) -> None:
    def times() -> list[tuple[float, float]]:
        engine = EngineModel(SMALL)
        requests, now = play(events, engine)
        run(engine, now)
        return [(r.first_token_at, r.finished_at) for r in requests]

    assert times() == times()


@given(load=st.integers(0, 12), prompt=st.integers(1, 120), seed=st.integers(0, 99))
def test_more_load_before_a_request_never_makes_it_faster(load: int, prompt: int, seed: int) -> None:
    # Without preemption, which may put a later request before an earlier one.
    roomy = dataclasses.replace(SMALL, kv_tokens_max=4096)

    def first_token(others: int) -> float:
        rng = random.Random(seed)
        engine = EngineModel(roomy, prefix_caching=False)
        for _ in range(others):
            engine.submit(EngineRequest(rng.randint(1, 100), rng.randint(1, 50)), 0.0)
        request = EngineRequest(prompt, 5)
        engine.submit(request, 0.0)
        run(engine)
        return request.first_token_at

    # One more sequence moves the places where prompts are cut into steps: that may gain a part of one step, never more.
    step = SMALL.step_s(SMALL.token_budget, load, 150 * load, SMALL.token_budget * 100.0)
    assert first_token(load + 1) >= first_token(load) - step


def test_a_full_cache_shows_in_the_gauge() -> None:
    engine = EngineModel(SMALL, watermark=0.0)
    for _ in range(4):
        engine.submit(EngineRequest(79, 80), 0.0)
    now, peak = 0.0, 0.0
    while (end := engine.begin_step(now)) is not None:
        peak = max(peak, engine.kv_use)
        now = end
        engine.end_step(now)
    assert peak == 1.0
    assert engine.preemptions_total > 0


def test_reasons_are_the_callers() -> None:
    assert EngineRequest(1, 1).reason is FinishReason.LENGTH
    assert EngineRequest(1, 1, FinishReason.STOP).reason is FinishReason.STOP


def test_an_engine_checks_what_it_is_given() -> None:
    with pytest.raises(ValueError, match="watermark"):
        EngineModel(SMALL, watermark=1.0)
    with pytest.raises(ValueError, match="speed"):
        EngineModel(SMALL, speed=0.0)
    with pytest.raises(AssertionError):
        EngineModel(dataclasses.replace(SMALL, max_model_len=1000))
