"""What a start would refuse is refused by the check, with its field and the repair; what runs is called good."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaserve.config import load_cluster, parse_cluster, read_cluster, refuse_start
from exaserve.domain.errors import ConfigError

SECRET = "sixteen characters at least"


def errors(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    return caught.value.message


def written(folder: Path, text: str, **secrets: str) -> Path:
    for name, secret in secrets.items():
        (folder / name).write_text(secret)
    path = folder / "cluster.yaml"
    path.write_text(text.replace("FOLDER", str(folder)))
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: vllm\nnum_replicas_per_node: 16", ":3: num_replicas_per_node: the replicas of one node need 16"),
        ("engine: vllm\nnum_replicas_per_node: 9", "say so by accelerators_per_node"),
        ("engine: vllm\naccelerators_per_node: 4\ntensor_parallel_size: 8", "and a node has 4"),
        (
            "engine: sglang\ntensor_parallel_size: 8\npipeline_parallel_size: 3",
            ":4: pipeline_parallel_size: one replica needs 24 accelerators",
        ),
        ("engine: command\nengine_command: [serve]", ":3: engine_command: does not say {port}"),
        ("engine: command\nengine_command: [serve, '8001']\nnum_replicas_per_node: 2", "does not say {port}"),
        ("engine: vllm\nlora_adapters: [a=/a, justname]", "lora_adapters[1]: 'justname' is not an adapter"),
        ("engine: emulator\nlora_adapters: [justname]", "write name=path"),
        ("engine: trtllm\nlora_adapters: [a=/a]", "lora_adapters: trtllm does not choose adapters"),
        ("engine: llamacpp\nlora_adapters: [a=/a]", "lora_adapters: llamacpp does not choose adapters"),
        ("engine: sglang\nkv_connector: nixl\nkv_role: kv_producer", ":4: kv_role: SGLang moves KV between"),
        ("engine: sglang\nkv_connector: nixl", ":3: kv_connector: SGLang moves KV between"),
        ("engine: trtllm\nkv_connector: ucx\nkv_role: kv_consumer", "use kv_both"),
        ("engine: llamacpp\nkv_connector: nixl", "llamacpp moves no KV between replicas"),
        ("engine: vllm\nprecision: int8", ":3: precision: vllm does not make int8 of 16-bit weights"),
        ("engine: sglang\nprecision: int4", "or write precision: fp8"),
        ("engine: trtllm\nprecision: fp8", "trtllm does not make fp8"),
        ("engine: vllm\nnodes: [{name: ../../esc}]", "nodes[0].name: '../../esc' is no name"),
        ("engine: vllm\nnodes: [{name: '..'}]", "is no name"),
        ("engine: vllm\nnodes: [{name: a/b}]", "is no name"),
        ("engine: vllm\nnodes: [{name: ' a'}]", "is no name"),
        ("engine: vllm\nname: a/b", "name: 'a/b' is no name"),
        ("engine: 'null'\nagents: {enabled: true, port: 8000}", "agents.port: is the same as gateway.port (8000)"),
        ("engine: 'null'\ngateway: {host: 0.0.0.0, port: 9, admin_port: 9}", "admin_port: is the same as gateway.port"),
        ("engine: 'null'\ngateway: {linger: 30s}", "gateway.linger: is a part of gateway.drain (30s)"),
        ("engine: 'null'\nagents: {lost: 500ms}", "agents.lost: a busy machine delays a batch"),
        ("engine: 'null'\nagents: {interval: 1s}", "agents.interval: a busy machine"),
        ("engine: 'null'\nagents: {tls_cert: c, tls_key: k}", "agents.tls_cert: mutual TLS needs tls_ca beside it"),
        ("engine: 'null'\nagents: {tls_ca: c}", "mutual TLS needs tls_cert and tls_key"),
        ("engine: 'null'\nagents: {host: '[::1]'}", "agents.host: '[::1]': write an IPv6 address without brackets"),
        ("engine: 'null'\nagents: {gateways: [nowhere]}", "agents.gateways[0]: 'nowhere' is not an address"),
    ],
)
def test_what_a_start_would_refuse(text: str, words: str) -> None:
    assert words in errors(f"model: org/m\n{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "engine: vllm\nnum_replicas_per_node: 16\naccelerators_per_node: 16",
        "engine: vllm\nnum_replicas_per_node: 16\naccelerator: cpu",
        "engine: llamacpp\nnum_replicas_per_node: 16",
        "engine: command\nengine_command: [serve, '--port=8001']",
        "engine: command\nengine_command: [serve, '--port={port}']\nnum_replicas_per_node: 2",
        "engine: vllm\nkv_connector: NixlConnector\nkv_role: kv_producer",
        "engine: vllm\nprecision: fp8",
        "engine: vllm\nprecision: int8\nengine_args: [--quantization, experts_int8]",
        "engine: vllm\nprecision: int8\nserved_model_name: x\nname: pool-1",
        "engine: emulator\nprofile: measured.yaml",
    ],
)
def test_what_runs_is_good(text: str) -> None:
    parse_cluster(f"model: org/m-w8a8\n{text}\n")


def test_a_checkpoint_of_the_table_that_is_published_so_is_no_contradiction() -> None:
    parse_cluster("model: openai/gpt-oss-20b\nengine: vllm\nprecision: mxfp4\n")


MISFIT = "model: meta-llama/Llama-3.1-70B-Instruct\nengine: vllm\nprecision: bf16\n"


def test_a_model_that_does_not_fit_its_cards(tmp_path: Path) -> None:
    message = errors(f"{MISFIT}hardware: H100\n")
    assert ":1: model: meta-llama/Llama-3.1-70B-Instruct does not start on one H100: " in message
    assert "of weights a rank do not fit into 79.10 GiB" in message
    assert "40 attention heads" in errors("model: Qwen2.5-14B\nengine: vllm\nhardware: H100\ntensor_parallel_size: 3\n")
    assert "cache" in errors(f"{MISFIT}hardware: H100\ntensor_parallel_size: 2\nmax_model_len: 131072\n")
    parse_cluster(f"{MISFIT}hardware: H100\ntensor_parallel_size: 4\nmax_model_len: 8192\n")
    parse_cluster(f"{MISFIT}hardware: H100\nengine_args: [--cpu-offload-gb, '80']\n")
    parse_cluster("model: org/unknown-900B\nengine: vllm\nhardware: H100\n")
    _, remarks = read_cluster(written(tmp_path, MISFIT))
    assert len(remarks) == 1, "nobody said that the cards are H100"
    assert "If the cards are larger, say so by hardware: NAME" in remarks[0]


def test_large_batches_are_remarked(tmp_path: Path) -> None:
    _, remarks = read_cluster(written(tmp_path, "model: org/m\nengine: vllm\nmax_num_seqs: 4096\n"))
    assert len(remarks) == 1
    assert "cluster.yaml:3: max_num_seqs: 4096 sequences at once" in remarks[0]


def test_two_pools_of_one_name_and_ids_that_meet() -> None:
    pools = "pools:\n  - {{model: m, engine: 'null', name: a}}\n  - {{model: n, engine: 'null', {}}}\n"
    assert "pools[1].name: 'a' is also the name of pools[0]" in errors(pools.format("name: a, base_port: 9001"))
    meeting = "pools:\n  - {{model: m, engine: 'null'}}\n  - {{replicas: [{{url: '{}', id: '{}'}}]}}\n"
    assert "'node1/r0' is the id of a replica that runs" in errors(meeting.format("http://h:1", "node1/r0"))
    assert "is the address of a replica that runs" in errors(meeting.format("http://127.0.1.1:8001", "x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agents: {enabled: true, host: 0.0.0.0}", "agents.host: 0.0.0.0 can be reached from other machines"),
        ("agents: {enabled: true, gateways: ['10.0.0.1:8901']}", "agents.gateways[0]: 10.0.0.1:8901 can be reached"),
        ("agents: {enabled: true, token_file: FOLDER/none}", "agents.token_file: FOLDER/none: cannot be read"),
        ("agents: {enabled: true, token_file: FOLDER/short}", "short: must hold at least 16 ASCII characters"),
        ("agents: {enabled: true, token_file: FOLDER/lines}", "lines: holds 2 lines; a secret is one"),
        ("gateway: {admin_host: 0.0.0.0}", "gateway.admin_host: 0.0.0.0 can be reached from other machines"),
        ("gateway: {admin_host: 0.0.0.0, admin_token_file: FOLDER/empty}", "empty: is empty"),
        ("gateway: {peers: ['10.0.0.1:8902']}", "gateway.peers[0]: 10.0.0.1:8902 can be reached"),
        ("gateway: {peer_listen: '0.0.0.0:8902'}", "gateway.peer_listen: 0.0.0.0:8902 can be reached"),
        ("gateway: {engine_api_key_file: FOLDER/none}", "gateway.engine_api_key_file: FOLDER/none: cannot be read"),
    ],
)
def test_who_could_reach_it_and_with_which_secret(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, f"model: m\nengine: 'null'\n{text}\n", short="short", lines=f"{SECRET}\nmore", empty="")
    with pytest.raises(ConfigError) as caught:
        load_cluster(path, to_start=True)
    words = words.replace("FOLDER", str(tmp_path))
    assert words in caught.value.message
    assert "cluster.yaml:3:" in caught.value.message
    with pytest.raises(ConfigError) as again:
        refuse_start(load_cluster(path))
    assert words in again.value.message, "a command says the same after its flags"


def test_secrets_that_everyone_may_write_are_remarked(tmp_path: Path) -> None:
    text = "model: m\nengine: 'null'\nagents: {enabled: true, host: 0.0.0.0, token_file: FOLDER/token}\n"
    path = written(tmp_path, text, token=SECRET)
    (tmp_path / "token").chmod(0o666)
    cluster, remarks = read_cluster(path, to_start=True)
    assert len(remarks) == 1
    assert "agents.token_file: everyone on this machine may write" in remarks[0]
    assert refuse_start(cluster) == refuse_start(cluster, agent=True) == [remarks[0].partition(":3: ")[2]]
    (tmp_path / "token").chmod(0o644)
    assert read_cluster(path, to_start=True)[1] == []


def test_an_agent_needs_none_of_the_gateways_secrets(tmp_path: Path) -> None:
    text = "model: m\nengine: 'null'\ngateway: {admin_host: 0.0.0.0, admin_token_file: FOLDER/none}\n"
    assert refuse_start(load_cluster(written(tmp_path, text)), agent=True) == []


@pytest.mark.parametrize("text", ["", "---\n", "# nothing yet\n", "\n\n"])
def test_a_file_without_a_key_is_refused_since_it_may_be_half_written(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="holds no key; write at least one"):
        load_cluster(written(tmp_path, text))
    assert parse_cluster(text).pools == ()
