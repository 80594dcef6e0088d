"""Many decode steps as one event must end when they would have ended one by one, whatever happens in between."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaserve.perfmodel import EngineProfile
from exaserve.perfmodel.engine import EngineModel, EngineRequest, SequenceState
from exaserve.perfmodel.runs import RunEngine

PROFILE = EngineProfile(
    prefill_tokens_per_s=1_000.0,
    decode_fixed_s=0.01,
    decode_per_seq_s=0.0001,
    decode_per_kv_token_s=1e-5,
    kv_tokens_max=320,
    kv_bytes_per_token=1.0,
    max_num_seqs=4,
    token_budget=32,
    max_model_len=160,
    block_size=8,
    overhead_s=0.001,
)
ROOMY = dataclasses.replace(PROFILE, kv_tokens_max=3_200, max_num_seqs=32)

Job = tuple[float, int, int, int, float | None]
"""Arrival, prompt, output, number of hashed blocks, seconds after which the client leaves."""


def requests_of(jobs: list[Job]) -> list[EngineRequest]:
    made = []
    for number, (_, prompt, output, blocks, _) in enumerate(jobs):
        hashes = [1_000 + k if k < 2 else number * 10_000 + k for k in range(min(blocks, (prompt + output) // 8))]
        made.append(EngineRequest(prompt, output, hashes=hashes))
    return made


def drive(
    profile: EngineProfile, jobs: list[Job], looks: list[float], *, runs: bool, ahead: bool = False
) -> tuple[list[EngineRequest], list[object]]:
    """The same jobs step by step or in runs; ``looks`` are instants at which somebody reads the counters."""
    engine = RunEngine(profile) if runs else EngineModel(profile)
    requests = requests_of(jobs)
    events: list[tuple[float, int, int]] = [(job[0], 0, k) for k, job in enumerate(jobs)]
    events += [(job[0] + job[4], 1, k) for k, job in enumerate(jobs) if job[4] is not None]
    events += [(at, 2, 0) for at in looks]
    events.sort(reverse=True)
    end: float | None = None
    seen: list[object] = []
    while events or end is not None:
        if end is not None and (not events or end <= events[-1][0]):
            engine.end_step(end)
            engine.validate()
            end = engine.begin_run(end) if isinstance(engine, RunEngine) else engine.begin_step(end)
            continue
        now, kind, k = events.pop()
        if kind == 0:
            engine.submit(requests[k], now)
        if isinstance(engine, RunEngine) and end is not None:
            if kind == 2:
                engine.advance(now)
            elif kind == 0 and ahead:
                end = engine.join(now)
            else:
                end = engine.cut_run(now)
        if kind == 1:
            engine.abort(requests[k], now)
            if isinstance(engine, RunEngine) and end is not None:
                end = engine.replan(now)
        if kind == 2:
            seen.append((round(engine.kv_use, 9), engine.kv_tokens, engine.generation_tokens_total, engine.steps_total))
        engine.validate()
        if end is None and kind == 0:
            end = engine.begin_run(now) if isinstance(engine, RunEngine) else engine.begin_step(now)
    seen.append(
        (engine.preemptions_total, engine.steps_total, engine.generation_tokens_total, engine.prefix_hits_total)
    )
    seen.append(pytest.approx(engine.busy_s) if runs else engine.busy_s)
    return requests, seen


jobs_strategy = st.lists(
    st.tuples(
        st.floats(0.0, 2.0, allow_subnormal=False),
        st.integers(1, 80),
        st.integers(1, 60),
        st.integers(0, 12),
        st.none() | st.floats(0.01, 1.0),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("profile", [PROFILE, ROOMY], ids=["tight", "roomy"])
@given(jobs=jobs_strategy, looks=st.lists(st.floats(0.0, 3.0), max_size=4))
@settings(max_examples=250)
def test_runs_end_when_their_steps_would_have(profile: EngineProfile, jobs: list[Job], looks: list[float]) -> None:
    single, seen_single = drive(profile, jobs, looks, runs=False)
    together, seen_together = drive(profile, jobs, looks, runs=True)
    for one, other in zip(single, together, strict=True):
        assert other.state is one.state
        assert other.state in (SequenceState.FINISHED, SequenceState.ABORTED)
        assert other.first_token_at == pytest.approx(one.first_token_at, abs=1e-9)
        assert other.finished_at == pytest.approx(one.finished_at, abs=1e-9)
    assert seen_together == seen_single


@pytest.mark.parametrize("profile", [PROFILE, ROOMY], ids=["tight", "roomy"])
@given(jobs=jobs_strategy)
@settings(max_examples=300)
def test_steps_formed_ahead_end_when_they_would_have(profile: EngineProfile, jobs: list[Job]) -> None:
    single, seen_single = drive(profile, jobs, [], runs=False)
    together, seen_together = drive(profile, jobs, [], runs=True, ahead=True)
    for one, other in zip(single, together, strict=True):
        assert other.state is one.state
        assert other.first_token_at == pytest.approx(one.first_token_at, abs=1e-9)
        assert other.finished_at == pytest.approx(one.finished_at, abs=1e-9)
    if not any(job[4] for job in jobs):
        assert seen_together == seen_single


def test_a_newcomer_needs_two_events() -> None:
    engine = RunEngine(ROOMY)
    engine.submit(EngineRequest(8, 100), 0.0)
    end = engine.begin_run(0.0)
    assert end is not None
    engine.end_step(end)
    engine.begin_run(end)
    late = EngineRequest(16, 20)
    engine.submit(late, 0.105)
    end = engine.join(0.105)
    assert engine.end_step(end).first == [late]
    end = engine.begin_run(end)
    assert end is not None
    assert engine.end_step(end).finished == [late]


def test_a_run_is_one_event_however_long() -> None:
    engine = RunEngine(dataclasses.replace(ROOMY, max_model_len=3_000, kv_tokens_max=6_400))
    engine.submit(EngineRequest(8, 2_000), 0.0)
    end = engine.begin_run(0.0)
    events = 0
    while end is not None:
        engine.end_step(end)
        events += 1
        end = engine.begin_run(end)
    assert events == 2, "the prompt, and everything after it"
    assert engine.steps_total == 2_000
    engine.validate()
