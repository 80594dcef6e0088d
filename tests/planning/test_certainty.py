"""Speeds carry their uncertainty: intervals from the errors of their like, and a size for a stated confidence."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.planning.test_cli import Run, run
from tests.planning.test_plan import ask

from exaserve.cli.plan_speed import band_text, show_evidence
from exaserve.config.measurements import load_measurements
from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_name
from exaserve.perfmodel import EngineProfile, find_hardware
from exaserve.perfmodel.constants import SpeedSetup, parts
from exaserve.perfmodel.fitted import ERRORS, FITTED
from exaserve.perfmodel.measured import Measurement, parse_measurements
from exaserve.perfmodel.nearest import evidence
from exaserve.planning import (
    Band,
    Certainty,
    EngineVersion,
    MemoryRequest,
    Parallelism,
    cluster_file,
    explain,
    make_plan,
    named_engine,
    plan_dict,
    reference_demand,
    sweep,
)
from exaserve.planning.certainty import CONFIDENCE_MOST, certainty_of
from exaserve.planning.explain import FACTOR_NAMES
from exaserve.planning.queueing import saturation, steady

__all__ = ["run"]  # a fixture

PROFILE = EngineProfile(
    prefill_tokens_per_s=40_000.0,
    decode_fixed_s=0.008,
    decode_per_seq_s=2e-5,
    decode_per_kv_token_s=4e-8,
    kv_tokens_max=400_000,
    kv_bytes_per_token=1e5,
    prefill_per_pair_s=1e-9,
    overhead_s=0.003,
    expert_s=0.004,
    expert_share=0.03,
    overlap=0.6,
    prompt_s=0.002,
    first_s=0.015,
)


# The profile


def test_a_slower_profile_takes_as_much_longer_for_every_step() -> None:
    rng = random.Random(3)
    for _ in range(200):
        factor = rng.uniform(0.5, 3.0)
        slow = PROFILE.slower(factor)
        slow.validate()
        step = (rng.choice([0, rng.uniform(1, 9000)]), rng.uniform(0, 256), rng.uniform(0, 3e5), rng.uniform(0, 1e7))
        assert slow.step_s(*step) == pytest.approx(factor * PROFILE.step_s(*step))
        assert slow.first_token_s(step[1] + 1) == pytest.approx(factor * PROFILE.first_token_s(step[1] + 1))
    assert PROFILE.slower(1.0) == PROFILE


# Which measurements an interval is from


def certainty(model: str, gpu: str, engine: str = "vllm", confidence: float = 0.8) -> Certainty:
    request = MemoryRequest(
        model_from_name(model), find_hardware(gpu), Parallelism(1, 1), version=named_engine(engine), max_model_len=4096
    )
    return certainty_of(request, confidence)


def test_the_like_of_a_configuration_is_named() -> None:
    known = certainty("Llama-3.1-8B", "H100")
    assert known.token.like.startswith("H100, bf16, dense")
    assert f"like this ({known.token.like})" in known.says[0]
    assert f"{known.token.rows:,} of {known.token.groups} configurations" in known.says[0]
    assert f"{ERRORS['token']['H100, dense'].rows:,} rows" in known.measured


def test_where_nothing_like_it_was_measured_the_plan_says_so() -> None:
    unknown = certainty("nvidia/DeepSeek-R1-0528-FP4", "MI355X")
    assert unknown.token.like == "mixture"
    assert "configurations of MI355X, nvfp4, mixture were measured" in unknown.says[0]
    assert "of all mixtures" in unknown.says[0]
    assert "too few rows" in unknown.measured
    # The slices of a card are that card.
    assert certainty("Llama-3.2-3B", "H100-2g.20gb").token.like.startswith("H100, ")


def test_sizing_never_promises_more_than_the_prediction() -> None:
    for model, gpu, share in itertools.product(
        ("Llama-3.1-8B", "Qwen3-30B-A3B", "openai/gpt-oss-120b"),
        ("H100", "L4", "MI300X", "B200"),
        (0.5, 0.6, 0.8, 0.95),
    ):
        found = certainty(model, gpu, confidence=share)
        assert found.token_factor >= 1.0
        assert found.first_factor >= 1.0
        assert found.token.low < found.token.high
        if share == 0.5:
            assert found.sized(PROFILE) == PROFILE


# The plan


def test_more_confidence_takes_no_fewer_replicas() -> None:
    demand = reference_demand(300.0)
    counts, carried = [], []
    for share in (0.5, 0.7, 0.8, 0.9, CONFIDENCE_MOST):
        plan = make_plan(ask(demand=demand, tp=1, pp=1, confidence=share))
        assert plan.works
        assert plan.best is not None
        counts.append(plan.replicas)
        carried.append(plan.best.rate_max_s)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert carried == sorted(carried, reverse=True)


def test_half_is_the_prediction_itself() -> None:
    plan = make_plan(ask(confidence=0.5))
    assert plan.best is not None
    assert plan.predicted is not None
    assert plan.now is not None
    assert plan.best.profile == plan.best.predicted
    assert plan.predicted.rate_s.predicted == pytest.approx(plan.best.rate_max_s, rel=1e-3)
    assert plan.predicted.token_s is not None
    assert plan.predicted.token_s.predicted == pytest.approx(plan.now.state.step_s)
    assert plan.predicted.first_s[0].predicted == pytest.approx(plan.now.per_class[0].ttft_p99_s, rel=1e-3)


@pytest.mark.parametrize(("model", "gpu"), [("Llama-3.1-8B", "H100"), ("Qwen3-30B-A3B", "B200"), ("Qwen3-8B", "L40S")])
def test_the_prediction_is_inside_its_interval_and_below_what_is_sized_with(model: str, gpu: str) -> None:
    plan = make_plan(ask(model, gpu))
    found, now = plan.predicted, plan.now
    assert found is not None
    assert now is not None
    assert plan.best is not None
    assert found.token_s is not None
    bands = [found.alone_token_s, found.alone_first_s, found.rate_s, found.token_s, *found.first_s]
    for band in bands:
        assert band.low < band.predicted < band.high
    assert found.token_s.predicted <= now.state.step_s
    assert found.rate_s.predicted >= plan.best.rate_max_s
    for band, sized in zip(found.first_s, now.per_class, strict=True):
        assert band.predicted <= sized.ttft_p99_s


@pytest.mark.parametrize("wrong", [0.0, 1.0, 80.0, 0.49, 0.96, -1.0, math.nan])
def test_a_confidence_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="--confidence") as caught:
        ask(confidence=wrong)
    assert caught.value.param == "confidence"
    assert ("80 % is 0.8" in caught.value.message) == (wrong == 80.0)


def test_the_cluster_file_has_what_is_likely_not_what_was_sized_with() -> None:
    plan = make_plan(ask())
    assert plan.best is not None
    assert plan.best.predicted is not None
    assert f"prefill_tokens_per_s: {plan.best.predicted.prefill_tokens_per_s:.0f}" in cluster_file(plan)


def test_every_row_of_a_sweep_that_works_has_its_interval() -> None:
    r = ask()
    rows = sweep(r, {"bf16": r.arch}, [find_hardware("H100"), find_hardware("T4")])
    for row in rows:
        assert (row.token_band_s is not None) == (row.first_band_s is not None) == row.works
        if row.token_band_s is not None:
            assert row.token_band_s.low < row.token_band_s.predicted <= row.tpot_s
            assert row.like_rows > 0


def test_a_sweep_leaves_no_card_out() -> None:
    r = ask()
    rows = sweep(r, {"a": r.arch, "b": r.arch, "c": r.arch})
    assert len({row.hardware for row in rows}) * 12 == len(rows)


def test_saturation_is_where_the_steady_state_breaks_its_limit() -> None:
    rng = random.Random(7)
    for _ in range(60):
        p = replace(
            PROFILE,
            decode_fixed_s=10 ** rng.uniform(-2.3, -1.0),
            decode_per_kv_token_s=10 ** rng.uniform(-9, -6.5),
            kv_tokens_max=rng.choice([20_000, 400_000]),
            max_num_seqs=rng.choice([16, 256]),
        )
        demand = reference_demand(10.0)
        target = rng.choice([0.05, 0.2, math.inf])
        rate, limit = saturation(p, demand, target)
        if not rate:
            continue
        below, above = steady(p, demand, rate * 0.999), steady(p, demand, rate * 1.001)
        assert below is not None
        assert below.step_s <= target
        assert below.batch <= p.max_num_seqs
        broken = {
            "compute": above is None,
            "token time": above is not None and above.step_s > target,
            "batch": above is not None and above.batch > p.max_num_seqs,
            "cache": above is not None and above.kv_tokens > 0.85 * p.kv_tokens_max,
        }
        assert broken[limit]


# Engines


def test_tensorrt_llm_is_planned_with_its_own_speeds_and_vllm_s_memory() -> None:
    vllm = make_plan(ask(tp=1))
    other = make_plan(ask(tp=1, version=named_engine("trtllm", "1.1.0rc2")))
    assert vllm.best is not None
    assert other.best is not None
    assert other.best.certainty is not None
    assert other.best.certainty.setup.engine == "trtllm"
    assert other.best.memory.tokens == vllm.best.memory.tokens
    assert other.best.predicted != vllm.best.predicted
    assert any("memory is vLLM's sum" in note for note in other.notes)
    with pytest.raises(ConfigError, match="plan with --engine vllm"):
        cluster_file(other, "trtllm")


def test_an_engine_s_release_is_read() -> None:
    assert named_engine("sglang", "v0.5.6.post1") == EngineVersion("sglang", stated=True, release=(0, 5, 6))
    assert named_engine("sglang").label == "SGLang"
    assert named_engine("trtllm", "1.1.0rc2").label == "TensorRT-LLM 1.1.0"
    assert named_engine("vllm", "0.10.2").minor == 10
    for name, version in (("llama.cpp", ""), ("tgi", ""), ("trtllm", "newest")):
        with pytest.raises(ConfigError):
            named_engine(name, version)


# Nearest measurements

HEAD = ",".join(Measurement.__dataclass_fields__)
TABLE = f"""{HEAD}
Llama-3.1-8B,bf16,bf16,H100,1,1,1,1,0,vllm,0.19.0,clients,even,32,1000,200,11.0,,,,fit,s1
Llama-3.1-8B,bf16,bf16,H100,1,1,1,1,0,vllm,0.19.0,clients,even,1,1000,200,7.0,45.0,,,fit,s1
Llama-3.1-8B,bf16,bf16,H100,1,1,1,1,0,vllm,0.19.0,clients,even,16,1000,200,9.0,,,,odd,s1
Llama-3.1-8B,fp8,bf16,H100,1,1,1,1,0,vllm,0.19.0,clients,even,32,1000,200,8.0,,,,fit,s1
Qwen3-8B,bf16,bf16,H100,1,1,1,1,0,sglang,0.5.9,clients,even,32,1000,200,12.0,,,,fit,s2
Llama-3.1-8B,bf16,bf16,A100-80,1,1,1,1,0,vllm,0.19.0,offline,even,-1,1000,200,,,2500,,fit,s2
Qwen3-30B-A3B,bf16,bf16,H100,1,1,1,1,0,vllm,0.19.0,clients,even,32,1000,200,14.0,,,,fit,s2
"""


def test_the_nearest_measurement_is_that_of_the_same_configuration() -> None:
    rows = parse_measurements(TABLE.splitlines())
    arch = model_from_name("Llama-3.1-8B")
    setup = SpeedSetup(find_hardware("H100"), "vllm", "0.18", "bf16")
    found = evidence(rows, {"s1": "a page"}, setup, arch, (30.0, 1000.0, 200.0), count=4)
    assert (found.card_rows, found.like_rows) == (5, 3)
    first = found.nearest[0]
    assert first.measurement == rows[0]  # of one configuration the load that is nearest
    assert first.distance < 0.1
    assert first.source == "a page"
    assert first.published == {"token": 0.011}
    assert first.predicted.keys() == first.published.keys()
    assert [n.measurement.group for n in found.nearest].count(rows[0].group) == 1
    assert rows[2] not in [n.measurement for n in found.nearest]  # not what the model is fitted to
    assert [n.distance for n in found.nearest] == sorted(n.distance for n in found.nearest)
    assert "Qwen3-30B-A3B" not in [n.measurement.model for n in found.nearest]
    alone = evidence(rows, {}, setup, arch, (1.0, 1000.0, 200.0), count=1)
    assert alone.nearest[0].measurement == rows[1]
    assert alone.nearest[0].source == "s1"


def test_the_table_that_is_shipped_is_read_with_its_sources() -> None:
    rows, sources = load_measurements()
    assert len(rows) > 2000
    assert {m.source for m in rows} <= sources.keys()


# What people see


def test_every_kind_of_load_in_the_table_has_words() -> None:
    rows, sources = load_measurements()
    by_kind = {m.kind: m for m in rows if m.use == "fit"}
    arch, setup = model_from_name("Llama-3.1-8B"), SpeedSetup(find_hardware("H100"), "vllm", "0.18", "bf16")
    found = evidence(list(by_kind.values()), sources, setup, arch, (1.0, 1000.0, 200.0), count=len(by_kind))
    console = Console(record=True, width=240)
    show_evidence(console, found)
    text = console.export_text()
    for words in ("clients", "a prompt of", "all at once,", "all at once through a server", "a batch of"):
        assert words in text


def test_explain_has_a_name_for_every_factor_of_a_plan() -> None:
    setup = SpeedSetup(find_hardware("H100"), "vllm", "0.18", "bf16")
    # Speculation and attention in ranks of their own are not planned.
    assert parts(setup).keys() - {"accepted", "ranks_wait"} == FACTOR_NAMES.keys()


def test_explain_names_the_constants_of_each_figure() -> None:
    terms = explain(make_plan(ask("Qwen3-30B-A3B", "H100", version=named_engine("vllm", "0.12"))))
    constants = [t for t in terms if t.part == "speed constants"]
    assert {"fitted", "estimated"} >= {t.source for t in constants}
    text = " ".join(t.formula for t in constants)
    for name in ("bandwidth/hopper", "layer/vllm", "prompt/vllm", "first/vllm", "matrix/bf16/hopper"):
        assert name in FITTED
        assert name in text
    names = {t.name for t in constants}
    assert {"routing, a layer", "by experts' weights"} <= names
    assert not names & {"latent cache, a layer", "weights in the format"}
    sized = [t for t in terms if t.part == "sized with"]
    assert [t.name for t in sized] == ["every step", "own part of a first token"]


@pytest.mark.parametrize(
    ("band", "text"),
    [
        (Band(0.0213, 0.018, 0.0256), "21.3 ms (18.0 to 25.6)"),
        (Band(0.9, 0.5, 1.4), "900.0 ms (500.0 ms to 1.40 s)"),
        (Band(1.2, 1.0, 2.0), "1.20 s (1.00 to 2.00)"),
        (Band(0.5, 0.4, math.inf), "500.0 ms (400.0 ms to no end)"),
        (Band(math.inf, 0.4, math.inf), "no end (from 400.0 ms)"),
        (None, ""),
    ],
)
def test_a_band_reads_as_a_figure_with_its_interval(band: Band | None, text: str) -> None:
    assert band_text(band, 1) == text


def test_the_terminal_shows_prediction_interval_and_size(run: Run, tmp_path: Path) -> None:
    text = run("Llama-3.1-8B", "--rps", "60", "--explain").output
    for part in ("under this demand: ", "; sized with ", "(--confidence)", "measured cards like this", "80% of"):
        assert part in " ".join(text.split())
    assert "Nearest public measurements" in text
    page = tmp_path / "sweep.html"
    run("Llama-3.1-8B", "--rps", "60", "--html", str(page))
    assert "measured like it" in page.read_text("utf-8")


def test_json_has_it_all(run: Run) -> None:
    value = json.loads(run("Llama-3.1-8B", "--rps", "60", "--json").output)
    speed = value["speed"]
    assert speed["confidence"] == 0.8
    assert speed["predicted"]["token_s"]["low"] < speed["predicted"]["token_s"]["predicted"]
    assert speed["token_errors"]["rows"] > 0
    assert len(speed["nearest"]) == 5
    assert {"model", "card", "tp", "engine", "measured", "predicted", "source"} <= speed["nearest"][0].keys()
    assert plan_dict(make_plan(ask()))["speed"]["nearest"] == []  # nothing is read unless asked for


def test_a_measured_profile_shows_its_own_error_and_no_interval(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "kind: exaserve-profile\nversion: 1\nmodel: Llama-3.1-8B\nconstants:\n"
        "  prefill_tokens_per_s: {value: 40000, error: 800}\n  decode_fixed_s: {value: 0.007, error: 0.0007}\n"
    )
    text = " ".join(run("Llama-3.1-8B", "--rps", "60", "--profile", str(path), "--explain").output.split())
    assert "standard errors: prefill_tokens_per_s 2.0%, decode_fixed_s 10.0%" in text
    terms = json.loads(run("Llama-3.1-8B", "--rps", "60", "--profile", str(path), "--json").output)["terms"]
    empty = next(t for t in terms if t["name"] == "decode, empty")
    assert (empty["formula"], empty["source"]) == ("the given profile, standard error 10.0%", "measured")
    for absent in ("P99 predicted", "sized for", "speed constants", "Nearest public measurements"):
        assert absent not in text


def test_where_even_one_request_is_too_slow_no_rate_is_printed(run: Run) -> None:
    text = " ".join(run("Llama-3.1-8B", "--gpu", "T4", "--rps", "1", "--tpot-ms", "5").output.split())
    assert "even a request alone takes longer than 5 ms per token" in text
