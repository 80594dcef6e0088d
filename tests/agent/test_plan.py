"""From the cluster file to command lines: golden pairs, one for each engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from exaserve.agent.machine import NodeMachine
from exaserve.agent.plan import node_of, plan_node, safe_name
from exaserve.config import parse_cluster
from exaserve.domain.errors import ConfigError

CUDA = NodeMachine("cuda", (0, 0, 0, 0, 1, 1, 1, 1), {0: (0, 1), 1: (2, 3)})
STATE = Path("/state")


def plans(text: str, machine: NodeMachine = CUDA, node: str = "node1"):
    cluster = parse_cluster(text.encode(), "test")
    return plan_node(cluster, node_of(cluster, node), machine, STATE, lambda pool, spec, index: ["emulate", str(index)])


def test_vllm_with_everything() -> None:
    units = plans("""
model: meta-llama/Llama-3.1-70B-Instruct
served_model_name: llama
engine: vllm
tensor_parallel_size: 4
num_replicas_per_node: 2
max_model_len: 8192
precision: fp8
prompt_length: medium
gpu_memory_utilization: 0.92
kv_connector: NixlConnector
kv_connector_config: {backends: UCX}
lora_adapters: [sql=/adapters/sql]
engine_args: [--enforce-eager]
environment: {NCCL_DEBUG: WARN}
""")
    assert " ".join(units[1].argv) == (
        "vllm serve meta-llama/Llama-3.1-70B-Instruct --host 127.0.1.1 --port 8002 --served-model-name llama"
        " --tensor-parallel-size 4 --pipeline-parallel-size 1 --quantization fp8 --max-model-len 8192"
        " --max-num-seqs 256 --block-size 32 --gpu-memory-utilization 0.92 --kv-transfer-config"
        ' {"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"backends":"UCX"}}'
        " --enable-lora --lora-modules sql=/adapters/sql --enforce-eager"
    )
    assert units[1].env == {
        "VLLM_PORT": "20011",
        "VLLM_CACHE_ROOT": "/state/cache/node1_r1/vllm",
        "TRITON_CACHE_DIR": "/state/cache/node1_r1/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/state/cache/node1_r1/inductor",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.1.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "20010",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_DEBUG": "WARN",
    }
    assert (units[0].devices, units[1].devices) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (units[0].binding.memory, units[1].binding.memory) == ((0,), (1,))
    assert units[1].spec.models == ("llama", "sql")
    assert str(units[1].log_path) == "/state/logs/node1_r1.log"


@pytest.mark.parametrize(
    ("connector", "variables"),
    [
        ("NixlPullConnector", {"VLLM_NIXL_SIDE_CHANNEL_PORT"}),
        ("MooncakeConnector", {"VLLM_MOONCAKE_BOOTSTRAP_PORT"}),
        ("OffloadingConnector", {"VLLM_P2P_SIDE_CHANNEL_PORT"}),
        (
            "MultiConnector",
            {"VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_P2P_SIDE_CHANNEL_PORT"},
        ),
        ("LMCacheConnectorV1", set()),
    ],
)
def test_replicas_of_a_node_meet_others_at_ports_of_their_own(connector, variables) -> None:
    first, second = plans(f"{{model: m/x, engine: vllm, num_replicas_per_node: 2, kv_connector: {connector}}}")
    known = {"VLLM_PORT"}
    found = {name for name in first.env if name.endswith("_PORT")}
    assert found == variables | known
    ports = [unit.env[name] for unit in (first, second) for name in found]
    assert len(set(ports)) == len(ports)


def test_sglang() -> None:
    (unit,) = plans("""
model: Qwen/Qwen3-32B
engine: sglang
tensor_parallel_size: 2
prompt_length: long
lora_adapters: [a=/a, b=/b]
max_num_seqs: 128
""")
    assert " ".join(unit.argv) == (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --host 127.0.1.1 --port 8001"
        " --served-model-name Qwen/Qwen3-32B --tp-size 2 --pp-size 1 --enable-metrics --max-running-requests 128"
        " --page-size 64 --nccl-port 20000 --enable-lora --lora-paths a=/a b=/b"
    )


def test_trtllm_and_llamacpp() -> None:
    (unit,) = plans("{model: /models/x, engine: trtllm, tensor_parallel_size: 2, max_model_len: 4096}")
    assert " ".join(unit.argv) == (
        "trtllm-serve /models/x --host 127.0.1.1 --port 8001 --tp_size 2 --pp_size 1 --max_seq_len 4096"
        " --max_batch_size 256 --extra_llm_api_options /state/cache/node1_r0/trtllm.yaml"
    )
    ((path, text),) = unit.files.items()
    assert path == unit.argv[-1]
    assert yaml.safe_load(text) == {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    (unit,) = plans(
        "{model: m/x, engine: trtllm, precision: bf16, prompt_length: long, gpu_memory_utilization: 0.8,"
        " kv_connector: nixl, kv_connector_config: {max_tokens_in_buffer: 8192}, engine_args: [--ep_size, '2']}"
    )
    assert unit.argv[-2:] == ("--ep_size", "2")
    assert " --kv_cache_free_gpu_memory_fraction 0.8 " in " ".join(unit.argv)
    (text,) = unit.files.values()
    assert yaml.safe_load(text) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "dtype": "bfloat16",
        "kv_cache_config": {"tokens_per_block": 64, "free_gpu_memory_fraction": 0.8},
        "cache_transceiver_config": {"backend": "NIXL", "max_tokens_in_buffer": 8192},
    }
    (unit,) = plans("{model: /m.gguf, served_model_name: m, engine: llamacpp, max_model_len: 4096, max_num_seqs: 4}")
    assert " ".join(unit.argv) == (
        "llama-server -m /m.gguf --host 127.0.1.1 --port 8001 --alias m --metrics --parallel 4 --ctx-size 16384"
    )
    (unit,) = plans("{model: 'org/m-GGUF:Q4_K_M', served_model_name: m, engine: llamacpp, max_model_len: 4096}")
    assert " ".join(unit.argv) == (
        "llama-server -hf org/m-GGUF:Q4_K_M --host 127.0.1.1 --port 8001 --alias m --metrics --ctx-size 16384"
    ), "it chooses its own slots, not the 256 of engines that batch by tokens"


@pytest.mark.parametrize("engine", ["trtllm", "llamacpp"])
def test_engines_that_do_not_choose_adapters_by_name_refuse_them(engine) -> None:
    with pytest.raises(ConfigError, match="does not choose adapters by the model's name") as refused:
        plans(f"{{model: m/x, engine: {engine}, lora_adapters: [a=/a]}}")
    assert refused.value.param == "lora_adapters"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_checkpoint_that_is_published_quantised_gets_no_flag_that_could_contradict_it(engine, tmp_path) -> None:
    def flags(model: str, precision: str) -> list[str]:
        (unit,) = plans(f"{{model: '{model}', served_model_name: m, engine: {engine}, precision: {precision}}}")
        words = list(unit.argv)
        return [words[k + 1] for k, word in enumerate(words) if word in ("--quantization", "--dtype")]

    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for folder, config in ((plain, {}), (packed, {"quantization_config": {"quant_method": "compressed-tensors"}})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    assert flags(str(plain), "fp8") == ["fp8"], "16-bit weights are made smaller as they load"
    assert flags(str(packed), "fp8") == []
    assert flags("org/Model-8B-Instruct", "fp8") == ["fp8"]
    assert flags("org/Model-8B-Instruct-FP8-dynamic", "fp8") == []
    assert flags(str(plain), "auto") == flags(str(packed), "auto") == [], "as published"
    assert flags(str(plain), "bf16") == ["bfloat16"]
    for published in ("awq", "int4", "int8", "mxfp4"):
        what = "exists only as published; a flag would choose a slower kernel or fail"
        assert flags(f"org/m-{published}", published) == [], what


def test_a_command_with_stages() -> None:
    (unit,) = plans("""
model: /m.gguf
engine: command
pipeline_parallel_size: 2
stage_command: [rpc-server, -H, "{host}", -p, "{stage_port}"]
engine_command: [llama-server, -m, "{model}", --port, "{port}", --rpc, "{stage_urls}", --json, '{"a":1}']
""")
    assert [stage.argv for stage in unit.stages] == [
        ("rpc-server", "-H", "127.0.1.1", "-p", "20002"),
        ("rpc-server", "-H", "127.0.1.1", "-p", "20003"),
    ]
    assert unit.argv == (
        "llama-server", "-m", "/m.gguf", "--port", "8001", "--rpc", "127.0.1.1:20002,127.0.1.1:20003",
        "--json", '{"a":1}',
    )  # fmt: skip
    assert unit.ports == (8001, 20002, 20003)


def test_block_sizes_by_length_of_prompts() -> None:
    sizes = {}
    for name in ("any", "short", "medium", "long"):
        (unit,) = plans(f"{{model: m/x, engine: vllm, prompt_length: {name}}}")
        sizes[name] = unit.argv[unit.argv.index("--block-size") + 1] if "--block-size" in unit.argv else None
    assert sizes == {"any": None, "short": "16", "medium": "32", "long": "64"}
    (unit,) = plans("{model: m/x, engine: vllm, prompt_length: short, block_size: 128}")
    assert "128" in unit.argv


def test_pools_share_a_node_without_sharing_cards_or_side_ports() -> None:
    units = plans("""
pools:
  - {model: m/a, engine: vllm, tensor_parallel_size: 2, num_replicas_per_node: 2}
  - {model: m/b, engine: vllm, base_port: 9001}
""")
    assert [unit.devices for unit in units] == [(0, 1), (2, 3), (4,)]
    assert len({unit.env["VLLM_PORT"] for unit in units}) == 3


def test_more_units_than_cards_is_an_error() -> None:
    with pytest.raises(ConfigError, match="node1 has 8 accelerators, but its replicas need 9"):
        plans("{model: m/x, engine: vllm, num_replicas_per_node: 12, accelerators_per_node: 16}")


def test_emulators_and_null_engines_take_no_cards() -> None:
    units = plans("{model: Llama-3.1-8B, engine: emulator, num_replicas_per_node: 9}")
    assert units[8].argv == ("emulate", "8") and not units[8].devices
    units = plans('{model: x, engine: "null", num_replicas_per_node: 12}')
    assert len(units) == 12 and not units[0].argv


def test_unknown_node_and_bad_adapter() -> None:
    with pytest.raises(ConfigError, match="no node 'x'"):
        plans("model: Llama-3.1-8B", node="x")
    with pytest.raises(ConfigError, match="name=path"):
        plans("{model: m/x, engine: vllm, lora_adapters: [oops]}")


def test_names_of_files() -> None:
    assert safe_name("meta/x/node1/r0") == "meta_x_node1_r0"
    assert "/" not in safe_name("../../etc/passwd")
