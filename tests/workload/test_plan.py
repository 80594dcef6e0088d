from __future__ import annotations

import itertools
import json
import random
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.workload import (
    BYTES_PER_TOKEN,
    REFERENCE_MIX,
    Arrivals,
    BodyRenderer,
    Mix,
    OutputLengths,
    Scenario,
    Sessions,
    make_plan,
    prompt_text,
)


def bodies(seed: int, **options) -> bytes:
    plan = make_plan(REFERENCE_MIX, Arrivals(50.0, 4.0), seed, **options)
    renderer = BodyRenderer("m")
    return b"".join(renderer.body(r) + repr(r.scheduled_s).encode() for r in plan.requests)


def test_one_seed_one_workload_to_the_byte():
    assert bodies(7) == bodies(7)
    assert bodies(7) != bodies(8)
    assert bodies(7, sessions=Sessions(4)) == bodies(7, sessions=Sessions(4))


def test_the_built_in_mix_is_the_texts():
    assert [(s.name, s.prompt_tokens) for s in REFERENCE_MIX.scenarios] == [("A", 327), ("B", 4_218), ("C", 12_842)]
    assert REFERENCE_MIX.shares() == pytest.approx((0.65, 0.30, 0.05))
    plan = make_plan(REFERENCE_MIX, Arrivals(1_000.0, 20.0), 3)
    for scenario, share in zip(REFERENCE_MIX.scenarios, REFERENCE_MIX.shares(), strict=True):
        mine = [r for r in plan.requests if r.scenario == scenario.name]
        assert len(mine) / len(plan) == pytest.approx(share, abs=0.01)
        assert statistics.fmean(r.output_tokens for r in mine) == pytest.approx(scenario.output.mean, rel=0.08)


def test_prompts_have_exactly_their_tokens_at_four_bytes_each():
    for sessions in (None, Sessions(3, 0.4), Sessions(1, 1.0)):
        plan = make_plan(REFERENCE_MIX, Arrivals(50.0, 4.0), 1, sessions)
        for request in plan.requests:
            assert len(prompt_text(request)) == request.prompt_tokens * BYTES_PER_TOKEN
            assert len(prompt_text(request, overhead_tokens=9)) == (request.prompt_tokens - 9) * BYTES_PER_TOKEN


def test_prompts_are_unique_within_their_first_block():
    plan = make_plan(REFERENCE_MIX, Arrivals(1_000.0, 5.0), 1)
    assert len({prompt_text(r)[:20] for r in plan.requests}) == len(plan)


def test_sessions_share_their_beginning_and_nothing_else():
    plan = make_plan(REFERENCE_MIX, Arrivals(100.0, 10.0), 1, Sessions(2, 0.5))
    for scenario in REFERENCE_MIX.scenarios:
        mine = [r for r in plan.requests if r.scenario == scenario.name and r.session == 0]
        size = int(scenario.prompt_tokens * 0.5) * BYTES_PER_TOKEN
        assert len({prompt_text(r)[:size] for r in mine}) == 1
        assert len({prompt_text(r)[size : size + 20] for r in mine}) == len(mine)
        other = next(r for r in plan.requests if r.scenario == scenario.name and r.session == 1)
        assert prompt_text(other)[:20] != prompt_text(mine[0])[:20]


def test_a_change_of_the_mix_leaves_the_instants_alone():
    one = make_plan(REFERENCE_MIX, Arrivals(50.0, 4.0), 1)
    two = make_plan(Mix(((Scenario("X", 50), 1.0),)), Arrivals(50.0, 4.0), 1, Sessions(2))
    assert [r.scheduled_s for r in one.requests] == [r.scheduled_s for r in two.requests]


def test_poisson_arrivals_have_the_rate_and_the_spread():
    instants = list(Arrivals(200.0, 50.0).instants(random.Random(5)))
    assert len(instants) == pytest.approx(10_000, rel=0.04)
    assert instants == sorted(instants)
    assert instants[0] > 0.0
    assert instants[-1] < 50.0
    gaps = [b - a for a, b in itertools.pairwise(instants)]
    assert statistics.pstdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.05)


def test_constant_arrivals_are_even():
    assert list(Arrivals(4.0, 1.0, "constant").instants(random.Random(0))) == [0.0, 0.25, 0.5, 0.75]
    assert list(Arrivals(0.5, 1.0, "constant").instants(random.Random(0))) == [0.0]


@given(st.sampled_from(["fixed", "geometric", "lognormal"]), st.floats(1.0, 400.0), st.integers(0, 99))
def test_output_lengths_stay_within_their_bounds(kind, mean, seed):
    lengths = OutputLengths(kind, mean, tokens_min=3, tokens_max=500)
    rng = random.Random(seed)
    assert all(3 <= lengths.draw(rng) <= 500 for _ in range(50))


@pytest.mark.parametrize("kind", ["fixed", "geometric", "lognormal"])
def test_output_lengths_have_their_mean(kind):
    lengths = OutputLengths(kind, 100.0, tokens_max=100_000)
    rng = random.Random(1)
    assert statistics.fmean(lengths.draw(rng) for _ in range(20_000)) == pytest.approx(100.0, rel=0.03)


def test_bodies_are_what_servers_expect():
    plan = make_plan(REFERENCE_MIX, Arrivals(50.0, 1.0), 1)
    request = plan.requests[0]
    chat = json.loads(BodyRenderer('a "model"', stream=True).body(request))
    assert chat == {
        "model": 'a "model"',
        "messages": [{"role": "user", "content": prompt_text(request)}],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.output_tokens,
    }
    plain = json.loads(BodyRenderer("m", stream=False, path="/v1/completions", exact_output=False).body(request))
    assert plain == {"model": "m", "prompt": prompt_text(request), "max_tokens": request.output_tokens}


def test_very_long_prompts_are_cheap():
    """A generous bound, so that only a prompt built token by token fails it."""
    plan = make_plan(Mix(((REFERENCE_MIX.scenarios[2], 1.0),)), Arrivals(200.0, 1.0, "constant"), 1)
    renderer = BodyRenderer("m")
    began = time.process_time()
    for request in plan.requests:
        renderer.body(request)
    assert (time.process_time() - began) / len(plan) < 0.001


@pytest.mark.parametrize(
    "make",
    [
        lambda: OutputLengths(mean=0.5),
        lambda: OutputLengths(tokens_min=0),
        lambda: OutputLengths(tokens_min=9, tokens_max=8),
        lambda: OutputLengths(sigma=-1.0),
        lambda: Scenario("A", 5),
        lambda: Mix(()),
        lambda: Mix(((Scenario("A", 50), 0.0),)),
        lambda: Mix(((Scenario("A", 50), 1.0), (Scenario("A", 60), 1.0))),
        lambda: Arrivals(0.0, 1.0),
        lambda: Arrivals(1.0, float("nan")),
        lambda: Sessions(0),
        lambda: Sessions(1, 1.5),
        lambda: BodyRenderer("m", path="/v1/other"),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError, match=r".+"):
        make()
