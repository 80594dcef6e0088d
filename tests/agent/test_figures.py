"""What an agent says of its machine reaches the gateway's metrics, the admin API and ``exaserve status``."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import httpx
import pytest
from rich.console import Console
from tests.agent.nvml import FakeCard, FakeNvml
from tests.agent.test_agents_and_gateway import World, world
from tests.gateway.running import until

from exaserve.agent.meters import Meters, Nvml
from exaserve.agent.node import NodeAgent
from exaserve.agent.slow_faults import WatchFinding
from exaserve.cli.status_table import Shown, Snapshot, table
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.fleet.agent_connection import NodeConnection
from exaserve.gateway.fleet.machine_figures import accelerators
from exaserve.wire import Card, MachineFigures, WireError, decode, encode
from exaserve.wire.messages import CARDS_MAX

pytestmark = pytest.mark.may_block


def with_cards(made: World, *cards: FakeCard) -> NodeAgent:
    agent = made.agent(0)
    agent._meters._nvml = Nvml(FakeNvml(list(cards)))
    agent._meters.read()
    return agent


async def connected(made: World) -> NodeConnection:
    agents = made.gateway.agents
    assert agents is not None
    await until(lambda: len(agents.nodes) == 1)
    return next(iter(agents.nodes.values()))


async def shown(made: World) -> tuple[str, dict[str, Any], str]:
    """Metrics, the first node of the admin API, and the table."""
    async with httpx.AsyncClient(base_url=made.gateway.admin_url, trust_env=False) as client:
        node = (await client.get("/nodes/all")).json()["nodes"][0]
        data = (await client.get("/replicas")).json()
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(Snapshot(data, time.monotonic()), None, Shown(160)))
    return made.gateway.metrics.render().decode(), node, console.export_text()


async def test_accelerators_show_in_metrics_admin_and_status() -> None:
    async with world(1) as made:
        with_cards(made, FakeCard(), FakeCard(gpu=20, celsius=91, ecc=2, reasons=0x40))
        connection = await connected(made)
        await until(lambda: len(connection.figures.cards) == 2)
        text, node, status = await shown(made)
        name = connection.node
        assert f'exaserve_accelerator_use_ratio{{node="{name}",device="0"}} 0.73' in text
        assert f'exaserve_accelerator_temperature_celsius{{node="{name}",device="1"}} 91' in text
        assert f'exaserve_accelerator_ecc_errors{{node="{name}",device="1"}} 2' in text
        assert f'exaserve_accelerator_throttled{{node="{name}",device="1"}} 1' in text
        assert f'exaserve_accelerator_memory_total_gb{{node="{name}",device="0"}} 85' in text
        assert node["accelerators"][1]["celsius"] == 91.0
        assert "2 accelerators, 46% busy, hottest 91 °C" in status
        assert "1 throttled" in status
        assert "1 with ECC errors" in status


async def test_what_a_card_does_not_say_has_no_sample_and_a_lost_card_is_said() -> None:
    async with world(1) as made:
        agent = with_cards(made, FakeCard(), FakeCard(lost=True))
        connection = await connected(made)
        await until(lambda: len(connection.figures.cards) == 2)
        text, node, status = await shown(made)
        assert 'device="0"' in text
        assert 'device="1"' not in text
        assert node["accelerators_problem"] == "NVML: card 1 gives no figures"
        assert "1 nodes whose accelerators do not answer" in status
        assert agent.figures() == encode(connection.figures)


async def test_findings_of_watches_come_and_go() -> None:
    async with world(1) as made:
        agent = made.agent(0)
        connection = await connected(made)
        replica = next(iter(agent.units))
        agent.watching._tell(ReplicaId(replica), WatchFinding("memory_creep", True, "80.0 MB/h at 4000 MB"))
        await until(lambda: len(connection.figures.watches) == 1)
        text, node, status = await shown(made)
        assert f'exaserve_replica_watch{{replica="{replica}",watch="memory_creep"}} 1' in text
        assert node["watches"] == [{"replica": replica, "name": "memory_creep", "detail": "80.0 MB/h at 4000 MB"}]
        assert "1 found by watches" in status
        agent.watching._tell(ReplicaId(replica), WatchFinding("memory_creep", False, "steady"))
        await until(lambda: not connection.figures.watches)


async def test_figures_that_stay_are_sent_once_to_each_connection() -> None:
    async with world(1) as made:
        agent = with_cards(made, FakeCard())
        sent: list[bytes] = []
        uplink = agent.uplinks[0]
        original = uplink.figure

        def figure(figures: bytes) -> bool:
            sent.append(figures)
            return original(figures)

        uplink.figure = figure  # type: ignore[method-assign]
        connection = await connected(made)
        await asyncio.sleep(2.5)
        assert len(sent) <= 1
        agent._meters.cards = (Card(use=0.5),)
        await until(lambda: len(sent) >= 1 and decode(sent[-1], MachineFigures).cards == (Card(use=0.5),))
        await until(lambda: connection.figures.cards == (Card(use=0.5),))


def test_a_node_cannot_make_us_hold_more_than_so_many_cards() -> None:
    assert decode(encode(MachineFigures((Card(),) * CARDS_MAX)), MachineFigures).cards == (Card(),) * CARDS_MAX
    with pytest.raises(WireError):
        decode(encode(MachineFigures((Card(),) * (CARDS_MAX + 1))), MachineFigures)


def test_nothing_known_is_no_figure() -> None:
    assert accelerators({}) == accelerators({"n": MachineFigures()})
    assert accelerators({"n": MachineFigures((Card(),))})["use"] is None
    assert accelerators({"n": MachineFigures((Card(),))})["celsius_max"] is None


def test_figures_are_read_from_the_machine(tmp_path) -> None:
    meters = Meters(lambda: 1.0, root=tmp_path, nvml=Nvml(FakeNvml([FakeCard()])))
    meters.read()
    assert meters.cards[0].celsius == 61.0
