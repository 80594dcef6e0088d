"""What planners got wrong before: each case states the right answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.planning.test_plan import ask

from exaserve.agent.machine import NodeMachine
from exaserve.agent.plan import plan_node
from exaserve.cli.plan_inputs import with_profile
from exaserve.config import parse_cluster
from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_config, model_from_name
from exaserve.perfmodel import HARDWARE, Calibration, find_hardware
from exaserve.perfmodel.fitting import Estimate
from exaserve.planning import (
    MeasuredMemory,
    MemoryRequest,
    Parallelism,
    RequestClass,
    Targets,
    TrafficDemand,
    cluster_file,
    explain,
    make_plan,
    parse_engine,
    plan_dict,
    plan_memory,
    reference_demand,
)
from exaserve.planning.kvcache import kv_layout
from exaserve.planning.memory import GIB

BIG = "meta-llama/Llama-3.1-405B-Instruct-FP8"


def start(version: str, card: str = "H100", **more: object) -> MemoryRequest:
    base = MemoryRequest(model_from_name(BIG), HARDWARE[card], Parallelism(8), version=parse_engine(version))
    return replace(base, max_model_len=131_072, **more)  # type: ignore[arg-type]


# CUDA graphs


def test_from_0_21_on_graphs_come_out_of_the_cache_and_the_largest_model_is_refused() -> None:
    old, new = plan_memory(start("0.20.2")), plan_memory(start("0.21.0"))
    assert old.fits
    assert not new.fits
    assert "7.88 GiB of cache" in new.refusals[0]
    # The identity of the engine's own sum; nothing else of it has changed but the workspace of one release's log.
    stage = new.stages[0]
    assert stage.kv == pytest.approx(stage.usable - stage.weights - stage.non_torch - stage.activation - stage.graphs)
    assert any("Estimated CUDA graph memory: 4.01 GiB" in line for line in new.says)
    for version in ("0.26", "0.32"):
        assert not plan_memory(start(version)).fits
    # Its own default share since then, 0.92, does not save it either.
    assert parse_engine("0.21").utilization_default == 0.92
    assert parse_engine("0.20").utilization_default == 0.9
    assert not plan_memory(start("0.21", utilization=0.92)).fits


def test_what_takes_the_graphs_out_again() -> None:
    assert plan_memory(start("0.26", graphs_counted=False)).fits
    assert plan_memory(start("0.26", eager=True)).fits
    helps = make_plan(
        ask(BIG, demand_given=False, version=parse_engine("0.26"), tp=8, pp=1, max_model_len=131_072)
    ).notes
    assert any("ESTIMATE_CUDAGRAPHS=0" in h for h in helps)
    assert any("--enforce-eager" in h for h in helps)


def test_graphs_are_counted_for_amd_from_0_26_and_for_the_old_engine_never() -> None:
    def inside(version: str, card: str) -> bool:
        return plan_memory(start(version, card)).stages[0].graphs_inside

    assert not inside("0.24", "MI300X")
    assert inside("0.26", "MI300X")
    assert not inside("V0", "H100")
    assert not inside("sglang", "H100")
    assert not inside("0.32", "MAX-1550-TILE")


def test_a_printed_peak_has_the_graphs_in_it_and_they_are_not_taken_twice() -> None:
    # vLLM 0.26 on an RTX 4080: 14.39 usable, 5.29 weights, 0.06 outside, 1.04 peak (0.48 of graphs in it): 8.00.
    arch = model_from_name("Qwen/Qwen2.5-7B-Instruct-AWQ")
    r = MemoryRequest(arch, HARDWARE["RTX-4080"], version=parse_engine("0.26.0"), max_model_len=32_768)
    told = plan_memory(replace(r, measured=MeasuredMemory(5.29, 0.06, 1.04)))
    assert told.stages[0].kv / GIB == pytest.approx(8.00, abs=0.012)
    own = plan_memory(r).stages[0]
    assert (own.activation + own.graphs) / GIB == pytest.approx(1.04, rel=0.15)


def test_without_a_demand_it_is_the_fewest_nodes_stages_and_cards_that_start() -> None:
    def cut(model: str, version: str = "", length: int = 0) -> tuple[int, int]:
        best = make_plan(ask(model, demand_given=False, version=parse_engine(version), max_model_len=length)).best
        assert best is not None
        return best.placement.tp, best.placement.pp

    assert cut("Llama-3.1-8B") == (1, 1)
    assert cut("Llama-3.1-70B") == (4, 1)
    assert cut("deepseek-ai/DeepSeek-R1") == (8, 2)
    # What does not start on eight ranks does on four and two stages, whose graphs and cache are smaller.
    assert cut(BIG, "0.20", 131_072) == (8, 1)
    assert cut(BIG, "0.26", 131_072) == (4, 2)


# The network


def test_a_network_that_carries_one_per_cent_of_the_all_reduces_is_refused() -> None:
    demand = TrafficDemand((RequestClass("x", 1000, 200, 1.0),))
    kwargs = {"tp": 16, "nodes": 2}
    slow = make_plan(ask("deepseek-ai/DeepSeek-R1", "H100", demand, network="ethernet-1", **kwargs))
    fast = make_plan(ask("deepseek-ai/DeepSeek-R1", "H100", demand, network="infiniband-ndr", nics=8, **kwargs))
    assert fast.works
    assert not slow.works
    assert slow.best is not None
    assert fast.best is not None
    assert "network is too slow" in slow.best.reasons[0]
    assert "ethernet-1" in slow.best.network
    assert all(f.verdict != "impossible" for f in slow.flows)
    # The step itself knows the network: megabytes a token over a gigabit port are hundreds of milliseconds.
    one = [p.best.profile.step_s(0, 1, 1000) for p in (slow, fast) if p.best and p.best.profile]
    assert one[0] > 20 * one[1]
    with pytest.raises(ConfigError, match="network is too slow"):
        cluster_file(replace(slow, replicas=1))


def test_every_step_that_crosses_pays_the_network() -> None:
    demand = TrafficDemand((RequestClass("x", 1000, 200, 1.0),))
    rates = {}
    for network in ("ethernet-1", "ethernet-100", "infiniband-ndr"):
        for name, cut in (("stages", {"tp": 8, "pp": 2}), ("ranks", {"tp": 16})):
            plan = make_plan(ask("deepseek-ai/DeepSeek-R1", "H100", demand, network=network, nics=8, **cut))
            assert plan.best is not None
            rates[name, network] = plan.best.saturated_s
    for name in ("stages", "ranks"):
        assert rates[name, "ethernet-1"] < rates[name, "ethernet-100"] <= rates[name, "infiniband-ndr"]
    # Hand-overs are little, all-reduces much: the same network costs ranks more.
    assert rates["ranks", "ethernet-100"] < rates["stages", "ethernet-100"]


# Cost and what is carried


def test_cost_is_of_what_is_carried() -> None:
    demand = TrafficDemand((RequestClass("x", 8000, 500, 4.0),))
    r = ask(BIG, "H100", demand, tp=8, pp=1)
    for nodes in (1, 7, 40):
        plan = make_plan(replace(r, fleet=replace(r.fleet, nodes=nodes)))
        assert plan.cost is not None
        assert plan.cost.rate_s == pytest.approx(min(4.0, plan.mixed_capacity_s))
        assert plan.cost.per_1000_requests == pytest.approx(plan.cost.hour / (plan.cost.rate_s * 3.6))
        assert plan.held_s <= plan.mixed_capacity_s
        assert plan.works == (plan.held_s >= 4.0 * 0.999)
    few = make_plan(replace(r, fleet=replace(r.fleet, nodes=1)))
    assert few.cost is not None
    assert few.cost.rate_s < 0.5  # not the four that are asked


def test_what_does_not_hold_never_carries_more_than_is_asked() -> None:
    demand = TrafficDemand((RequestClass("x", 8000, 500, 2.4),))
    r = ask(BIG, "H100", demand, tp=8, pp=1, nodes=10)
    idle = make_plan(replace(r, demand=demand.at(0.01))).now
    assert idle is not None
    # A first token may take a little longer than on idle replicas, and the time per token leaves more room than that.
    r = replace(r, targets=Targets(1.3 * idle.per_class[0].ttft_p99_s, 0.05))
    plan = make_plan(r)
    assert 0 < plan.held_s < plan.mixed_capacity_s
    between = (plan.held_s + plan.mixed_capacity_s) / 2
    plan = make_plan(replace(r, demand=demand.at(between)))
    assert not plan.works
    note = next(n for n in plan.notes if " there: they" in n)
    assert f"they carry all {between:,.2f} requests/s, but the first token" in note
    assert f"within every target {plan.held_s:,.2f}" in note
    assert plan.held_s < between


# A measured profile


def calibration(**limits: int) -> Calibration:
    def of(value: float) -> Estimate:
        return Estimate(value, value / 100)

    constants = {"prefill_tokens_per_s": of(5000.0), "decode_fixed_s": of(0.03), "decode_per_seq_s": of(0.0002)}
    return Calibration("meta-llama/Llama-3.1-8B-Instruct", "vllm 0.26", "2026-11-01", constants, limits=limits)


def test_a_profile_replaces_the_estimates() -> None:
    r = ask("Llama-3.1-8B", tp=1)
    plain, measured = make_plan(r), make_plan(with_profile(r, calibration()))
    assert plain.best is not None
    assert measured.best is not None
    assert measured.best.profile is not None
    assert measured.best.profile.prefill_tokens_per_s == 5000.0
    assert measured.best.profile.decode_fixed_s == 0.03
    assert measured.best.rate_max_s < plain.best.rate_max_s / 2
    sources = {t.name: t.source for t in explain(measured)}
    assert (sources["prefill"], sources["decode, empty"]) == ("measured", "measured")
    assert sources["per 1,000 cached tokens"] == "fitted"
    # It is taken as it is: no interval, and nothing to size for but itself.
    assert measured.predicted is None
    assert measured.best.certainty is None
    assert measured.best.profile == measured.best.predicted
    assert any("step times are measured" in n for n in measured.notes)


def test_a_profile_s_layout_is_its_own_unless_said() -> None:
    r = ask("Llama-3.1-8B")
    assert with_profile(r, calibration()).tp == 1
    two = make_plan(ask("Llama-3.1-8B", tp=2)).best
    assert two is not None
    assert with_profile(r, calibration(kv_tokens_max=two.memory.tokens)).tp == 2
    with pytest.raises(ConfigError, match="measured on"):
        with_profile(ask("Llama-3.1-70B"), calibration())
    small = make_plan(with_profile(r, calibration(kv_tokens_max=4096)))
    assert not small.works
    assert small.best is not None
    assert "holds 4,096 tokens" in small.best.reasons[0]


# What is planned, and what is refused


@pytest.mark.parametrize(
    "name", ["bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Qwen2.5-7B-Instruct-Q4_K_M.gguf", "qwen3-8b-gguf"]
)
@pytest.mark.parametrize("fmt", ["auto", "int4"])
def test_gguf_is_refused_with_the_reason(name: str, fmt: str) -> None:
    with pytest.raises(ConfigError, match="GGUF"):
        model_from_name(name, fmt)


SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
MLA = {"kv_lora_rank": 32, "q_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}, "encoder generates nothing"),
        ({"model_type": "bert"}, "encoder generates nothing"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "only decoders"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]}, "classifies or embeds"),
        ({"model_type": "rwkv7", "architectures": ["RWKV7ForCausalLM"]}, "not known here"),
        ({"model_type": "llama", "architectures": ["BrandNewForCausalLM"]}, "no engine class"),
        ({"architectures": ["BrandNewForCausalLM"]}, "no model_type; architectures says BrandNew"),
        ({}, "no model_type. Write it in"),
        ({"model_type": "fresh_vl", "text_config": {**SMALL, "model_type": "fresh_text"}}, "not known here"),
    ],
)
def test_unknown_kinds_of_model_are_refused_with_the_reason(config: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        model_from_config({**SMALL, **config})


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {
            "model_type": "qwen3_moe",
            "architectures": ["Qwen3MoeForCausalLM"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "head_dim": 64,
        },
        {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 512},
        {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]},
        {
            "model_type": "llava",
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": {**SMALL, "model_type": "llama"},
        },
        {
            "model_type": "glm_moe_dsa",
            "architectures": ["GlmMoeDsaForCausalLM"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
            "index_n_heads": 2,
            "index_head_dim": 16,
            **MLA,
        },
        {"model_type": "chatglm", "architectures": ["ChatGLMModel"]},
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
    ],
)
def test_known_kinds_are_planned(config: dict[str, object]) -> None:
    assert model_from_config({**SMALL, **config}).parameters > 0


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "compute"),
    [
        ("H100-1g.10gb", 9.75, 3352 / 8, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 39.5, 3352 / 2, 3 / 8),
        ("A100-1g.5gb", 4.75, 1555 / 8, 1 / 8),
        ("A100-7g.80gb", 79.15, 2039, 1),
        ("H200-1g.35gb", 34.4, 4800 / 4, 1 / 8),
        ("A30-2g.12gb", 11.62, 933 / 2, 1 / 2),
    ],
)
def test_mig_slices_have_their_share_of_memory_and_speed(
    name: str, memory: float, bandwidth: float, compute: float
) -> None:
    card = find_hardware(name)
    assert card.memory_gib == pytest.approx(memory, rel=0.03)
    assert card.bandwidth_gb_s == pytest.approx(bandwidth)
    assert card.bf16_tflops == pytest.approx(HARDWARE[card.slice_of].bf16_tflops * compute)
    assert card.link == "none"


def test_slices_are_planned_one_engine_each() -> None:
    plan = make_plan(ask("Llama-3.2-3B", "H100-2g.20gb", TrafficDemand((RequestClass("x", 500, 100, 2.0),))))
    assert plan.works
    assert plan.best is not None
    assert plan.best.placement == Parallelism(1, 1)
    assert plan.cost is not None
    assert plan.cost.hour == pytest.approx(plan.replicas * 2.5 / 4)
    joined = make_plan(ask("Llama-3.1-8B", "H100-2g.20gb", tp=2, demand_given=False, max_model_len=4096))
    assert joined.best is not None
    assert "cannot be joined" in " ".join(joined.best.reasons)
    for name in ("H100-5g.10gb", "L40S-1g.10gb", "1g.10gb"):
        with pytest.raises(ConfigError, match=r"slice"):
            find_hardware(name)


@pytest.mark.parametrize(
    ("model", "fmt", "card", "least"),
    [
        ("Llama-3.1-8B", "fp8", "V100-32", "7.5"),
        ("openai/gpt-oss-20b", "auto", "V100-32", "8"),
        ("openai/gpt-oss-20b", "auto", "T4", "8"),
        ("Llama-3.1-8B", "awq", "V100-32", "7.5"),
    ],
)
def test_formats_without_kernels_on_a_card_do_not_fit(model: str, fmt: str, card: str, least: str) -> None:
    plan = make_plan(ask(model, card, fmt=fmt, demand_given=False, max_model_len=4096))
    assert plan.best is not None
    assert not plan.best.memory.fits
    assert f"compute capability {least}," in plan.best.reasons[0]


def test_fp8_on_ampere_and_turing_is_widened_and_allowed() -> None:
    for card in ("A100-80", "T4"):
        assert not [x for x in plan_memory(
            MemoryRequest(model_from_name("Llama-3.2-1B", "fp8"), HARDWARE[card], max_model_len=4096)
        ).refusals if "capability" in x]  # fmt: skip


def test_unified_memory_sets_aside_what_the_host_takes() -> None:
    arch = model_from_name("Qwen/Qwen3-30B-A3B", "fp8")
    r = MemoryRequest(arch, HARDWARE["GB10"], version=parse_engine("0.20"), utilization=0.7, max_model_len=32_768)
    plan = plan_memory(r)
    # 41.26 GiB were predicted where 28.74 were left: host processes and caches count as taken.
    assert plan.stages[0].non_torch / GIB == pytest.approx(12.06, abs=0.01)
    assert any("shares its memory with the host" in w for w in plan.warnings)
    assert any("seldom free" in w for w in plan_memory(replace(r, utilization=0.92)).warnings)


def test_layers_that_share_a_cache_keep_none() -> None:
    config = {
        **SMALL,
        "model_type": "gemma4_text",
        "num_hidden_layers": 10,
        "head_dim": 64,
        "global_head_dim": 64,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"] + ["sliding_attention"] * 4 + ["full_attention"],
        "sliding_window": 512,
        "num_kv_shared_layers": 4,
        "max_position_embeddings": 8192,
    }
    arch = model_from_config(config)
    assert sum(len(layer.caches) for layer in arch.layers) == 6
    shared = kv_layout(arch, Parallelism(), parse_engine("0.26"))
    own = kv_layout(model_from_config({**config, "num_kv_shared_layers": 0}), Parallelism(), parse_engine("0.26"))
    assert sum(len(g.indices) for g in shared.groups) == 6
    assert sum(len(g.indices) for g in own.groups) == 10
    wide = model_from_config({**config, "use_double_wide_mlp": True})
    assert wide.parameters - arch.parameters == 4 * 3 * 512 * 256


# The cluster file


def started(text: str) -> tuple[int, int]:
    """Replicas that a cluster file starts, and the cards a node of it needs."""
    cluster = parse_cluster(text)
    cards = sum(p.num_replicas_per_node * p.tensor_parallel_size * p.pipeline_parallel_size for p in cluster.pools)
    return len(cluster.replicas()), cards


@pytest.mark.parametrize("engine", ["vllm", "emulator"])
@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("rps", [3.0, 40.0, 300.0])
def test_the_head_says_what_the_file_starts_and_a_node_has_the_cards(engine: str, pools: bool, rps: float) -> None:
    plan = make_plan(ask("Llama-3.1-8B", demand=reference_demand(rps)))
    text = cluster_file(plan, engine, pools)
    replicas, cards = started(text)
    assert f"starts {replicas:,} replicas on" in text
    assert cards <= plan.request.fleet.cards_per_node
    needed = sum(p.option.needed.replicas for p in plan.pools if p.option.needed) if pools else plan.replicas
    assert replicas >= needed
    if engine == "emulator":
        assert "emulators" in text.split("nodes:")[0]


@pytest.mark.parametrize(
    ("model", "more", "pools"),
    [("Llama-3.1-8B", {}, True), ("Llama-3.1-8B", {"nodes": 2}, False), ("Llama-3.1-70B", {"fmt": "fp8"}, False)],
)
def test_an_agent_of_a_node_of_eight_cards_can_start_what_is_written(
    model: str, more: dict[str, object], pools: bool, tmp_path: Path
) -> None:
    plan = make_plan(ask(model, "H100", reference_demand(40.0), **more))
    cluster = parse_cluster(cluster_file(plan, pools=pools))
    machine = NodeMachine(family="cuda", devices=(0, 0, 0, 0, 1, 1, 1, 1))
    for node in cluster.nodes:
        units = plan_node(cluster, node, machine, tmp_path)
        taken = [device for unit in units for device in unit.devices]
        assert len(taken) == len(set(taken)) <= 8


def test_slices_are_not_written_for_engines_that_get_whole_cards() -> None:
    plan = make_plan(ask("Llama-3.2-3B", "H100-2g.20gb", TrafficDemand((RequestClass("x", 500, 100, 2.0),))))
    with pytest.raises(ConfigError, match="whole cards"):
        cluster_file(plan)
    assert cluster_file(plan, "emulator")


def test_pools_that_do_not_fit_into_the_given_nodes_are_refused() -> None:
    plan = make_plan(ask("Llama-3.1-70B", demand=reference_demand(60.0), tp=8, pp=1))
    assert cluster_file(plan)
    with pytest.raises(ConfigError, match="leave out --pools"):
        cluster_file(plan, pools=True)


def test_replicas_over_several_nodes_are_refused_not_multiplied() -> None:
    plan = make_plan(ask("Llama-3.1-405B", fmt="bf16", tp=8, pp=3, demand_given=False))
    assert plan.best is not None
    assert plan.best.count.nodes_per_replica == 3
    with pytest.raises(ConfigError, match="One replica takes 3 nodes"):
        cluster_file(replace(plan, replicas=13, nodes=39))


def test_weights_an_engine_cannot_make_are_not_written() -> None:
    plan = make_plan(ask("Llama-3.1-8B", fmt="int8"))
    with pytest.raises(ConfigError, match="published in int8"):
        cluster_file(plan)
    assert cluster_file(plan, "emulator")
    with pytest.raises(ConfigError, match="plan of its own"):
        cluster_file(make_plan(ask()), "sglang")


def test_what_the_plan_assumed_of_the_engine_is_in_the_file() -> None:
    plan = make_plan(ask(eager=True, graphs_counted=False, utilization=0.85, kv_bytes=1.0))
    value = yaml.safe_load(cluster_file(plan))
    flags = " ".join(value["engine_args"])
    assert "--gpu-memory-utilization 0.85" in flags
    assert "--enforce-eager" in flags
    assert "--kv-cache-dtype fp8" in flags
    assert value["environment"] == {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}


def test_json_has_what_is_carried() -> None:
    value = plan_dict(make_plan(ask()))
    assert value["held_s"] <= value["mixed_capacity_s"]
    assert json.dumps(value)
