"""Bench and calibrate against a real engine."""

from __future__ import annotations

import json

import pytest
from tests.calibrate.command import exaserve
from tests.real_vllm.live import KEY

from exaserve.config import load_profile

pytestmark = pytest.mark.xdist_group("real_vllm")
"""One test process has them all, so that there is one server."""

RUNS = [
    "--prompts",
    "128,512,1024,2048",
    "--batches",
    "1,4,8",
    "--contexts",
    "64,768",
    "--repeats",
    "3",
    "--steps",
    "24",
]


def test_a_real_engine_is_measured_and_the_profile_says_what_it_does_not_know(real_vllm, tmp_path):
    path = tmp_path / "tiny.yaml"
    code, output = exaserve("calibrate", real_vllm, "--api-key", KEY, "-o", str(path), "--no-probes", *RUNS)
    assert code in (0, 1), output
    assert path.exists(), output
    found = load_profile(path)
    assert found.engine == "vllm"
    assert found.limits["max_model_len"] == 2048
    assert found.limits["kv_tokens_max"] == 524_288
    # 4 layers, 2 KV heads of 64 values, keys and values, two bytes each; by the engine's own word of its cache.
    assert found.value("kv_bytes_per_token") == pytest.approx(2 * 4 * 2 * 64 * 2, rel=0.1)
    named = {*found.constants, *(refusal.what for refusal in found.refused)}
    assert {"decode_fixed_s", "decode_per_seq_s", "decode_per_kv_token_s"} <= named, "measured or refused, never silent"
    if "prefill_tokens_per_s" in found.constants:
        assert 50.0 < found.value("prefill_tokens_per_s") < 1e6
        code, output = exaserve(
            "calibrate",
            real_vllm,
            "--api-key",
            KEY,
            "--check",
            str(path),
            *RUNS[:2],
            "--batches",
            "1",
            "--contexts",
            "64",
            "--repeats",
            "2",
            "--steps",
            "24",
        )
        assert "median error" in output


def test_bench_counts_what_the_engine_counts(real_vllm, tmp_path):
    path = tmp_path / "run.json"
    mix = tmp_path / "mix.yaml"
    mix.write_text("scenarios: {s: {prompt_tokens: 80, output_tokens: 8}, m: {prompt_tokens: 300, output_tokens: 4}}")
    code, output = exaserve(
        "bench",
        real_vllm,
        "--api-key",
        KEY,
        "--workload",
        str(mix),
        "--rate",
        "2",
        "--duration",
        "5",
        "--json",
        str(path),
        "--processes",
        "1",
    )
    assert code in (0, 4), output
    doc = json.loads(path.read_text())
    every = doc["summary"]["all"]
    assert every["ok"] == every["requests"] > 3
    assert every["prompt_tokens"] == every["prompt_planned"], "lengths are exact by the server's own count"
    assert every["tokens_known"] == every["ok"]
    assert doc["facts"]["prompt lengths"] == "by /tokenize, exact"
