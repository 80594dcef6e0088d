"""A node's folder: one agent has it, and what operators have held outlives that agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.agent.test_units import node, until

from exaserve.agent.lifecycle import UnitState
from exaserve.agent.state_folder import StateFolder, hold_after
from exaserve.domain.errors import ConfigError
from exaserve.wire import Verb

pytestmark = pytest.mark.may_block


@pytest.mark.parametrize(
    ("verbs", "held"),
    [
        (["stop"], "stop"),
        (["drain"], "drain"),
        (["drain", "resume"], None),
        (["drain", "stop", "resume"], "stop"),
        (["stop", "drain"], "stop"),
        (["stop", "restart"], None),
        (["stop", "start"], None),
    ],
)
def test_what_each_verb_holds(verbs, held) -> None:
    hold = None
    for verb in verbs:
        hold = hold_after(verb, hold)
    assert hold == held


def test_a_folder_has_one_agent_and_the_second_is_told_who(tmp_path) -> None:
    first = StateFolder(tmp_path / "n")
    assert first.open() == {}
    with pytest.raises(ConfigError, match=f"another agent of this node, process {os.getpid()}; end it"):
        StateFolder(tmp_path / "n").open()
    first.close()
    again = StateFolder(tmp_path / "n")
    again.open()
    again.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "n").touch()
    with pytest.raises(ConfigError, match="give another --state-dir"):
        StateFolder(tmp_path / "n").open()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"n/r0": "burn"}'])
def test_damaged_holds_are_none_and_said(tmp_path, text) -> None:
    (tmp_path / "holds.json").write_text(text)
    folder = StateFolder(tmp_path)
    assert folder.open() == {}
    assert "holds.json" in folder.problem
    assert folder.keep({"n/r0": "stop"}) == ""
    folder.close()
    assert StateFolder(tmp_path).open() == {"n/r0": "stop"}


def test_a_trial_keeps_nothing(tmp_path) -> None:
    folder = StateFolder(tmp_path, keeps=False)
    folder.open()
    assert folder.keep({"n/r0": "stop"}) == ""
    assert not (tmp_path / "holds.json").exists()
    folder.close()


async def test_a_stopped_replica_stays_stopped_when_its_agent_is_started_anew(tmp_path) -> None:
    async with node(tmp_path, state=StateFolder(tmp_path), num_replicas_per_node=3) as agent:
        await until(lambda: agent.ready() == 3)
        assert (await agent.obey(Verb(1, "stop", "r0"))).lines == ("n/r0: stop (was ready)",)
        await until(lambda: agent.units["n/r0"].reason == "stopped by an operator, until exaserve restart")
        await agent.obey(Verb(2, "drain", "r1"))
        await until(lambda: agent.ready() == 1)
    async with node(tmp_path, state=StateFolder(tmp_path), num_replicas_per_node=3) as agent:
        stopped, drained, free = agent.units.values()
        await until(lambda: free.ready and drained.state is UnitState.DRAINING)
        assert stopped.state is UnitState.STOPPED
        assert stopped.reason == "stopped by an operator, until exaserve restart"
        assert not any("n/r1" in line and "state=ready" in line and "was=draining" in line for line in agent.lines)
        await agent.obey(Verb(1, "restart"))
        await until(lambda: agent.ready() == 3)
    assert StateFolder(tmp_path).open() == {}


async def test_a_hold_that_cannot_be_kept_is_said_and_the_verb_done(tmp_path) -> None:
    async with node(tmp_path, state=StateFolder(tmp_path)) as agent:
        await until(lambda: agent.ready() == 1)
        (tmp_path / "holds.new").mkdir()
        result = await agent.obey(Verb(1, "stop"))
        assert result.ok and "not kept for when the agent of n is started anew: Is a directory" in result.lines[-1]
        await until(lambda: agent.units["n/r0"].state is UnitState.STOPPED)
        assert any("event=hold_not_kept" in line for line in agent.lines)


def test_logs_folder(tmp_path: Path) -> None:
    """The lock is in the node's own folder, beside its logs and caches."""
    folder = StateFolder(tmp_path / "n")
    folder.open()
    assert (tmp_path / "n" / "agent.lock").read_text() == f"{os.getpid()}\n"
    folder.close()
