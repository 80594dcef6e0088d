from __future__ import annotations

from array import array

import pytest

from exaserve.bench import Record
from exaserve.calibrate import Design, decode_point, design_runs


def test_everything_is_run_where_the_engine_allows_it():
    prompts, batches, probes = design_runs(Design(), {})
    assert prompts == [128, 512, 2048, 8192]
    assert {(b.sequences, b.prompt_tokens) for b in batches} == {
        (n, c) for n in (1, 4, 16, 64) for c in (128, 2048, 8192)
    }
    assert len(probes) == 5


def test_a_short_context_cuts_prompts_and_answers():
    prompts, batches, _ = design_runs(Design(), {"max_model_len": 2048, "kv_tokens_max": 500_000})
    assert prompts == [128, 512, 2032]
    assert all(b.prompt_tokens + b.output_tokens <= 2048 - 16 for b in batches)
    assert {b.prompt_tokens for b in batches} == {128, 2048 - 2 * 64 - 64}


def test_batches_fit_the_cache_and_the_engine():
    _, batches, probes = design_runs(Design(), {"kv_tokens_max": 40_000, "max_num_seqs": 16})
    assert all(b.sequences * (b.prompt_tokens + b.output_tokens) <= 0.7 * 40_000 for b in batches)
    assert max(b.sequences for b in batches) == 16
    assert all(p.background.sequences <= 16 for p in probes)


def stream(first: float, gap: float, count: int, per_event: int = 1) -> Record:
    times = array("d", [first + i * gap for i in range(count)])
    record = Record(
        0, "run", 0.0, prompt_tokens=100, token_s=times, tokens=count * per_event, complete=True, status=200
    )
    record.first_token_s, record.last_s = times[0], times[-1]
    return record


def test_the_steady_part_is_where_all_decode():
    point = decode_point([stream(1.0, 0.02, 50), stream(1.3, 0.02, 50)])
    assert point is not None
    assert point.sequences == 2
    assert point.step_s == pytest.approx(0.02)
    # The first had 15 tokens when the second began; both then take some 34 more.
    assert point.steps in (33, 34, 35)
    assert point.kv_tokens == pytest.approx(200 + 15 + 2 + point.steps, abs=2)


def test_events_of_several_tokens_are_that_many_steps():
    point = decode_point([stream(1.0, 0.06, 20, per_event=3)])
    assert point is not None
    assert point.step_s == pytest.approx(0.02)


def test_what_was_never_steady_is_no_point():
    assert decode_point([]) is None
    assert decode_point([stream(1.0, 0.02, 10), stream(3.0, 0.02, 10)]) is None
    assert decode_point([stream(1.0, 0.0, 20)]) is None, "all tokens in one heap: nothing says when each was made"
    failed = stream(1.0, 0.02, 50)
    failed.error = "lost"
    assert decode_point([failed]) is None
