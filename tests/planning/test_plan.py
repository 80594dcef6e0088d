"""Whole plans: layouts with reasons, load, network, cost, verdicts, sweep, and the cluster file."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from exaserve.cli.plan_page import sweep_page
from exaserve.config import parse_cluster
from exaserve.domain.errors import ConfigError
from exaserve.models import model_from_name
from exaserve.perfmodel import find_hardware
from exaserve.planning import (
    LINKS,
    Machines,
    PlanRequest,
    Prices,
    RequestClass,
    Targets,
    TrafficDemand,
    cluster_file,
    explain,
    find_link,
    make_plan,
    parse_engine,
    plan_dict,
    reference_demand,
    sweep,
)
from exaserve.planning.demand import block_for_length
from exaserve.planning.network import fabric


def ask(
    model: str = "Llama-3.1-8B", gpu: str = "H100", demand: TrafficDemand | None = None, **more: object
) -> PlanRequest:
    fleet_keys = {"cards_per_node", "link_group", "nodes", "nics", "nodes_per_rack", "memory_gib"}
    fleet = {k: more.pop(k) for k in list(more) if k in fleet_keys}
    fmt = str(more.pop("fmt", "auto"))
    link = find_link(str(more.pop("network", "infiniband-ndr")))
    return PlanRequest(
        arch=model_from_name(model, fmt),
        fleet=Machines(find_hardware(gpu), link, **fleet),  # type: ignore[arg-type]
        demand=demand or TrafficDemand((RequestClass("x", 1000, 200, 20.0),)),
        **more,  # type: ignore[arg-type]
    )


def test_a_small_model_takes_one_card_and_no_cluster() -> None:
    plan = make_plan(ask())
    assert plan.works
    assert plan.best is not None
    assert plan.best.placement.cards in (1, 2)
    assert {v.code for v in plan.verdicts} == {"small-model"}


def test_every_target_holds_in_what_is_recommended() -> None:
    for rate in (1.0, 30.0, 300.0):
        plan = make_plan(ask(demand=reference_demand(rate)))
        assert plan.works
        assert plan.now is not None
        assert plan.now.holds(0.05)
        assert plan.now.utilisation < 1


def test_one_replica_less_would_not_do() -> None:
    plan = make_plan(ask(demand=reference_demand(200.0)))
    assert plan.best is not None
    assert plan.best.needed is not None
    assert plan.best.profile is not None
    from exaserve.planning.queueing import waiting

    fewer = waiting(plan.best.profile, reference_demand(200.0), plan.best.needed.replicas - 1, plan.best.saturated_s)
    assert fewer is None or not fewer.holds(0.05)


def test_the_literature_s_example_is_judged() -> None:
    # 70 B in INT8 on 256 nodes of 8 x 80 GB; it wants 12 copies a node of 100 to 120 GB each, in 640 GB.
    card = (640 / 8 / 1.073741824,)
    r = ask(
        "Llama-3.3-70B", "A100-80", reference_demand(), fmt="int8", nodes=256, replicas_per_node=12, memory_gib=card
    )
    plan = make_plan(r)
    text = " ".join(plan.claims)
    assert "= 71 GB" in text
    assert "328 kB a token" in text
    assert "the node has 640 GB: does not fit, 5 to 6 would" in text
    assert plan.best is not None
    assert plan.best.memory.rule_gb == pytest.approx(99, abs=1)
    assert plan.best.count.per_node < 12
    assert plan.replicas == 256 * plan.best.count.per_node
    assert plan.works


def test_why_twelve_and_not_thirteen() -> None:
    # A node of twelve tiles and a model that fits one.
    plan = make_plan(ask("Llama-3-8B", "MAX-1550-TILE", cards_per_node=12, link_group=12, tp=1, nodes=4))
    assert plan.best is not None
    assert plan.best.count.per_node == 12
    assert plan.best.count.why_not_more.startswith("13 would take 13 cards of the node's 12")
    assert plan.replicas == 48


def test_a_mixture_whose_experts_cannot_be_cut_spreads_them() -> None:
    plan = make_plan(ask("Qwen/Qwen3-235B-A22B-FP8", "H100", tp=8, max_model_len=8192))
    assert plan.best is not None
    assert plan.best.placement.ep
    assert any(f.name.startswith("expert parallel") for f in plan.flows)


def test_a_model_larger_than_a_node_takes_stages_over_nodes() -> None:
    plan = make_plan(ask("deepseek-ai/DeepSeek-R1", "H100", TrafficDemand((RequestClass("x", 1000, 200, 5.0),))))
    assert plan.best is not None
    assert plan.best.placement.pp > 1
    assert plan.best.placement.pp <= 16
    assert plan.best.count.nodes_per_replica == 2
    hop = next(f for f in plan.flows if f.name.startswith("pipeline"))
    assert "between nodes" in hop.where
    assert plan.bubble == pytest.approx((plan.best.placement.pp - 1) / plan.best.placement.pp)


def test_what_does_not_fit_says_why() -> None:
    plan = make_plan(ask("Llama-3.1-405B", "L4", tp=8, pp=1))
    assert not plan.works
    assert plan.best is not None
    assert "do not fit" in plan.best.reasons[0]
    assert plan.replicas == 0
    with pytest.raises(ConfigError, match="No layout"):
        cluster_file(plan)


def test_a_target_no_number_of_replicas_holds_is_named() -> None:
    plan = make_plan(
        ask(demand=TrafficDemand((RequestClass("x", 12_842, 200, 1.0, 0.05),)), targets=Targets(0.05, 0.05))
    )
    assert not plan.works
    assert plan.best is not None
    assert "even on idle replicas" in plan.best.reasons[0]


def test_a_slow_network_is_found_out() -> None:
    demand = TrafficDemand((RequestClass("x", 1000, 200, 5.0),))
    fast = make_plan(ask("deepseek-ai/DeepSeek-R1", "H100", demand, tp=8, pp=2))
    slow = make_plan(ask("deepseek-ai/DeepSeek-R1", "H100", demand, tp=8, pp=2, network="ethernet-1"))
    loads = [next(f for f in p.flows if f.name.startswith("pipeline")) for p in (fast, slow)]
    assert loads[0].verdict == "ok"
    assert loads[1].verdict in ("bottleneck", "impossible", "slow")
    assert loads[1].step_share > loads[0].step_share


@pytest.mark.parametrize("name", ["ndr", "ib-hdr", "infiniband-edr", "10g", "ethernet-100", "roce-200", "25"])
def test_networks_by_name(name: str) -> None:
    assert find_link(name) in LINKS.values()


def test_an_unknown_network_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="infiniband-ndr"):
        find_link("token-ring")


def test_fabrics() -> None:
    assert (fabric(8, 8).hops, fabric(8, 8).leaves) == (0, 1)
    two = fabric(256, 8)
    assert (two.leaves, two.spines, two.hops) == (64, 32, 2)
    assert two.uplinks == two.leaves * 32
    assert not fabric(300, 8).fits


def test_headroom_says_how_many_nodes_a_loss_needs() -> None:
    plan = make_plan(ask(demand=reference_demand(2000.0), nodes_per_rack=4))
    losses = {h.name: h for h in plan.headroom}
    assert set(losses) == {"node", "rack"}
    assert losses["rack"].nodes_needed >= losses["node"].nodes_needed > plan.nodes
    roomy = make_plan(ask(demand=reference_demand(2000.0), nodes_per_rack=4, nodes=losses["rack"].nodes_needed))
    assert all(h.holds for h in roomy.headroom)


def test_pools_by_input_length() -> None:
    assert [block_for_length(n) for n in (1, 511, 512, 4096, 4097)] == [16, 16, 32, 32, 64]
    plan = make_plan(ask(demand=reference_demand(500.0)))
    assert [(p.name, p.block) for p in plan.pools] == [("A", 16), ("B", 64), ("C", 64)]
    assert plan.pools[0].prompts_up_to < 4218 < plan.pools[1].prompts_up_to
    assert set(plan.capacity) == {"A", "B", "C"}
    assert plan.capacity["A"] > plan.capacity["B"] > plan.capacity["C"]


def test_costs_follow_the_given_prices() -> None:
    cheap = make_plan(ask(prices=Prices({"H100": 1.0}, powered=True)))
    dear = make_plan(ask(prices=Prices({"H100": 2.0}, powered=True)))
    assert cheap.cost is not None
    assert dear.cost is not None
    assert dear.cost.hour - dear.cost.energy_hour == pytest.approx(2 * (cheap.cost.hour - cheap.cost.energy_hour))
    assert cheap.cost.source == "given"
    assert cheap.cost.per_1000_requests == pytest.approx(cheap.cost.hour / (20 * 3600) * 1000)
    assert cheap.cost.per_million_tokens == pytest.approx(cheap.cost.hour / (20 * 3600 * 1200) * 1e6)


def test_not_worth_it() -> None:
    little = TrafficDemand((RequestClass("x", 500, 100, 0.5),))
    plan = make_plan(ask("Llama-3.1-8B", demand=little, operations=False, prices=Prices(api_million_tokens=0.01)))
    assert {v.code for v in plan.verdicts} == {"low-demand", "small-model", "no-operations", "hosted-cheaper"}
    offline = make_plan(ask("Llama-3.1-70B", demand=little, offline=True))
    assert {v.code for v in offline.verdicts} == {"offline"}
    busy = make_plan(ask("Llama-3.1-70B", demand=reference_demand(500.0)))
    assert busy.verdicts == ()


def test_a_group_smaller_than_the_cut_is_told_and_priced() -> None:
    plan = make_plan(ask("Llama-3.1-70B", "H100", fmt="fp8", tp=8, link_group=4))
    assert any("leaves the group" in n for n in plan.notes)
    whole = make_plan(ask("Llama-3.1-70B", "H100", fmt="fp8", tp=8))
    assert plan.best and whole.best
    assert plan.best.rate_max_s < 0.5 * whole.best.rate_max_s


@pytest.mark.parametrize("engine", ["vllm", "sglang", "emulator"])
@pytest.mark.parametrize("pools", [False, True])
def test_the_cluster_file_is_accepted(engine: str, pools: bool) -> None:
    version = parse_engine(engine if engine == "sglang" else "")
    plan = make_plan(ask(demand=reference_demand(300.0), version=version))
    cluster = parse_cluster(cluster_file(plan, engine, pools))
    assert plan.best is not None
    assert len(cluster.pools) == (3 if pools else 1)
    assert cluster.pools[0].tensor_parallel_size == plan.best.placement.tp
    if not pools:
        assert len(cluster.replicas()) >= plan.replicas


def test_engines_are_told_a_format_only_where_the_weights_do_not_say_it() -> None:
    def precision(model: str, fmt: str, engine: str) -> str:
        return str(yaml.safe_load(cluster_file(make_plan(ask(model, fmt=fmt)), engine))["precision"])

    assert precision("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "auto", "vllm") == "auto"
    assert precision("Llama-3.1-8B", "fp8", "vllm") == "fp8"
    assert precision("Llama-3.1-8B", "auto", "vllm") == "auto"
    assert precision("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "auto", "emulator") == "fp8"


def test_the_cluster_file_survives_odd_names(tmp_path: Path) -> None:
    plan = make_plan(ask())
    odd = replace(plan.request.arch, facts=replace(plan.request.arch.facts, name='/models/a "b" #c: d'))
    text = cluster_file(replace(plan, request=replace(plan.request, arch=odd)))
    assert yaml.safe_load(text)["model"] == '/models/a "b" #c: d'


def test_json_is_json() -> None:
    import json

    value = plan_dict(make_plan(ask("Llama-3.1-70B", demand=reference_demand())))
    again = json.loads(json.dumps(value, allow_nan=False))
    assert again["recommended"]["tensor_parallel_size"] >= 1
    assert again["memory"]["kv_tokens"] > 0
    assert {t["source"] for t in again["terms"]} <= {
        "published",
        "measured",
        "fitted",
        "estimated",
        "counted",
        "given",
    }


def test_the_terms_add_up() -> None:
    plan = make_plan(ask("Llama-3.1-70B", gpu="H200"))
    assert plan.best is not None
    stage = plan.best.memory.stages[0]
    assert sum(t.size_bytes for t in stage.weight_terms) == pytest.approx(stage.weights)
    assert stage.usable - stage.taken == pytest.approx(stage.kv)
    names = [t.name for t in explain(plan)]
    assert "= for KV cache" in names
    assert "rule of thumb" in names


def test_a_plan_with_sweep_of_256_nodes_is_quick() -> None:
    r = ask("Llama-3.3-70B", "H100", reference_demand(), nodes=256)
    formats = {f: model_from_name("Llama-3.3-70B", f) for f in ("bf16", "fp8", "awq")}
    start = time.process_time()
    make_plan(r)
    rows = sweep(r, formats)
    assert time.process_time() - start < 10.0
    assert len(rows) > 300
    working = [row for row in rows if row.works]
    costs = [row.per_million_tokens or 0.0 for row in working]
    assert costs == sorted(costs)
    assert all(row.why for row in rows if not row.works)
    page = sweep_page(rows, "A <title> & more", "", "USD")
    assert "A &lt;title&gt; &amp; more" in page
    assert page.count("<circle") == len(working)


def test_a_sweep_in_which_nothing_works_still_draws() -> None:
    assert "None of them" in sweep_page([], "t", "", "USD")


def test_a_sweep_s_picture_is_well_formed_and_its_labels_do_not_cover_each_other() -> None:
    import re
    import xml.etree.ElementTree as ET

    r = ask("Llama-3.1-8B")
    page = sweep_page(sweep(r, {f: model_from_name("Llama-3.1-8B", f) for f in ("bf16", "fp8", "awq")}), "t", "", "USD")
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    ET.fromstring(svg)
    names = [(float(x), float(y), t) for x, y, t in re.findall(r'<text x="([\d.]+)" y="([\d.]+)">([\w-]+)</text>', svg)]
    assert len(names) >= 6
    for i, (x, y, name) in enumerate(names):
        for other_x, other_y, other in names[i + 1 :]:
            apart = abs(y - other_y) >= 11.9 or x + 6.5 * len(name) <= other_x or other_x + 6.5 * len(other) <= x
            assert apart, (name, other)


def test_demands_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError):
        TrafficDemand(())
    with pytest.raises(ConfigError):
        TrafficDemand((RequestClass("x", 0, 1, 1.0),))
    with pytest.raises(ConfigError):
        TrafficDemand((RequestClass("x", 10, 1, float("nan")),))
    with pytest.raises(ConfigError):
        Machines(find_hardware("H100"), find_link("ndr"), cards_per_node=0)


def test_a_start_that_would_fail_says_what_would_help() -> None:
    r = ask("openai/gpt-oss-120b", "H100", demand_given=False, version=parse_engine("0.10.1"), cards_per_node=8, tp=1)
    plan = make_plan(r)
    assert not plan.works
    helps = " ".join(plan.notes)
    assert "--max-num-seqs 128" in helps
    assert "--tensor-parallel-size 2" in helps
    # Each is true.
    from exaserve.planning import plan_memory

    assert plan.best is not None
    length = int(helps.split("--max-num-seqs 128 --max-model-len ")[1].split(":")[0])
    assert plan_memory(replace(plan.best.memory.request, max_num_seqs=128, max_model_len=length)).fits
    assert not plan_memory(replace(plan.best.memory.request, max_num_seqs=128, max_model_len=length + 64)).fits
    alone = make_plan(ask("Llama-3.1-405B", "L4", demand_given=False, cards_per_node=1, tp=1, pp=1))
    assert alone.notes == ("no single flag is enough on a node of these cards",)
