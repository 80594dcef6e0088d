"""A new cluster file for a node whose engines run."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from tests.agent.test_agents_and_gateway import World, ask, world
from tests.agent.test_units import ENGINE, alive, node, until
from tests.ports import free_port

from exaserve.agent.lifecycle import UnitState
from exaserve.agent.machine import NodeMachine
from exaserve.agent.plan import UnitPlan, node_of, plan_node
from exaserve.agent.reloading import compare
from exaserve.config import Cluster, NodeEntry, Pool, parse_cluster

pytestmark = pytest.mark.may_block

CUDA = NodeMachine("cuda", (0,) * 8, {0: (0, 1)})


def plans(text: str) -> tuple[UnitPlan, ...]:
    cluster = parse_cluster(text.encode(), "test")
    return plan_node(cluster, node_of(cluster, "node1"), CUDA, Path("/state"))


def changes(old: str, new: str):
    return compare({plan.spec.id: plan for plan in plans(old)}, plans(new))


def test_the_same_file_changes_nothing() -> None:
    text = "{model: m/x, engine: vllm, num_replicas_per_node: 2, lora_adapters: [a=/a]}"
    assert changes(text, text) == compare({}, ())


def test_what_comes_and_goes() -> None:
    found = changes("{model: m/x, engine: vllm, num_replicas_per_node: 2}", "{model: m/x, engine: vllm}")
    assert (found.removed, found.replaced, found.added) == (("node1/r1",), (), ())
    found = changes("{model: m/x, engine: vllm}", "{model: m/x, engine: vllm, num_replicas_per_node: 3}")
    assert [plan.spec.id for plan in found.added] == ["node1/r1", "node1/r2"]
    assert found.lines == ("replica node1/r1: added", "replica node1/r2: added")


def test_a_description_needs_no_new_process() -> None:
    found = changes("{model: m/x, engine: vllm}", "{model: m/x, engine: vllm, version: v2, kv_tokens_max: 7}")
    assert [plan.spec.version for plan in found.described] == ["v2"]
    assert not found.replaced


def test_arguments_and_variables_do_and_values_of_variables_stay_unsaid() -> None:
    found = changes(
        "{model: m/x, engine: vllm, max_num_seqs: 64}",
        "{model: m/x, engine: vllm, max_num_seqs: 128, environment: {VLLM_API_KEY: hush}}",
    )
    assert found.lines == ("replica node1/r0: arguments 64 -> 128; environment VLLM_API_KEY",)
    assert len(found.replaced) == 1


def test_replicas_that_take_each_others_cards_are_replaced_together() -> None:
    found = changes(
        "{model: m/x, engine: vllm, num_replicas_per_node: 2, tensor_parallel_size: 2}",
        "{model: m/x, engine: vllm, num_replicas_per_node: 2, tensor_parallel_size: 4}",
    )
    assert len(found.replaced) == 2
    assert found.together
    found = changes(
        "{model: m/x, engine: vllm, num_replicas_per_node: 2, tensor_parallel_size: 2}",
        "{model: m/x, engine: vllm, num_replicas_per_node: 2, tensor_parallel_size: 2, max_num_seqs: 8}",
    )
    assert len(found.replaced) == 2
    assert not found.together


def replanned(agent, folder: Path, *flags: str, **pool):
    """The plan of :func:`tests.agent.test_units.node` with other flags, at the same ports."""
    (unit, *_) = agent.units.values()
    command = (sys.executable, ENGINE, "{host}", "{port}", *flags)
    base = pool.pop("base_port", unit.plan.port)
    entry = NodeEntry(name="n", address="127.0.0.1")
    text = {"model": "m", "engine": "command", "engine_command": command, "base_port": base} | pool
    made = msgspec.convert(text, Pool)
    return plan_node(Cluster(nodes=(entry,), pools=(made,)), entry, NodeMachine(), folder)


async def test_replicas_are_replaced_one_after_the_other(tmp_path) -> None:
    async with node(tmp_path, num_replicas_per_node=2) as agent:
        await until(lambda: agent.ready() == 2)
        before = {replica: unit.engine.pid for replica, unit in agent.units.items()}
        lowest = 2
        agent.reload(replanned(agent, tmp_path, "--words", "second", num_replicas_per_node=2))
        end = time.monotonic() + 40.0
        while agent.reloading or agent.ready() < 2:
            lowest = min(lowest, agent.ready())
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        assert lowest == 1, "the node goes on serving"
        assert not any(alive(pid) for pid in before.values())
        assert all(unit.engine.pid != before[replica] for replica, unit in agent.units.items())
        assert sum("event=reload_change" in line and "--words second" in line for line in agent.lines) == 2

        kept = agent.units["n/r0"].engine.pid
        agent.reload(replanned(agent, tmp_path, "--words", "second"))
        await until(lambda: not agent.reloading)
        assert list(agent.units) == ["n/r0"]
        assert agent.units["n/r0"].engine.pid == kept, "untouched"


async def test_a_replacement_that_fails_stops_the_rest_and_the_next_file_repairs_it(tmp_path) -> None:
    async with node(tmp_path, num_replicas_per_node=2) as agent:
        await until(lambda: agent.ready() == 2)
        kept = agent.units["n/r1"].engine.pid
        agent.reload(replanned(agent, tmp_path, "--exit", "1", num_replicas_per_node=2))
        await until(lambda: any("event=reload_stopped" in line for line in agent.lines))
        await until(lambda: not agent.reloading)
        assert agent.units["n/r1"].engine.pid == kept
        assert agent.units["n/r1"].ready
        agent.reload(replanned(agent, tmp_path, num_replicas_per_node=2))
        await until(lambda: not agent.reloading and agent.ready() == 2)
        assert agent.units["n/r1"].engine.pid == kept, "it was never changed"


async def test_a_verb_does_not_bring_back_what_ends_for_good(tmp_path) -> None:
    async with node(tmp_path) as agent:
        await until(lambda: agent.ready() == 1)
        (unit,) = agent.units.values()
        agent.reload(())
        await until(lambda: unit._closing)
        assert "ends for good" in unit.ask("start")
        await until(lambda: not agent.units)
        assert unit.state is UnitState.STOPPED


def resized(w: World, replicas: int) -> Cluster:
    (pool,) = w.cluster.pools
    return msgspec.structs.replace(w.cluster, pools=(msgspec.structs.replace(pool, num_replicas_per_node=replicas),))


@pytest.mark.parametrize("first", ["agent", "gateway", "agent alone"])
async def test_gateway_and_agent_follow_the_same_file_in_any_order(first) -> None:
    async with world(nodes=1, replicas=2) as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)

        async def both(replicas: int, reached) -> None:
            cluster = resized(w, replicas)
            steps = [
                lambda: agent.reload(plan_node(cluster, cluster.nodes[0], NodeMachine(), Path())),
                lambda: w.gateway.reload(cluster),
            ]
            for step in reversed(steps) if first == "gateway" else steps[:1] if first == "agent alone" else steps:
                step()
                await asyncio.sleep(0.15)
            await until(reached)
            await until(lambda: not agent.reloading)

        await both(4, lambda: w.eligible() == {f"node1/r{k}" for k in range(4)})
        await until(lambda: all(w.state(each).seen.fresh for each in w.eligible()))
        await both(1, lambda: w.eligible() == {"node1/r0"})
        if first != "agent alone":  # then the file still names the second
            await until(lambda: set(w.gateway.scheduler.states()) == {"node1/r0"})
        await both(3, lambda: w.eligible() == {f"node1/r{k}" for k in range(3)})
        await until(lambda: all(w.state(each).seen.fresh for each in w.eligible()))
        assert (await ask(w.gateway)).status_code == 200


def test_sighup_reads_the_file_again_and_refuses_a_wrong_one(tmp_path) -> None:
    config = tmp_path / "cluster.yaml"
    text = (
        f"{{model: m, engine: 'null', base_port: {free_port()}, nodes: [{{name: n, address: 127.0.7.7}}],"
        f" agents: {{enabled: true, port: {free_port()}, probe_interval: 200ms}}, num_replicas_per_node: %d%s}}"
    )
    config.write_text(text % (1, ""))
    agent = subprocess.Popen(
        [sys.executable, "-m", "exaserve", "agent", "-c", str(config), "--state-dir", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    assert agent.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(agent.stderr), daemon=True)  # type: ignore[arg-type]
    reader.start()

    def seen(*words: str) -> None:
        end = time.monotonic() + 30.0
        while not any(all(word in line for word in words) for line in list(lines)):
            assert time.monotonic() < end, (words, lines)
            time.sleep(0.02)

    try:
        seen("replica=n/r0", "state=ready")
        config.write_text(text % (2, ", nonsense: 1"))
        agent.send_signal(signal.SIGHUP)
        seen("event=reload_failed", "nonsense", "kept=")
        config.write_text((text % (2, "")).replace("name: n,", "name: other,"))
        agent.send_signal(signal.SIGHUP)
        seen("event=reload_failed", "there is no node 'n'")
        config.write_text((text % (2, "")).replace("200ms", "300ms"))
        agent.send_signal(signal.SIGHUP)
        seen("event=reload_needs_restart", "agents.probe_interval")
        seen("event=reload_change", "replica n/r1: added")
        seen("replica=n/r1", "state=ready")
        assert sum("replica=n/r0" in line and "state=starting" in line for line in lines) == 1
    finally:
        agent.terminate()
        assert agent.wait(30) == 0
        reader.join()
        agent.stderr.close()


@pytest.mark.parametrize("first", ["agent", "gateway"])
async def test_replicas_that_move_stay_the_agents_whoever_reads_the_file_first(first) -> None:
    async with world(nodes=1, replicas=2) as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        (pool,) = w.cluster.pools
        moved = msgspec.structs.replace(pool, base_port=free_port())
        cluster = msgspec.structs.replace(w.cluster, pools=(moved,))
        plan = plan_node(cluster, cluster.nodes[0], NodeMachine(), Path())
        steps = [lambda: agent.reload(plan), lambda: w.gateway.reload(cluster)]
        for step in steps if first == "agent" else reversed(steps):
            step()
            await until(lambda: not agent.reloading)
            await asyncio.sleep(0.1)
        await until(lambda: len(w.eligible()) == 2)
        assert {w.state(each).url for each in w.eligible()} == {each.spec.url for each in plan}
        assert (await ask(w.gateway)).status_code == 200
        await asyncio.sleep(0.3)
        assert [w.gateway.telemetry.view(each.spec.id).polls for each in plan] == [0, 0], "their agent tells"


async def test_a_reload_of_the_gateway_keeps_what_only_the_agent_knows() -> None:
    async with world(nodes=1, replicas=1) as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 1)
        (unit,) = agent.units.values()
        unit.spec = dataclasses.replace(unit.spec, models=("m", "adapter"))
        agent._unit_changed(unit)
        await until(lambda: w.state("node1/r0").spec.models == ("m", "adapter"))
        (pool,) = w.cluster.pools
        version = msgspec.structs.replace(pool, version="v2")
        w.gateway.reload(msgspec.structs.replace(w.cluster, pools=(version,)))
        spec = w.state("node1/r0").spec
        assert (spec.version, spec.models) == ("v2", ("m", "adapter"))
        assert w.eligible() == {"node1/r0"}
