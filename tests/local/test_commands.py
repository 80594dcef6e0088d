"""What ``exaserve up`` starts: agents for engines, an emulator for each node where all are emulated."""

from __future__ import annotations

import pytest

from exaserve.config import Cluster, parse_cluster
from exaserve.local.commands import emulator_commands, needs_agents, with_agents


def cluster(text: str) -> Cluster:
    return parse_cluster(text.encode(), "test")


EMULATED = "{model: Llama-3.2-1B, engine: emulator, nodes: 2, num_replicas_per_node: 3}"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "null", "command"])
def test_engines_are_started_by_their_nodes_agents(engine) -> None:
    argv = ", engine_command: [x, '{port}']" if engine == "command" else ""
    made = with_agents(cluster(f"{{model: m/x, engine: '{engine}'{argv}}}"))
    assert needs_agents(made)
    assert made.agents.enabled and made.agents.host == "127.0.0.1"
    assert made.agents.port != 8901, "another cluster on this machine may have that one"


def test_agents_that_are_asked_for_stay_as_they_are() -> None:
    made = cluster("{model: m/x, engine: vllm, agents: {enabled: true, port: 9901}}")
    assert with_agents(made) is made


def test_a_pool_that_is_not_emulated_gives_all_of_them_to_the_agents() -> None:
    assert needs_agents(cluster("pools: [{model: Llama-3.2-1B}, {model: m/b, engine: vllm, base_port: 9001}]"))


def test_a_node_of_emulators_is_one_process() -> None:
    made = cluster(EMULATED)
    assert not needs_agents(made) and with_agents(made) is made
    found = list(emulator_commands(made))
    assert [name for name, _ in found] == ["node1", "node2"]
    assert all(argv[argv.index("--replicas") + 1] == "3" for _, argv in found)
