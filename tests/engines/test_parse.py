"""What each engine's exposition says, and that nothing it prints can mislead or break the reader."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.shapes import LLAMACPP, SGLANG, TGI, TRITON, TRTLLM, family, vllm_now

from exaserve.domain.replica import ReplicaId
from exaserve.engines import ENGINES, Engine, parse


def values(text: str, engine: str = "auto") -> dict[str, object]:
    return dict(parse(text.encode(), engine).values)


def test_vllm_of_today():
    signals = parse(vllm_now().encode(), "auto")
    assert signals.engine == "vllm"
    assert signals.missing == ()
    assert signals.values == {
        "running": 3,
        "waiting": 2,
        "kv_use": 0.25,
        "kv_tokens_max": 16000,
        "preemptions_total": 1.0,
        "prefix_hits_total": 50.0,
        "prefix_queries_total": 200.0,
        "prompt_tokens_total": 1234000.0,
        "generation_tokens_total": 800.0,
        "asleep": False,
    }


def test_data_parallel_ranks_add_up_but_the_fullest_cache_counts():
    read = values(vllm_now(engines=4))
    assert (read["running"], read["waiting"], read["kv_tokens_max"]) == (12, 8, 64000)
    assert read["kv_use"] == pytest.approx(0.28)


def test_a_hybrid_models_own_cache_size_wins_over_blocks():
    assert values(vllm_now(tokens="314187"))["kv_tokens_max"] == 314187


def test_old_vllm_names_the_cache_differently():
    text = vllm_now().replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    text = text.replace("vllm:prefix_cache", "vllm:gpu_prefix_cache")
    read = values(text)
    assert read["kv_use"] == 0.25
    assert read["prefix_hits_total"] == 50.0


def test_where_both_names_exist_the_new_one_counts():
    text = family("vllm:gpu_cache_usage_perc", "gauge", [('engine="0"', 0.9)]) + vllm_now()
    assert values(text)["kv_use"] == 0.25


def test_a_renamed_metric_is_missing_and_never_zero():
    signals = parse(vllm_now().replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage").encode())
    assert "kv_use" not in signals.values
    assert signals.missing == ("kv_use",)
    report = signals.report(ReplicaId("r"), 1, 2.0)
    assert report.kv_use is None
    assert report.missing == ("kv_use",)


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-Inf", "-1.0", "garbage", "", "0x10", "1_0", "1e400"])
def test_a_value_that_cannot_be_true_is_unknown_and_keeps_the_others(bad):
    text = vllm_now().replace('waiting{engine="0",model_name="m"} 2.0', f'waiting{{engine="0",model_name="m"}} {bad}')
    signals = parse(text.encode())
    assert "waiting" not in signals.values
    assert signals.missing == ("waiting",)
    assert signals.values["running"] == 3


def test_one_bad_rank_makes_the_sum_unknown():
    text = vllm_now(engines=2).replace(
        'running{engine="1",model_name="m"} 3.0', 'running{engine="1",model_name="m"} NaN'
    )
    assert "running" not in values(text)


@pytest.mark.parametrize("use", ["37.0", "1.2"])
def test_a_percentage_is_no_share(use):
    assert "kv_use" not in values(
        vllm_now().replace('perc{engine="0",model_name="m"} 0.25', f'perc{{engine="0"}} {use}')
    )


def test_asleep_when_any_rank_is():
    text = vllm_now(engines=2).replace(
        'engine="1",model_name="m",sleep_state="awake"} 1.0', 'engine="1",model_name="m",sleep_state="awake"} 0.0'
    )
    assert values(text)["asleep"] is True


def test_sglang():
    signals = parse(SGLANG.encode())
    assert (signals.engine, signals.missing) == ("sglang", ())
    assert signals.values["running"] == 162
    assert signals.values["waiting"] == 2826
    assert signals.values["kv_use"] == 0.28
    assert signals.values["kv_tokens_max"] == 442000
    assert signals.values["generation_tokens_total"] == 7557572.0


def test_sglang_tensor_ranks_repeat_and_data_ranks_add():
    series = [
        (f'dp_rank="{dp}",model_name="m",pp_rank="0",tp_rank="{tp}"', 5.0 + dp) for dp in range(2) for tp in range(4)
    ]
    assert values(family("sglang:num_running_reqs", "gauge", series))["running"] == 11


def test_llamacpp_has_no_kv_and_that_is_not_missing():
    signals = parse(LLAMACPP.encode())
    assert (signals.engine, signals.missing) == ("llamacpp", ())
    assert (signals.values["running"], signals.values["waiting"]) == (2, 5)
    assert "kv_use" not in signals.values


def test_broken_lines_between_good_ones():
    text = LLAMACPP.replace(
        "llamacpp:requests_deferred 5", "llamacpp:n_tokens_max\nnull null\n}{\nllamacpp:requests_deferred 5"
    )
    assert values(text)["waiting"] == 5


def test_tensorrt_llm_both_ways():
    assert values(TRTLLM) == {
        "running": 4,
        "waiting": 1,
        "kv_use": 0.5,
        "kv_tokens_max": 3200,
        "prompt_tokens_total": 900,
        "generation_tokens_total": 70,
    }
    assert values(TRITON) == {"running": 6, "waiting": 3, "kv_use": 0.75, "kv_tokens_max": 12800}


def test_tgi_and_the_adapter_that_prints_its_names_beside_vllms():
    assert values(TGI) == {"running": 8, "waiting": 3}
    assert parse((TGI + vllm_now()).encode()).engine == "vllm"


def test_without_type_lines():
    text = "\n".join(line for line in vllm_now().splitlines() if not line.startswith("#")) + "\n"
    assert values(text) == values(vllm_now())


def test_carriage_returns_and_time_stamps():
    assert values(vllm_now().replace("\n", "\r\n"))["running"] == 3
    assert (
        values(vllm_now().replace('running{engine="0",model_name="m"} 3.0', 'running{engine="0"} 3.0 1700000000'))[
            "running"
        ]
        == 3
    )


def test_labels_with_braces_quotes_and_newlines():
    text = vllm_now().replace('model_name="m"', 'model_name="{\'a\': 1} \\"x\\" running{ 7\\n"')
    assert values(text) == values(vllm_now())


def test_an_unterminated_number_does_not_count():
    whole = family("vllm:num_requests_running", "gauge", [("", "128")])
    assert values(whole)["running"] == 128
    assert "running" not in values(whole[:-2])


def test_nothing_known():
    for text in ("", "\n", "<html>not here</html>", '{"a": 1}', family("go_goroutines", "gauge", [("", 7)])):
        signals = parse(text.encode())
        assert (signals.engine, dict(signals.values)) == ("", {})
        assert "running" in signals.missing


def test_a_named_engine_that_is_absent_lists_everything_as_missing():
    signals = parse(SGLANG.encode(), "vllm")
    assert signals.missing == tuple(sorted(ENGINES["vllm"].expected))


CORPUS = [vllm_now(engines=2).encode(), SGLANG.encode(), LLAMACPP.encode(), TRTLLM.encode(), TRITON.encode()]


@given(st.sampled_from(CORPUS), st.integers(0, 8000), st.integers(0, 8000), st.binary(max_size=40))
def test_any_cut_or_splice_is_read_without_raising_and_within_bounds(text, start, end, junk):
    for mutated in (text[:start], text[start:], text[:start] + junk + text[end:]):
        for engine in ("auto", "vllm", "sglang", "llamacpp"):
            report = parse(mutated, engine).report(ReplicaId("r"), 1, 0.0)
            assert report.running is None or report.running >= 0
            assert report.kv_use is None or 0.0 <= report.kv_use <= 1.0


@given(st.sampled_from(CORPUS), st.integers(0, 8000))
def test_a_cut_never_changes_a_figure(text, end):
    """What is read of a cut exposition of one rank is what the whole one says, or is not read."""
    whole = parse(CORPUS[1]).values
    for signal, value in parse(CORPUS[1][:end], "sglang").values.items():
        assert whole[signal] == value


@given(st.binary(max_size=300))
def test_any_bytes(data):
    parse(data)
    parse(b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running" + data + b"\n")


def test_hostile_labels_cost_linear_time():
    """Quadratic would be minutes."""
    evil = 'vllm:num_requests_running{a="' + '\\\\"' * 400_000
    text = "# TYPE vllm:num_requests_running gauge\n" + evil + "\n"
    began = time.perf_counter()
    parse(text.encode(), "vllm")
    assert time.perf_counter() - began < 10.0


def test_a_large_exposition():
    """600 lines and 50 kB, as vLLM prints."""
    filler = "".join(
        family(
            f"vllm:filler_{index}_seconds",
            "histogram",
            [(f'engine="0",le="{le}",model_name="m"', 1.0) for le in range(14)],
            "A histogram that nobody reads, with a help text of usual length.",
        )
        for index in range(50)
    )
    text = (filler + vllm_now() + filler[: len(filler) // 2]).encode()
    assert len(text) > 45_000
    assert parse(text, "vllm").missing == ()


@pytest.mark.parametrize("ray", ["ray_vllm:", "ray_vllm_"])
@pytest.mark.parametrize("engine", ["auto", "vllm"])
def test_rays_names_of_vllms_metrics(ray: str, engine: str) -> None:
    """Ray exports what its engines count under a beginning of its own; OpenTelemetry leaves no colon in it."""
    text = vllm_now(engines=2)
    signals = parse(text.replace("vllm:", ray).encode(), engine)
    assert (signals.engine, signals.missing) == ("vllm", ())
    assert signals.values == parse(text.encode()).values


def test_a_key_is_the_records_own_name() -> None:
    assert all(name == engine.name for name, engine in ENGINES.items())


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_expected_signals_have_a_source(engine: Engine) -> None:
    assert engine.prefixes
    assert set(engine.expected) - {"kv_tokens_max"} <= set(engine.sources)
    assert all(path.startswith("/") for path in (*engine.metrics_paths, engine.health_path))
