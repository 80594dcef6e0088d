"""The constants of the performance model: what they are products of, what they are fitted to, and what a fit finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.domain.errors import ConfigError
from exaserve.models import FORMATS, model_from_name
from exaserve.perfmodel import HARDWARE, EngineProfile, find_hardware, profile
from exaserve.perfmodel.closed_loop import closed_loop, offline_tokens_s, static_batch_s
from exaserve.perfmodel.confidence import GROUPS_MIN, LEVELS, Errors, interval, likes
from exaserve.perfmodel.constants import ENGINE_RELEASES, MEANINGS, SpeedSetup, factors, generation, parts, release_of
from exaserve.perfmodel.estimation import Estimator, error_table, weighted_quantiles
from exaserve.perfmodel.fitted import ERRORS, FITTED
from exaserve.perfmodel.measured import Measurement, Predictor, parse_measurements
from exaserve.perfmodel.work import kernel_of, work_of

HEADER = (
    "model,format,kv,card,tp,pp,ep,dp,drafts,engine,version,kind,lengths,clients,prompt,output,"
    "token_ms,first_ms,tokens_s,latency_ms,use,source"
)
ROW = "Llama-3.1-8B,bf16,bf16,H100,1,1,1,1,0,vllm,0.18.0,clients,even,{clients},1000,200,9.5,{first},,,fit,s1"


def rows(*lines: str) -> list[Measurement]:
    return parse_measurements([HEADER, *lines])


def test_work_counts_what_a_rank_reads() -> None:
    arch = model_from_name("Llama-3.1-70B", "fp8")
    whole, quarter = work_of(arch), work_of(arch, tp=4)
    assert whole.coded_bytes == pytest.approx(68.45e9, rel=0.01)  # all but embedding and output layer
    assert quarter.coded_bytes == pytest.approx(whole.coded_bytes / 4, rel=0.01)
    # Two operations a parameter, the embedding apart.
    assert whole.coded_flops == pytest.approx(2 * 68.45e9, rel=0.01)
    assert whole.layers == 80
    mixture = work_of(model_from_name("Qwen3-235B-A22B"), tp=8)
    assert mixture.expert_share == 8 / 128
    assert mixture.moe_layers == mixture.layers == 94
    # Spread whole or cut: a rank holds as many bytes of experts.
    spread = work_of(model_from_name("Qwen3-235B-A22B"), tp=8, ep=8)
    assert spread.expert_bytes == pytest.approx(mixture.expert_bytes)


def test_only_quantised_matrices_are_narrow() -> None:
    work = work_of(model_from_name("gpt-oss-120b"))
    assert work.kernel == "mxfp4"
    assert work.coded_bytes == 0.0  # only its experts are in the format
    assert work.expert_bytes == pytest.approx(60e9, rel=0.05)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_kernel(name: str) -> None:
    assert kernel_of(name)


@pytest.mark.parametrize("name", HARDWARE)
def test_every_card_has_a_generation_and_every_product_a_meaning(name: str) -> None:
    card = HARDWARE[name]
    assert generation(card)
    setup = SpeedSetup(card, "vllm", release_of("vllm"), "fp8", 4, True, 3)
    for names in parts(setup).values():
        assert all(each.split("/")[0] in MEANINGS for each in names)
    assert factors(parts(setup), {}).bandwidth == MEANINGS["bandwidth"].expected


def test_releases_are_told_apart() -> None:
    assert release_of("vllm", (0, 6, 3)) == "0.7"
    assert release_of("vllm", (0, 11, 2)) == "0.8-0.11"
    assert release_of("vllm", (0, 17)) == "0.12-0.17"
    assert release_of("vllm") == release_of("vllm", (0, 32)) == "0.18"
    assert release_of("sglang", (0, 5, 9)) == "0.5.7"
    assert release_of("unheard of") == "any"
    assert all(ranges[0][0] == (0, 0) for ranges in ENGINE_RELEASES.values())


def test_the_fitted_constants_are_known_and_plausible() -> None:
    for name, value in FITTED.items():
        meaning = MEANINGS[name.split("/")[0]]
        assert abs(math.log(value / meaning.expected)) < 4 * meaning.spread, name
    shares = ("bandwidth/", "experts/", "matrix/", "experts-matrix/", "attention/", "attention-matrix/", "link/")
    assert all(0.02 < value < 1.3 for name, value in FITTED.items() if name.startswith(shares))


def test_time_per_token_falls_with_cards_and_rises_with_clients() -> None:
    two, eight = (profile("H200", "Llama-3.1-70B", "fp8", tp=tp, max_model_len=8192) for tp in (2, 8))
    assert closed_loop(eight, 8, 1000, 1000).token_s < closed_loop(two, 8, 1000, 1000).token_s
    times = [closed_loop(two, c, 1000, 1000).token_s for c in (1, 8, 64, 256)]
    assert times == sorted(times)
    # Of one client nothing waits for prompts of others.
    assert closed_loop(two, 1, 4000, 100).token_s == pytest.approx(two.step_s(0, 1, 4050), rel=0.01)


def test_a_cache_that_is_too_small_makes_requests_wait() -> None:
    p = replace(profile("H100", "Llama-3.1-8B", max_model_len=8192), kv_tokens_max=20_000)
    assert closed_loop(p, 64, 1000, 1000).held == pytest.approx(20_000 / 1500)
    assert closed_loop(p, 64, 1000, 1000).first_s > 10 * closed_loop(p, 8, 1000, 1000).first_s
    assert offline_tokens_s(p, 1000, 1000) < offline_tokens_s(replace(p, kv_tokens_max=400_000), 1000, 1000)


@given(st.floats(1, 512), st.floats(16, 8000), st.floats(2, 2000))
def test_no_figure_is_better_than_the_steps_allow(clients: float, prompt: float, output: float) -> None:
    p = profile("B200", "Qwen3-30B-A3B", max_model_len=16_384)
    loop = closed_loop(p, clients, prompt, output)
    assert loop.token_s >= p.step_s(0, 1, prompt) * 0.999
    assert loop.first_s >= p.first_s
    assert offline_tokens_s(p, prompt, output, clients) > 0
    assert static_batch_s(p, clients, prompt, output) > 0


def test_speculation_saves_steps_and_slow_prompts_stay_slow() -> None:
    line = "DeepSeek-R1,fp8-block,bf16,H200,8,1,1,1,{},trtllm,1.1.0,clients,spread,4,1000,1000,9,300,,,fit,s1"
    plain, drafted = rows(line.format(0), line.format(3))
    p = Predictor()
    without, drafting = p.predict(plain, FITTED), p.predict(drafted, FITTED)
    assert 0.4 < drafting["token"] / without["token"] < 0.9
    assert p.profile(drafted, FITTED).prefill_tokens_per_s == p.profile(plain, FITTED).prefill_tokens_per_s


def test_what_was_published_decides_what_is_compared() -> None:
    alone, many = rows(ROW.format(clients=1, first=40), ROW.format(clients=64, first=900))
    assert alone.targets() == {"token": 9.5e-3, "first": 0.04}
    assert many.targets() == {"token": 9.5e-3}
    assert set(Predictor().predict(many, {})) >= {"token"}
    assert alone.group == many.group == "Llama-3.1-8B|H100|1|bf16|vllm"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["model,format", "x,y"], "line 2: no column 'kv'"),
        ([HEADER, ROW.format(clients="lots", first=1)], "line 2: clients: 'lots' is no number"),
    ],
)
def test_a_broken_table_names_line_and_column(lines: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_measurements(lines)


def made_up(truth: dict[str, float]) -> list[Measurement]:
    """Measurements that constants ``truth`` would give."""
    out = []
    predictor = Predictor()
    for model in ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-32B"):
        for tp in (1, 2, 4):
            for clients in (1, 16, 64):
                (m,) = rows(
                    f"{model},fp8,bf16,H200,{tp},1,1,1,0,vllm,0.18.0,clients,even,{clients},1000,500,1,1,,,fit,s1"
                )
                found = predictor.predict(m, truth)
                out.append(replace(m, token_ms=1e3 * found["token"], first_ms=1e3 * found["first"]))
    return out


def test_a_fit_finds_the_constants_that_made_the_figures() -> None:
    truth = {"bandwidth/hopper": 0.7, "layer/vllm": 90e-6, "first/vllm": 30e-3}
    estimator = Estimator(made_up(truth))
    keep = np.ones(len(estimator.cells), dtype=bool)
    before = np.abs(estimator.errors({}, keep))
    values = estimator.values(estimator.fit(keep))
    assert np.median(np.abs(estimator.errors(values, keep))) < 0.02 < np.median(before)
    reads = values["bandwidth/hopper"] * values["bandwidth-card/H200"] * values["bandwidth-format/fp8/hopper"]
    assert reads == pytest.approx(0.7, rel=0.05)
    assert values["layer/vllm"] > 60e-6


def test_whole_groups_are_left_out() -> None:
    estimator = Estimator(made_up({}))
    folds = estimator.folds(3)
    assert np.all(np.sum(folds, axis=0) == 1)
    for mask in folds:
        assert not {*estimator.groups[mask]} & {*estimator.groups[~mask]}


def test_errors_are_kept_for_sets_that_are_alike() -> None:
    estimator = Estimator(made_up({}))
    keep = np.ones(len(estimator.cells), dtype=bool)
    table = error_table(estimator, np.full(len(estimator.cells), math.log(0.8)), keep)
    setup = SpeedSetup(find_hardware("H200"), "vllm", release_of("vllm"), "fp8")
    found = interval(table, "token", likes(setup, mixture=False))
    assert found.like == "H200, fp8, dense, vllm"
    assert found.groups == 9
    assert found.bound == pytest.approx(1 / 0.8)
    # A card that nobody measured is as uncertain as all that was measured.
    other = interval(table, "token", likes(replace(setup, card=find_hardware("MI300X")), mixture=True))
    assert other.like == ""


def test_quantiles_weigh_and_intervals_widen_with_confidence() -> None:
    values, weights = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0, 1.0])
    assert weighted_quantiles(values, weights, [0.5]) == [1.5]
    assert weighted_quantiles(values, np.array([9.0, 1.0, 1.0, 1.0]), [0.5])[0] < 0.5
    e = Errors(10_000, 1000, tuple(0.5 + level for level in LEVELS))
    assert e.at(0.5) == 1.0
    assert e.at(0.55) == pytest.approx(1.05, rel=0.001)
    assert (e.at(0.0), e.at(1.0)) == (e.at(LEVELS[0]), e.at(LEVELS[-1]))
    # Few configurations say less of the next one.
    assert replace(e, groups=6).at(0.9) > 1.05 * e.at(0.9)
    narrow, wide = (interval({"token": {"": e}}, "token", ("",), c) for c in (0.5, 0.8))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_shipped_errors_cover_every_question() -> None:
    for kind in ("token", "first", "offline"):
        assert ERRORS[kind][""].groups >= GROUPS_MIN
        for e in ERRORS[kind].values():
            assert list(e.factors) == sorted(e.factors)


def test_no_profile_field_is_forgotten_by_the_step() -> None:
    p = EngineProfile(1000.0, 0.01, 0.001, 1e-6, 100_000, 1.0, overlap=0.5, prompt_s=0.02, first_s=0.03)
    assert p.step_s(0, 0, 0) == pytest.approx(0.01)
    assert p.step_s(100, 0, 0) == pytest.approx(0.02 + 0.1 + 0.5 * 0.01)
    assert p.first_token_s(100) == pytest.approx(0.03 + p.step_s(100, 0, 0))
