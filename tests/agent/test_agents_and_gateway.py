"""Agents with null engines and a whole gateway in this process: joining, loss, return, verbs, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import httpx
import msgspec
import pytest
from tests.gateway.running import until
from tests.ports import free_port

from exaserve.agent import node as node_module
from exaserve.agent.machine import NodeMachine
from exaserve.agent.meters import Meters
from exaserve.agent.node import NodeAgent
from exaserve.agent.plan import plan_node
from exaserve.agent.uplink import UplinkTimes
from exaserve.config import AgentSettings, Cluster, GatewaySettings, NodeEntry, Pool, split_address
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId, Report
from exaserve.gateway.app import Gateway
from exaserve.gateway.fleet import agents
from exaserve.gateway.fleet.roster import grown_exits
from exaserve.health import HealthConfig
from exaserve.local.null_host import NullHost
from exaserve.observe import EventLog, null_log

pytestmark = pytest.mark.may_block

TOKEN = "a token of the inside"
HEALTH = HealthConfig(probe_fast_s=0.05, open_s=0.05, slow_start_s=60.0)


class World:
    """A gateway, and agents that come and go."""

    def __init__(self, nodes: int, replicas: int, *, in_file: bool, **settings: float | str) -> None:
        chosen: dict[str, float | str] = {"interval_s": 0.05, "lost_s": 60.0, "probe_interval_s": 0.5, "drain_s": 2.0}
        self.settings = AgentSettings(enabled=True, port=free_port(), **(chosen | settings))  # type: ignore[arg-type]
        entries = tuple(NodeEntry(name=f"node{k}", address=f"127.0.{k}.9") for k in range(1, nodes + 1))
        pool = Pool(model="m", engine="null", num_replicas_per_node=replicas, base_port=free_port())
        self.cluster = Cluster(
            nodes=entries,
            pools=(pool,),
            health=HEALTH,
            agents=self.settings,
            gateway=GatewaySettings(port=0, admin_port=0, drain_s=0.0),
        )
        known = self.cluster if in_file else msgspec.structs.replace(self.cluster, pools=(), nodes=())
        self.lines: list[str] = []
        log = EventLog(self.lines.append, burst_max=10_000)
        self.gateway = Gateway(known, log=log, rng=Random(0), agent_token=TOKEN)
        self.agents: list[NodeAgent] = []

    def agent(self, k: int, token: str | None = TOKEN, name: str = "", said: list[str] | None = None) -> NodeAgent:
        assert self.gateway.agents is not None
        host, port = split_address(self.gateway.agents.address)
        node = self.cluster.nodes[k]
        made = NodeAgent(
            name or node.name,
            plan_node(self.cluster, node, NodeMachine(), Path()),
            [(host, port)],
            self.settings,
            NullHost(),
            null_log() if said is None else EventLog(said.append, burst_max=10_000),
            meters=Meters(time.monotonic),
            token=None if token is None else token.encode(),
            rng=Random(k),
        )
        self.agents.append(made)
        made.start()
        return made

    def eligible(self) -> set[str]:
        return {str(each) for each, state in self.gateway.scheduler.states().items() if state.eligible}

    def state(self, replica: str):
        return self.gateway.scheduler.states()[ReplicaId(replica)]

    def kill(self, agent: NodeAgent) -> None:
        """As SIGKILL would: sockets end, nothing is said."""
        for unit in agent.units.values():
            if unit._task is not None:
                unit._task.cancel()
            if unit.engine is not None:
                unit.engine._engine.close()  # type: ignore[attr-defined]
        for uplink in agent.uplinks:
            if uplink._loop_task is not None:
                uplink._loop_task.cancel()
            if uplink.transport is not None:
                uplink.transport.abort()
        if agent._timer is not None:
            agent._timer.cancel()
        self.agents.remove(agent)


@contextlib.asynccontextmanager
async def world(
    nodes: int = 2, replicas: int = 2, *, in_file: bool = True, **settings: float | str
) -> AsyncIterator[World]:
    made = World(nodes, replicas, in_file=in_file, **settings)
    await made.gateway.start()
    try:
        yield made
    finally:
        await asyncio.gather(*(agent.stop(0.0) for agent in made.agents))
        await made.gateway.stop(0.0)
        made.gateway.scheduler.validate()
        made.gateway.fleet.validate()


async def ask(gateway: Gateway, **more) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30) as client:
        return await client.post("/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 1} | more)


@pytest.mark.parametrize("in_file", [True, False])
async def test_replicas_serve_as_soon_as_their_agents_say_so(in_file) -> None:
    async with world(in_file=in_file) as w:
        asked = asyncio.create_task(ask(w.gateway)) if in_file else None  # before anything runs: it waits
        await asyncio.sleep(0.1)
        w.agent(0)
        w.agent(1)
        await until(w.gateway.scheduler.ready_models)
        answer = await (asked or ask(w.gateway))
        assert answer.status_code == 200 and answer.headers["x-exaserve-replica"].startswith("node")
        await until(lambda: w.eligible() == {"node1/r0", "node1/r1", "node2/r0", "node2/r1"})
        assert (await ask(w.gateway, stream=True)).text.endswith("data: [DONE]\n\n")
        await until(lambda: all(w.state(each).seen.fresh for each in w.eligible()))
        report = w.state("node1/r0").seen.report
        assert report is not None and (report.running, report.kv_tokens_max) == (0, 400_000)
        first = w.state("node1/r0").seen.at
        await until(lambda: w.state("node1/r0").seen.at > first)
        assert w.state("node1/r0").report_age(time.monotonic()) < 5.0
        assert w.gateway.telemetry.view(ReplicaId("node1/r0")).polls == 0, "what an agent watches is not polled"


async def test_agents_and_gateways_meet_on_ipv6() -> None:
    async with world(nodes=1, host="::1") as w:
        assert w.gateway.agents is not None and w.gateway.agents.address.startswith("[::1]:")
        w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        assert w.gateway.agents.nodes["node1"].client.startswith("[::1]:")


async def test_a_joining_node_serves_within_half_a_second_of_its_engines_being_ready() -> None:
    """At the agent's word, which waits neither for the next batch nor for a probe of the gateway's own."""
    assert node_module._TELL_AFTER_S < 0.5
    async with world(in_file=False, interval_s=60.0, lost_s=200.0) as w:
        w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        joining = w.agent(1)
        await until(lambda: joining.ready() == 2)
        await until(lambda: len(w.eligible()) == 4)


async def test_an_agent_that_is_killed_takes_its_replicas_out_and_brings_them_back() -> None:
    async with world() as w:
        first = w.agent(0)
        w.agent(1)
        await until(lambda: len(w.eligible()) == 4)
        w.kill(first)
        await until(lambda: w.eligible() == {"node2/r0", "node2/r1"})  # silence would be noticed after a minute
        assert [(await ask(w.gateway)).status_code for _ in range(4)] == [200] * 4
        back = w.agent(0)
        await until(lambda: back.ready() == 2)
        await until(lambda: len(w.eligible()) == 4)
        assert w.state("node1/r0").standing.ramp < 0.5, "a slow start, not a flood"
        assert w.gateway.fleet.view(ReplicaId("node1/r0")).state == "ramping"


async def test_silence_counts_as_loss() -> None:
    """A connection that stays open and says nothing: a network that swallows packets."""
    assert AgentSettings().lost_s + agents._TICK_S < 2.0, "by default out of rotation within two seconds"
    async with world(lost_s=1.5) as w:
        first = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        assert first._timer is not None
        first._timer.cancel()
        await until(lambda: not w.eligible())
        assert any("event=agent_lost" in line and "nothing heard" in line for line in w.lines)


async def test_engines_that_outlive_the_link_to_their_agent_are_probed_and_polled_from_here() -> None:
    async with world() as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        for uplink in agent.uplinks:
            await uplink.close()
        await until(lambda: w.gateway.telemetry.view(ReplicaId("node1/r0")).polls > 0)
        await until(lambda: len(w.eligible()) == 2)


async def test_a_gateway_that_restarts_has_the_whole_report_at_once() -> None:
    async with world() as w:
        w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        address = w.gateway.agents.address  # type: ignore[union-attr]
        await w.gateway.stop(0.0)
        settings = msgspec.structs.replace(w.settings, port=int(address.rpartition(":")[2]))
        cluster = msgspec.structs.replace(w.cluster, agents=settings)
        w.gateway = Gateway(cluster, log=null_log(), rng=Random(0), agent_token=TOKEN)
        await w.gateway.start()
        await until(lambda: len(w.eligible()) == 2)
        await until(lambda: w.state("node1/r1").seen.fresh)


def test_an_agent_that_can_reach_its_gateway_again_does_so_within_two_seconds() -> None:
    times = UplinkTimes()
    pause_s = 1.5 * times.backoff_max_s
    assert times.connect_s + pause_s < 2.0, "a try that began just before the way was open ends without it"
    settings = AgentSettings()
    noticed_s = times.silence_s + 3 * settings.interval_s
    assert noticed_s - settings.lost_s + pause_s < 2.0, "the way was open again before the agent noticed anything"


async def test_an_agent_that_leaves_on_purpose_takes_what_only_it_knew() -> None:
    async with world(in_file=False) as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        w.agents.remove(agent)
        await agent.stop(0.5)
        await until(lambda: not w.gateway.scheduler.states())
        assert any("event=agent_left" in line for line in w.lines)


async def test_figures_that_an_agent_took_long_ago_are_no_restart_of_the_engine() -> None:
    """An agent that was held up (SIGSTOP, a busy machine) tells what was true before; the gateway polled meanwhile."""
    async with world(nodes=1, replicas=1) as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 1)
        await until(lambda: w.state("node1/r0").seen.report is not None)
        assert agent._timer is not None
        agent._timer.cancel()
        now = time.monotonic()
        polled = Report(
            ReplicaId("node1/r0"), 1, now, running=0, waiting=0, prompt_tokens_total=1e6, generation_tokens_total=1e6
        )
        w.gateway.fleet.report(polled, now)
        late = msgspec.structs.replace(polled, seq=2, taken_at=now - 10.0, prompt_tokens_total=5e5)
        w.gateway.fleet.report(late, now + 0.1)
        await asyncio.sleep(0.05)
        assert not [line for line in w.lines if "event=replica_restarted" in line]
        fell = msgspec.structs.replace(polled, seq=3, taken_at=now + 0.2, prompt_tokens_total=5e5)
        w.gateway.fleet.report(fell, now + 0.2)
        await until(lambda: any("event=replica_restarted" in line for line in w.lines))


async def test_a_gateway_that_stops_calls_no_agent_lost() -> None:
    async with world(nodes=1) as w:
        w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        await w.gateway.stop(0.0)
        await asyncio.sleep(0.05)
        assert not [line for line in w.lines if "level=warning" in line]


@pytest.mark.parametrize("taken", ["agents.port", "gateway.admin_port"])
async def test_a_port_that_a_draining_gateway_still_has_is_named(taken) -> None:
    async with world(nodes=1) as w:
        agents, gateway = w.settings, w.cluster.gateway
        if taken == "gateway.admin_port":
            agents = msgspec.structs.replace(agents, port=0)
            gateway = msgspec.structs.replace(gateway, admin_port=int(w.gateway.admin_url.rpartition(":")[2]))
        cluster = msgspec.structs.replace(w.cluster, agents=agents, gateway=gateway)
        with pytest.raises(ConfigError, match=rf"\({taken}\): the port is in use, perhaps by a gateway that still"):
            await Gateway(cluster, log=null_log(), agent_token=TOKEN).start()


async def test_strangers_are_refused() -> None:
    async with world() as w:
        w.agent(0, token="another token, wrong")
        w.agent(1, token=None)
        await until(lambda: w.gateway.agents.refused >= 2)  # type: ignore[union-attr]
        assert not w.gateway.agents.nodes and not w.eligible()  # type: ignore[union-attr]


async def test_a_second_agent_for_a_node_is_refused_and_told_who_holds_it() -> None:
    async with world() as w:
        first = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        connection = w.gateway.agents.nodes["node1"]  # type: ignore[union-attr]
        w.cluster = msgspec.structs.replace(w.cluster, nodes=(NodeEntry(name="node1", address="127.0.3.9"),))
        said: list[str] = []
        w.agent(0, said=said)
        await until(lambda: w.gateway.agents.refused >= 3)  # type: ignore[union-attr]
        assert w.gateway.agents.nodes == {"node1": connection}  # type: ignore[union-attr]
        assert w.state("node1/r0").url == first.units[ReplicaId("node1/r0")].spec.url and len(w.eligible()) == 2
        (told,) = [line for line in w.lines if "event=agent_refused" in line]
        assert f"node node1 has an agent already, at {connection.client}" in told
        assert [line for line in said if "event=gateway_found" in line] == []
        assert len([line for line in said if "event=gateway_lost" in line]) == 1
        w.kill(first)
        await until(lambda: "127.0.3.9" in w.state("node1/r0").url)  # the first one is gone, and the second is heard


async def test_an_agent_cannot_speak_for_another_nodes_replicas() -> None:
    async with world() as w:
        w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        url = w.state("node1/r0").url
        w.cluster = msgspec.structs.replace(w.cluster, nodes=(NodeEntry(name="node1", address="127.0.3.9"),))
        w.agent(0, name="thief")
        await until(lambda: any("event=replica_refused" in line and "it is node1's" in line for line in w.lines))
        assert w.state("node1/r0").url == url


async def test_verbs_through_the_admin_api() -> None:
    async with world(nodes=1, replicas=2) as w:
        agent = w.agent(0)
        await until(lambda: len(w.eligible()) == 2)
        async with httpx.AsyncClient(base_url=w.gateway.admin_url, trust_env=False, timeout=30) as admin:
            done = await admin.post("/nodes/node1/drain", json={"replica": "r0"})
            assert (done.status_code, done.json()["lines"]) == (200, ["node1/r0: drain (was ready)"])
            await until(lambda: w.eligible() == {"node1/r1"})
            assert w.state("node1/r0").standing.available, "drained, not ejected: requests in flight go on"
            await admin.post("/nodes/node1/resume", json={"replica": "r0"})
            await until(lambda: len(w.eligible()) == 2)
            await admin.post("/nodes/node1/stop")
            await until(lambda: not w.eligible())
            await until(lambda: {state.value for state in agent.states().values()} == {"stopped"})
            await admin.post("/nodes/node1/restart")
            await until(lambda: len(w.eligible()) == 2)
            assert (await admin.post("/nodes/node1/logs", json={"lines": 5})).json()["lines"]
            for path, status in (("nodes/node9/stop", 404), ("nodes/node1/exec", 404)):
                assert (await admin.post(f"/{path}")).status_code == status
            refused = await admin.post("/nodes/node1/stop", json={"replica": "r9"})
            assert refused.status_code == 409 and "r9" in refused.json()["error"]["message"]
            assert (await admin.post("/nodes/node1/stop", json={"command": "rm"})).status_code == 400
            assert (await admin.get("/nodes")).json()["ready"] == 2
            rows = (await admin.get("/nodes/all")).json()["nodes"]
            assert [row["node"] for row in rows] == ["node1"]


async def test_ends_of_engines_are_counted_by_cause() -> None:
    def told(made: World) -> dict[str, float]:
        assert made.gateway.agents is not None
        (family,) = (each for each in made.gateway.agents.families(None) if each and "engine_exits" in each.name)
        return {
            line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in family.lines() if not line.startswith("#")
        }

    async with world(1, 2) as made:
        assert set(told(made).values()) == {0.0}, "none is told as 0"
        agent = made.agent(0)
        await until(lambda: len(made.eligible()) == 2)
        unit = next(iter(agent.units.values()))
        unit.exits.update({"other": 1, "NCCL": 2})
        agent._unit_changed(unit)
        await until(lambda: (told(made)["other"], told(made)["NCCL"]) == (1.0, 2.0))
        assert told(made)["out of accelerator memory"] == 0.0


def test_an_agent_that_began_anew_counts_from_zero() -> None:
    assert dict(grown_exits((("NCCL", 3), ("other", 1)), (("NCCL", 5), ("other", 1)))) == {"NCCL": 2}
    assert dict(grown_exits((("NCCL", 3),), (("NCCL", 1),))) == {"NCCL": 1}
    assert dict(grown_exits((), (("a cause of a later version", 1),))) == {"other": 1}


def test_an_open_port_needs_a_secret() -> None:
    settings = AgentSettings(enabled=True, host="0.0.0.0", port=0)
    cluster = Cluster(agents=settings, gateway=GatewaySettings(port=0, admin_port=0))
    with pytest.raises(ConfigError, match="token_file or mutual TLS"):
        Gateway(cluster, log=null_log())
