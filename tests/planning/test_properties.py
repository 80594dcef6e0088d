"""What physics says must be monotone is monotone, for every model of the table."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from exaserve.models import MODELS, model_from_name
from exaserve.perfmodel import HARDWARE
from exaserve.planning import MemoryRequest, Parallelism, parse_engine, plan_memory
from exaserve.planning.demand import RequestClass, TrafficDemand
from exaserve.planning.engine import EngineVersion
from exaserve.planning.layout import bubble, profile_of
from exaserve.planning.memory import uneven_partition
from exaserve.planning.options import MeasuredMemory
from exaserve.planning.queueing import erlang_c, saturation, steady, waiting
from exaserve.planning.weights import stage_layers

NAMES = st.sampled_from(sorted(MODELS))
FORMATS = st.sampled_from(["bf16", "fp8", "int8", "awq", "gptq", "nvfp4", "bnb4"])
VERSIONS = st.sampled_from(["0.6.5", "0.8.5", "0.10.2", "0.16.0", "0.24.0"])
CARDS = st.sampled_from(["H100", "L40S", "B200", "MI300X", "RTX-4090"])


def request(name: str, fmt: str, version: str, card: str, tp: int = 1, pp: int = 1, **more: object) -> MemoryRequest:
    base = MemoryRequest(model_from_name(name, fmt), HARDWARE[card], Parallelism(tp, pp), version=parse_engine(version))
    return replace(base, **more)  # type: ignore[arg-type]


@given(NAMES, FORMATS, VERSIONS, CARDS, st.floats(8, 400), st.floats(0, 200))
def test_more_memory_never_holds_fewer_tokens(
    name: str, fmt: str, version: str, card: str, memory: float, more: float
) -> None:
    small = plan_memory(request(name, fmt, version, card, memory_gib=(memory,), max_num_seqs=64))
    # The same batch limits, so that a large card's larger defaults do not enter.
    limits = small.request.limits
    large = plan_memory(replace(small.request, memory_gib=(memory + more,), max_num_batched_tokens=limits.tokens))
    small = plan_memory(replace(small.request, max_num_batched_tokens=limits.tokens))
    assert large.tokens >= small.tokens
    assert large.result.max_model_len >= small.result.max_model_len


@given(NAMES, FORMATS, st.sampled_from([1, 2, 4, 8]))
def test_more_tensor_parallelism_never_means_more_weights_a_rank(name: str, fmt: str, tp: int) -> None:
    one = plan_memory(request(name, fmt, "0.10.2", "H100", tp=tp))
    two = plan_memory(request(name, fmt, "0.10.2", "H100", tp=2 * tp))
    assert two.stages[0].weights <= one.stages[0].weights * 1.0001
    # And never less than an even share.
    assert two.stages[0].weights >= one.stages[0].weights / 2 * 0.999


@given(NAMES, VERSIONS, st.integers(1, 6), st.integers(64, 200_000), st.integers(1, 100_000))
def test_a_longer_request_never_means_more_concurrency(
    name: str, version: str, gib: int, length: int, more: int
) -> None:
    base = request(
        name, "bf16", version, "H100", measured=MeasuredMemory(kv_gib=float(gib * 4)), max_num_batched_tokens=2048
    )
    short = plan_memory(replace(base, max_model_len=length))
    long = plan_memory(replace(base, max_model_len=length + more))
    assert long.result.concurrency <= short.result.concurrency + 1e-9


@given(NAMES, VERSIONS)
def test_an_fp8_cache_holds_at_least_as_much(name: str, version: str) -> None:
    base = request(name, "bf16", version, "H100", measured=MeasuredMemory(kv_gib=20.0), max_model_len=8192)
    plain, narrow = plan_memory(base), plan_memory(replace(base, kv_bytes=1.0))
    if not base.arch.is_hybrid:
        assert narrow.tokens >= plain.tokens
    assert narrow.result.concurrency >= plain.result.concurrency * 0.98


@given(NAMES, st.sampled_from([2, 3, 4, 8]))
def test_stages_together_hold_the_whole_model(name: str, pp: int) -> None:
    whole = plan_memory(request(name, "bf16", "0.10.2", "H100"))
    assume(pp <= whole.stages[0].layers)
    cut = plan_memory(request(name, "bf16", "0.10.2", "H100", pp=pp))
    assert len(cut.stages) == pp
    assert sum(s.layers for s in cut.stages) == whole.stages[0].layers
    parts = sum(s.weights for s in cut.stages)
    arch = whole.request.arch
    # Every stage keeps the rotary table, and a tied embedding is on the first and the last.
    extra = float((pp - 1) * arch.rope[0] * arch.rope[1] * 2)
    extra += arch.embed.parameters * 2 * 1.01 if arch.lm_head is None else 0
    assert whole.stages[0].weights * 0.9999 <= parts <= whole.stages[0].weights * 1.0001 + extra


@given(NAMES, FORMATS)
def test_a_narrower_format_never_weighs_more(name: str, fmt: str) -> None:
    narrow = plan_memory(request(name, fmt, "0.10.2", "H100"))
    wide = plan_memory(request(name, "bf16", "0.10.2", "H100"))
    copies = sum(h * v * 2 for h, v in (layer.absorbed for layer in narrow.request.arch.layers))
    assert narrow.stages[0].weights <= wide.stages[0].weights + copies + 1


@given(NAMES, VERSIONS, st.floats(0.5, 60), st.integers(1, 400_000))
def test_the_longest_that_would_start_does_start_and_one_more_does_not(
    name: str, version: str, gib: float, length: int
) -> None:
    base = request(name, "bf16", version, "H100", measured=MeasuredMemory(kv_gib=gib), max_num_batched_tokens=2048)
    plan = plan_memory(replace(base, max_model_len=length))
    longest = plan.result.max_model_len
    assert 0 <= longest <= length
    if plan.result.concurrency >= 1:
        assert longest == length
    elif longest:
        again = plan_memory(replace(base, max_model_len=longest))
        assert again.result.concurrency >= 1
        beyond = plan_memory(replace(base, max_model_len=longest + 1))
        assert beyond.result.concurrency < 1


@given(st.integers(1, 200), st.integers(1, 16))
def test_every_layer_is_on_one_stage(layers: int, pp: int) -> None:
    stages = stage_layers(layers, Parallelism(1, pp))
    assert [i for stage in stages for i in stage] == list(range(layers)) or layers < pp
    sizes = [len(s) for s in stages]
    assert max(sizes) - min(sizes) <= 1 or layers < pp


@given(st.integers(4, 200), st.lists(st.floats(1, 100), min_size=1, max_size=4))
def test_an_uneven_partition_gives_every_layer_a_stage(layers: int, memory: list[float]) -> None:
    parts = uneven_partition(layers, memory)
    assert sum(parts) == layers
    assert min(parts) >= 1


# ---------------------------------------------------------------- load and waiting
DEMANDS = st.builds(
    lambda p, o: TrafficDemand((RequestClass("x", p, o, 1.0, 5.0),)), st.integers(16, 16_000), st.integers(1, 1000)
)


PROFILE = profile_of(plan_memory(request("Llama-3.1-8B", "bf16", "0.10.2", "H100", max_model_len=32_768)))


@given(DEMANDS, st.floats(0.05, 0.95))
def test_a_fixed_point_is_one(demand: TrafficDemand, share: float) -> None:
    rate, limit = saturation(PROFILE, demand)
    assert rate > 0
    assert limit
    state = steady(PROFILE, demand, rate * share)
    assert state is not None
    again = steady(PROFILE, demand, rate * share)
    assert again == state
    assert state.batch == pytest.approx(rate * share * demand.output * state.step_s)
    assert state.step_s >= PROFILE.decode_fixed_s * 0.999


@given(DEMANDS, st.floats(0.1, 0.8), st.floats(0.01, 0.15))
def test_more_load_never_answers_sooner(demand: TrafficDemand, share: float, more: float) -> None:
    rate, _ = saturation(PROFILE, demand)
    light = waiting(PROFILE, demand.at(rate * 4 * share), 4, rate)
    heavy = waiting(PROFILE, demand.at(rate * 4 * (share + more)), 4, rate)
    assert light is not None
    assert heavy is not None
    assert heavy.wait_p99_s >= light.wait_p99_s
    assert heavy.state.step_s >= light.state.step_s * 0.9999


@given(st.integers(1, 300), st.floats(0.01, 0.99))
def test_erlang_c_is_a_probability_that_falls_with_servers(servers: int, utilisation: float) -> None:
    now = erlang_c(servers, utilisation)
    assert 0 <= now <= 1
    assert erlang_c(servers + 1, utilisation) <= now + 1e-9
    assert erlang_c(1, utilisation) == pytest.approx(utilisation)


def test_erlang_c_of_a_textbook() -> None:
    # Two servers at 75 %: C = 0.6429; ten at 80 %: C = 0.4092.
    assert erlang_c(2, 0.75) == pytest.approx(0.6429, abs=1e-4)
    assert erlang_c(10, 0.8) == pytest.approx(0.4092, abs=1e-4)


@given(st.integers(1, 16), st.integers(1, 64))
def test_the_bubble_is_a_share_that_shrinks_with_micro_batches(stages: int, batches: int) -> None:
    share = bubble(stages, batches)
    assert 0 <= share < 1
    assert bubble(stages, batches + 1) <= share
    assert bubble(1, batches) == 0
    assert bubble(4, 1) == 0.75
    assert math.isclose(bubble(8, 57), 7 / 64)


def test_engine_versions_as_people_write_them() -> None:
    assert parse_engine("") == EngineVersion()
    assert (parse_engine("0.10.2").minor, parse_engine("v0.7.x").generation) == (10, 0)
    assert parse_engine("V0 (Dec 2024)").generation == 0
    assert (parse_engine("V1 (Jul 2025)").generation, parse_engine("V1 (Jul 2025)").minor) == (1, 9)
    assert parse_engine("SGLang (Nov 2024)").name == "sglang"
    assert parse_engine("V0 (Ray 2.32)").generation == 0
    assert parse_engine("V1 (2026)").minor >= 20
