"""The reference configuration loads as it stands, and what it says is acted on."""

from __future__ import annotations

import pytest

from exaserve.config import parse_cluster, to_yaml
from exaserve.domain.errors import ConfigError

SKELETON = """\
model:
  name: meta-llama/Llama-3.1-70B-Instruct
  precision: fp8
  pipeline_parallel_size: 1
  tensor_parallel_size: 4
  num_replicas_per_node: 2
engine: vllm
scheduling:
  strategy: weighted_least_connection
  health_check_interval: 5s
  max_queue_depth: 32
  kv_cache_watermark: 0.85
network:
  backend: nccl
  ib_hca: mlx5_0,mlx5_1
  nccl_socket_ifname: eth0
"""


def test_the_skeleton_loads_as_it_stands() -> None:
    cluster = parse_cluster(SKELETON)
    (pool,) = cluster.pools
    assert (pool.model, pool.precision) == ("meta-llama/Llama-3.1-70B-Instruct", "fp8")
    assert (pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.num_replicas_per_node) == (4, 1, 2)
    assert cluster.scheduling.policy == "weighted_least_connections"
    assert pool.environment == {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "eth0"}
    assert parse_cluster(to_yaml(cluster)) == cluster


def test_a_skeleton_of_text_alone() -> None:
    bare = SKELETON.replace("engine: vllm\n", "").replace("fp8", "bf16")
    assert len(parse_cluster(bare).replicas()) == 2


@pytest.mark.parametrize(
    ("network", "variables"),
    [
        ("{backend: infiniband, ib_hca: [mlx5_0, mlx5_1]}", {"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5_0,mlx5_1"}),
        ("{backend: tcp, nccl_socket_ifname: =eth0}", {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "=eth0"}),
        ("{backend: auto}", {}),
    ],
)
def test_network_keys_reach_the_environment_of_every_engine(network: str, variables: dict[str, str]) -> None:
    text = f"network: {network}\npools:\n  - {{model: a, engine: vllm}}\n"
    text += "  - {model: {name: b}, engine: vllm, base_port: 9001, environment: {NCCL_NET: Own, X: y}}\n"
    text += "  - {replicas: ['http://h:1']}\n"
    first, second, running = parse_cluster(text).pools
    assert first.environment == variables
    assert second.environment == variables | {"NCCL_NET": "Own", "X": "y"}, "a pool's own wins"
    assert running.environment == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {name: a, precision: fp8}\nprecision: bf16", ":1: model.precision: says the same as precision"),
        ("model: {name: a, presicion: fp8}", ":1: presicion: unknown key; did you mean precision?"),
        ("model: {model: a}", "model.model: is written name here"),
        ("model: {precision: fp8}", "needs a model beside it"),
        ("model: [a]", "model: must be text"),
        ("network: {backend: token_ring}", "network.backend: 'token_ring' is not one of"),
    ],
)
def test_mistakes_in_other_spellings(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    assert words in caught.value.message
