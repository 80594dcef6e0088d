"""An agent's replicas in Consul: there when they are ready, critical while they are not, gone with the agent."""

from __future__ import annotations

import msgspec
import pytest
from tests.agent.test_units import QUICK, node, until
from tests.discovery.fake_consul import FakeConsul

from exaserve.agent.lifecycle import UnitState
from exaserve.agent.registering import Registrar
from exaserve.config import ConsulRegisterSettings, parse_cluster
from exaserve.observe import EventLog

pytestmark = pytest.mark.may_block


def registrar(consul: FakeConsul, lines: list[str] | None = None) -> Registrar:
    settings = ConsulRegisterSettings(service="vllm", server=consul.url, ttl_s=3.0, tags=("gpu",))
    return Registrar("n", settings, EventLog((lines if lines is not None else []).append))


def status(consul: FakeConsul) -> dict[str, str]:
    return {name: each["Checks"][1]["Status"] for name, each in consul.instances.get("vllm", {}).items()}


async def test_replicas_are_registered_while_they_live(tmp_path) -> None:
    async with FakeConsul() as consul:
        async with node(tmp_path, registrar=registrar(consul), num_replicas_per_node=2) as agent:
            await until(lambda: status(consul) == {"n-r0": "passing", "n-r1": "passing"})
            agent.units["n/r0"].ask("drain")
            await until(lambda: status(consul) == {"n-r0": "critical", "n-r1": "passing"})
            agent.units["n/r0"].ask("resume")
            await until(lambda: status(consul)["n-r0"] == "passing")
            agent.units["n/r1"].ask("stop", 0.0)
            await until(lambda: agent.units["n/r1"].state is UnitState.STOPPED)
            await until(lambda: status(consul) == {"n-r0": "passing"})
        assert status(consul) == {}


async def test_another_description_is_registered_in_its_place(tmp_path) -> None:
    names = tmp_path / "names"
    names.write_text("m one")
    async with (
        FakeConsul() as consul,
        node(tmp_path, "--models-file", str(names), registrar=registrar(consul)) as agent,
    ):
        await until(lambda: status(consul) == {"n-r0": "passing"})
        names.write_text("m two")
        await until(lambda: agent.units["n/r0"].spec.models == ("m", "two"))
        await until(lambda: consul.instances["vllm"]["n-r0"]["Service"]["Meta"]["models"] == "m,two")
        await until(lambda: status(consul) == {"n-r0": "passing"})


async def test_a_consul_that_is_away_is_told_once_and_changes_nothing(tmp_path) -> None:
    lines: list[str] = []
    async with FakeConsul() as consul:
        consul.token = "some token that we lack"
        async with node(tmp_path, registrar=registrar(consul, lines)) as agent:
            await until(lambda: agent.ready() == 1 and any("event=consul_unreachable" in line for line in lines))
            assert "service:write" in lines[0]
            consul.token = ""
            agent.units["n/r0"].ask("drain")
            await until(lambda: any("event=consul_reached" in line for line in lines))
    assert len([line for line in lines if "event=consul_unreachable" in line]) == 1


@pytest.mark.parametrize(
    ("register", "part"),
    [
        ("{service: ''}", "agents.register.service: must be the name"),
        ("{service: x, ttl: 60s}", "agents.register.ttl: must be from 1s to 15s"),
        ("{service: x, server: nowhere}", "agents.register.server: 'nowhere' is not a URL"),
        ("{service: x, key_file: a}", "agents.register.key_file: needs cert_file"),
    ],
)
def test_settings_are_checked(register, part) -> None:
    with pytest.raises(Exception, match=part):
        parse_cluster(f"{{model: m, engine: vllm, agents: {{register: {register}}}}}".encode(), "test")


def test_a_ttl_is_given_as_a_duration() -> None:
    cluster = parse_cluster(b"{model: m, engine: vllm, agents: {register: {service: x, ttl: 5s}}}", "test")
    assert cluster.agents.register == ConsulRegisterSettings(service="x", ttl_s=5.0)
    assert msgspec.structs.replace(QUICK, register=cluster.agents.register).register is not None
