"""Secrets that stand in a cluster file are not shown; settings are."""

from __future__ import annotations

import pytest

from exaserve.config import parse_cluster, to_yaml
from exaserve.config.mask import MASK, masked
from exaserve.config.show import shown_to_people

FILE = """\
model: m
engine: vllm
environment: {HF_TOKEN: hf_abcdefghijkl, MY_THING: plain, NCCL_IB_HCA: mlx5_0, VLLM_API_KEY: x, AWS_SECRET: y}
engine_args: [--api-key, hunter2, --hf-token=abc, --max-num-batched-tokens, "2048", --tokenizer, org/m]
kv_connector: LMCacheConnectorV1
kv_connector_config: {remote_url: "redis://user:pass@cache:6379", password: p, chunk: 256}
gateway: {admin_token_file: /etc/exaserve/admin.token}
"""


def test_a_cluster_is_shown_without_its_secrets_and_passed_on_with_them() -> None:
    cluster = parse_cluster(FILE)
    pool = shown_to_people(cluster)["pools"][0]
    assert pool["environment"] == {
        "HF_TOKEN": MASK, "MY_THING": MASK, "NCCL_IB_HCA": "mlx5_0", "VLLM_API_KEY": MASK, "AWS_SECRET": MASK,
    }  # fmt: skip
    assert pool["engine_args"] == [
        "--api-key", MASK, f"--hf-token={MASK}", "--max-num-batched-tokens", "2048", "--tokenizer", "org/m",
    ]  # fmt: skip
    assert pool["kv_connector_config"] == {"remote_url": f"redis://{MASK}@cache:6379", "password": MASK, "chunk": 256}
    assert shown_to_people(cluster)["gateway"]["admin_token_file"] == "/etc/exaserve/admin.token"
    assert "hunter2" not in to_yaml(cluster, mask=True)
    assert parse_cluster(to_yaml(cluster)).pools == cluster.pools, "a gateway that is started gets all of it"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://h:8500/x?token=abc&dc=1", f"http://h:8500/x?token={MASK}&dc=1"),
        ("https://u:p@h/x", f"https://{MASK}@h/x"),
        ("use sk-0123456789abcdef now", f"use {MASK} now"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("http://10.0.0.1:8001", "http://10.0.0.1:8001"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("key", ["token_budget", "prefill_tokens_per_s", "kv_tokens_max", "max_tokens", "tokenizer"])
def test_tokens_of_models_are_no_secrets(key: str) -> None:
    assert masked({key: "8"}) == {key: "8"}
