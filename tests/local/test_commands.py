"""What ``exaserve up`` starts without agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaserve.agent.machine import NodeMachine
from exaserve.config import parse_cluster
from exaserve.local import commands

CUDA = NodeMachine("cuda", (0,) * 8, {0: (0, 1)})


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "read_machine", lambda: CUDA)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def started(text: str):
    return list(commands.process_commands(parse_cluster(text.encode(), "test")))


def test_pools_of_a_node_share_its_cards_and_side_ports() -> None:
    found = started("""
pools:
  - {model: m/a, engine: vllm, tensor_parallel_size: 2}
  - {model: m/b, engine: vllm, base_port: 9001}
  - {model: meta-llama/Llama-3.1-8B-Instruct, engine: emulator, base_port: 9101}
""")
    by_name = {name: (argv, env) for name, argv, env in found}
    assert set(by_name) == {"m/a/node1/r0", "m/b/node1/r0", "meta-llama/Llama-3.1-8B-Instruct on node1"}
    assert by_name["m/a/node1/r0"][1]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert by_name["m/b/node1/r0"][1]["CUDA_VISIBLE_DEVICES"] == "2"
    assert by_name["m/a/node1/r0"][1]["VLLM_PORT"] != by_name["m/b/node1/r0"][1]["VLLM_PORT"]


def test_files_that_an_engine_reads_are_there_before_it_starts(tmp_path) -> None:
    ((_, argv, _),) = started("{model: m/x, engine: trtllm}")
    path = Path(argv[argv.index("--extra_llm_api_options") + 1])
    assert path.is_relative_to(tmp_path)
    assert "return_perf_metrics" in path.read_text()
