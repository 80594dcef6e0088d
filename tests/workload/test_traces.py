"""Traces in their public formats, prompt files, mixes from YAML, conversations and arrivals that change with time."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from exaserve.domain.errors import ConfigError
from exaserve.workload import (
    REFERENCE_MIX,
    Arrivals,
    BodyRenderer,
    Conversations,
    Mix,
    OutputLengths,
    PlannedRequest,
    Scenario,
    Words,
    make_plan,
    parse_mix,
    plan_from_rows,
    prompt_text,
    read_rows,
)

BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
46,ChatGPT,100,0,100,Conversation log
118.5,GPT-4,9000,276,9276,API log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2024-02-29T00:00:00+00:00,110,27
"""
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1300, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 3052, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 9]}\n'
)


def test_burstgpt_rows_and_what_is_left_out():
    rows, skipped = read_rows(BURSTGPT.splitlines())
    assert skipped == 1
    assert [(r.at_s, r.prompt_tokens, r.output_tokens, r.scenario) for r in rows] == [
        (0.0, 472, 18, "short"),
        (40.0, 1087, 230, "medium"),
        (113.5, 9000, 276, "long"),
    ]


def test_azure_times_are_seconds_also_across_a_leap_day():
    rows, _ = read_rows(AZURE.splitlines())
    assert rows[1].at_s == pytest.approx(0.052, abs=1e-6)
    assert rows[2].at_s == pytest.approx(105 * 86_400 - (18 * 3600 + 17 * 60 + 3.97996), abs=1e-3)


def test_mooncake_blocks_become_equal_text_for_equal_ids():
    rows, _ = read_rows(MOONCAKE.splitlines())
    plan = plan_from_rows(rows, seed=1, speed=2.0)
    assert [r.scheduled_s for r in plan.requests] == [0.0, 1.526]
    one, two = (prompt_text(r) for r in plan.requests)
    assert (len(one), len(two)) == (1300 * 4, 1100 * 4)
    assert one[: 1024 * 4] == two[: 1024 * 4]
    assert one[1024 * 4 : 1024 * 4 + 20] != two[1024 * 4 : 1024 * 4 + 20]


def test_prompt_files_are_sent_as_they_are():
    messages = [{"role": "system", "content": "Sé brief"}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]
    lines = [
        json.dumps({"prompt": 'say "hi"\n', "max_tokens": 7, "timestamp": 2.0, "scenario": "x"}),
        json.dumps({"messages": messages, "timestamp": 1.0}),
        json.dumps({"conversations": [{"from": "human", "value": "hello"}], "timestamp": 3}),
    ]
    rows, skipped = read_rows(lines, output_tokens=33)
    assert skipped == 0
    plan = plan_from_rows(rows, seed=1)
    bodies = [json.loads(BodyRenderer("m").body(r)) for r in plan.requests]
    assert bodies[0]["messages"] == messages
    assert bodies[1]["messages"] == [{"role": "user", "content": 'say "hi"\n'}]
    assert [b["max_tokens"] for b in bodies] == [33, 7, 33]
    assert json.loads(BodyRenderer("m", path="/v1/completions").body(plan.requests[1]))["prompt"] == 'say "hi"\n'
    with pytest.raises(ValueError, match="messages"):
        BodyRenderer("m", path="/v1/completions").body(plan.requests[0])


def test_files_without_times_need_a_rate():
    rows, _ = read_rows([json.dumps({"prompt": f"p{i}"}) for i in range(3)])
    with pytest.raises(ConfigError, match="no times"):
        plan_from_rows(rows, seed=1)
    plan = plan_from_rows(rows, seed=1, arrivals=Arrivals(10.0, 1.0, "constant"))
    assert len(plan) == 10
    assert {json.loads(r.content) for r in plan.requests} == {"p0", "p1", "p2"}


def test_limits_of_a_trace():
    rows, _ = read_rows(BURSTGPT.splitlines())
    assert len(plan_from_rows(rows, seed=1, duration_s=60.0)) == 2
    assert len(plan_from_rows(rows, seed=1, requests_max=1)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b,c\n1,2,3", "none that is known"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2", "line 2"),
        ('{"input_length": 3}\n{"output_length": 3}', "line 2.*input_length.*missing"),
        ('{"prompt": ""}', "no request"),
        ("[1]", "none that is known"),
        ('{"prompt": "a"}\n[1]', "line 2"),
    ],
)
def test_what_is_no_trace_says_where(text, message):
    with pytest.raises(ConfigError, match=message):
        read_rows(text.splitlines())


def test_mixes_from_a_document():
    mix = parse_mix(
        {
            "scenarios": {
                "chat": {"share": 3, "prompt_tokens": 400, "output_tokens": 20},
                "rag": {"prompt_tokens": {"mean": 2000, "sigma": 0.3, "min": 100, "max": 4000}},
            }
        }
    )
    assert mix.shares() == (0.75, 0.25)
    plan = make_plan(mix, Arrivals(500.0, 4.0), 1)
    chat = [r for r in plan.requests if r.scenario == "chat"]
    rag = [r for r in plan.requests if r.scenario == "rag"]
    assert {(r.prompt_tokens, r.output_tokens) for r in chat} == {(400, 20)}
    assert len({r.prompt_tokens for r in rag}) > 50
    assert all(100 <= r.prompt_tokens <= 4000 for r in rag)
    assert statistics.fmean(r.prompt_tokens for r in rag) == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "needs scenarios"),
        ({"scenarios": {"a": {}}}, "scenarios.a: prompt_tokens is missing"),
        ({"scenarios": {"a": {"prompt": 3}}}, "scenarios.a.prompt: unknown"),
        ({"scenarios": {"a": {"prompt_tokens": True}}}, "must be a number"),
        ({"scenarios": {"a": {"prompt_tokens": {"kind": "pareto"}}}}, "pareto"),
        ({"scenarios": {"a": {"prompt_tokens": 3}}}, "must exceed"),
        ({"scenarios": {"a": {"prompt_tokens": 30, "share": "x"}}}, "share"),
        ({"scenarios": {"a": {"prompt_tokens": 30, "share": -1}}}, "share"),
        ({"scenarios": {"a": {"prompt_tokens": 30}}, "rate": 3}, "rate: unknown"),
    ],
)
def test_wrong_mixes_say_where(document, message):
    with pytest.raises(ConfigError, match=message):
        parse_mix(document)


def test_conversations_repeat_what_was_said_and_wait_for_answers():
    how = Conversations(turns_mean=4.0, question_tokens=50, think_s=2.0, system_tokens=100, prompt_tokens_max=20_000)
    plan = make_plan(REFERENCE_MIX, Arrivals(50.0, 60.0), 1, conversations=how)
    assert [r.index for r in plan.requests] == list(range(len(plan)))
    assert [r.scheduled_s for r in plan.requests] == sorted(r.scheduled_s for r in plan.requests)
    assert len(plan) == pytest.approx(3_000, rel=0.15)
    followers = [r for r in plan.requests if r.after >= 0]
    assert followers
    for later in followers:
        before = plan.requests[later.after]
        assert (later.session, later.scenario) == (before.session, before.scenario)
        assert later.prompt_tokens == before.prompt_tokens + before.output_tokens + 50
        assert prompt_text(later).startswith(prompt_text(before)[:-1])
    firsts = [r for r in plan.requests if r.after < 0 and r.scenario == "A"]
    assert len({prompt_text(r)[:400] for r in firsts}) == 1, "the system prompt is shared"
    assert len({prompt_text(r)[400:420] for r in firsts}) == len(firsts)


def test_one_turn_each_is_no_conversation():
    plan = make_plan(REFERENCE_MIX, Arrivals(50.0, 10.0), 1, conversations=Conversations(turns_mean=1.0))
    assert all(r.after < 0 for r in plan.requests)


@pytest.mark.parametrize(
    "arrivals",
    [
        Arrivals(200.0, 50.0, "burst", burst_mean=8.0),
        Arrivals(100.0, 50.0, "ramp", end_rate_per_s=300.0),
        Arrivals(200.0, 50.0, "day"),
    ],
)
def test_rates_that_change_have_their_mean(arrivals):
    counts = [len(list(arrivals.instants(random.Random(seed)))) for seed in range(6)]
    assert statistics.fmean(counts) == pytest.approx(arrivals.mean_rate_per_s() * 50.0, rel=0.05)
    instants = list(arrivals.instants(random.Random(1)))
    assert instants == sorted(instants)
    assert instants[-1] < 50.0


def test_a_day_has_its_night_and_a_ramp_its_end():
    day = list(Arrivals(400.0, 24.0, "day").instants(random.Random(1)))
    night, peak = sum(2 <= at < 5 for at in day), sum(9 <= at < 12 for at in day)
    assert peak > 4 * night
    ramp = list(Arrivals(1.0, 100.0, "ramp", end_rate_per_s=99.0).instants(random.Random(1)))
    assert sum(at > 50 for at in ramp) == pytest.approx(3 * sum(at <= 50 for at in ramp), rel=0.15)


def test_bursts_come_at_once():
    instants = list(Arrivals(100.0, 100.0, "burst", burst_mean=10.0).instants(random.Random(1)))
    assert len(instants) / len(set(instants)) == pytest.approx(10.0, rel=0.1)


def test_words_of_known_tokens_make_exact_lengths():
    words = Words(("ab", "cd", "ef", "gh"), 3, ((1, "x"), (2, "yy")), "the", 4)
    sizes = {"x": 1, "yy": 2, "the": 4}
    for tokens in (40, 41, 42, 100):
        texts = set()
        for head in (1, 2**50):
            request = PlannedRequest(0, "A", 0.0, tokens, 1, head, session_head=7, shared_tokens=20)
            text = BodyRenderer("m", words=words, overhead_tokens=4).text(request)
            assert sum(sizes.get(word, 3) for word in text.split(" ")) == tokens - 4
            texts.add(text)
        assert len(texts) == 2
        assert len({text[:12] for text in texts}) == 1


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="exclude"):
        make_plan(REFERENCE_MIX, Arrivals(1.0, 1.0), 1, sessions=__sessions(), conversations=Conversations())
    with pytest.raises(ValueError, match="different"):
        Words(("a", "a"))
    with pytest.raises(ValueError, match="curve"):
        Arrivals(1.0, 1.0, "day", curve=())
    with pytest.raises(ValueError, match="kind"):
        Arrivals(1.0, 1.0, "never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="turns_mean"):
        Conversations(turns_mean=0.5)


def __sessions():
    from exaserve.workload import Sessions

    return Sessions(2)


def test_drawn_prompts_leave_fixed_ones_alone():
    drawn = Scenario("X", 500, prompt=OutputLengths("lognormal", 500, tokens_max=2000))
    plan = make_plan(Mix(((drawn, 1.0),)), Arrivals(100.0, 2.0), 1)
    assert len({r.prompt_tokens for r in plan.requests}) > 20


def test_a_sharegpt_array_gives_the_first_exchange_and_its_length():
    turns = [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "what is it"},
        {"from": "gpt", "value": "word" * 25},
        {"from": "human", "value": "and then"},
    ]
    entries = [{"id": "a", "conversations": turns}, {"id": "b", "conversations": turns[2:3]}]
    rows, skipped = read_rows(json.dumps(entries, indent=2).splitlines(keepends=True), output_tokens=7)
    assert skipped == 1
    assert [(row.content, row.output_tokens, row.at_s) for row in rows] == [('"what is it"', 25, None)]
    (alone,), _ = read_rows([json.dumps([{"conversations": turns[1:2]}])], output_tokens=7)
    assert alone.output_tokens == 7
    for text, message in (
        ('[{"conversations": [{"from": "human"}]}]', "entry 1 of the trace: 'value' is missing"),
        ('[{"prompt": "x"}', "no JSON array"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_rows([text])
