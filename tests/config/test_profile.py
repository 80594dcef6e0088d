"""A pool's measured profile."""

from __future__ import annotations

import pytest
import yaml

from exaserve.config import load_cluster, load_profile, pool_engine_profile
from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Calibration, calibration_document
from exaserve.perfmodel.fitting import Estimate


@pytest.fixture
def profile(tmp_path):
    constants = {
        "prefill_tokens_per_s": Estimate(7_000.0, 10.0),
        "decode_fixed_s": Estimate(0.02, 1e-4),
        "kv_bytes_per_token": Estimate(2048.0, 1.0),
    }
    one = Calibration(
        "m", "vllm", "", constants, {"kv_gb": Estimate(0.7, 0.1)}, {"kv_tokens_max": 90_000, "max_model_len": 4096}
    )
    path = tmp_path / "measured.yaml"
    path.write_text(yaml.safe_dump(calibration_document(one)))
    return path


def test_a_pool_takes_its_figures_from_the_profile_beside_its_file(tmp_path, profile):
    (tmp_path / "c.yaml").write_text("model: Llama-3.1-8B\nprofile: measured.yaml\ndecode_step_s: 0.5\n")
    cluster = load_cluster(tmp_path / "c.yaml")
    spec = cluster.replicas()[0]
    assert spec.prefill_tokens_per_s == 7_000.0
    assert spec.decode_step_s == 0.5, "what the file says itself wins"
    assert spec.kv_bytes_per_token == 2048.0
    assert (spec.kv_tokens_max, spec.max_model_len) == (90_000, 4096)
    assert pool_engine_profile(cluster.pools[0]).prefill_tokens_per_s == 7_000.0
    assert cluster.pools[0].profile == str(profile)
    assert (cluster.scheduling.literal_kv_gb, cluster.scheduling.literal_age_s) == (0.7, 0.5)


def test_replicas_that_run_already_have_it_too(tmp_path, profile):
    (tmp_path / "c.yaml").write_text("profile: measured.yaml\nreplicas: ['http://127.0.0.1:9']\n")
    assert load_cluster(tmp_path / "c.yaml").replicas()[0].prefill_tokens_per_s == 7_000.0


def test_without_a_profile_the_hardware_says(tmp_path):
    (tmp_path / "c.yaml").write_text("model: Llama-3.1-8B\nhardware: A100-80\n")
    assert pool_engine_profile(load_cluster(tmp_path / "c.yaml").pools[0]).prefill_tokens_per_s > 5_000.0


def test_step_times_are_those_of_the_pools_engine(tmp_path):
    def decode_s(engine: str) -> float:
        (tmp_path / "c.yaml").write_text(f"model: Llama-3.1-8B\nhardware: H100\nengine: {engine}\n")
        return pool_engine_profile(load_cluster(tmp_path / "c.yaml").pools[0]).decode_fixed_s

    assert decode_s("vllm") == decode_s("emulator")
    assert decode_s("vllm") != decode_s("sglang")


def test_missing_and_wrong_files_are_named(tmp_path):
    (tmp_path / "c.yaml").write_text("model: Llama-3.1-8B\nprofile: none.yaml\n")
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_cluster(tmp_path / "c.yaml")
    (tmp_path / "none.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_profile(tmp_path / "none.yaml")
