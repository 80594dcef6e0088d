"""The command against an emulated replica whose constants are known: they come back."""

from __future__ import annotations

import re

import pytest
import yaml
from tests.calibrate.command import exaserve

from exaserve.config import load_profile
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess
from exaserve.perfmodel import Calibration, calibration_document, profile
from exaserve.perfmodel.fitting import Estimate

TRUTH = {
    "prefill_tokens_per_s": 40_000.0,
    "prefill_per_pair_s": 4e-9,
    "decode_fixed_s": 0.008,
    "decode_per_seq_s": 4e-4,
    "decode_per_kv_token_s": 4e-7,
}
ATTEMPTS = 3
RUNS = ["--prompts", "512,2048,4096,8192", "--batches", "1,4,16", "--contexts", "128,2048", "--repeats", "4"]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    constants = {name: Estimate(value, 0.0) for name, value in TRUTH.items()} | {
        "kv_bytes_per_token": Estimate(131_072.0, 0.0)
    }
    known = Calibration("Llama-3.1-8B", "vllm", "", constants, {}, {"kv_tokens_max": 200_000, "max_model_len": 16_384})
    path = tmp_path_factory.mktemp("profile") / "known.yaml"
    path.write_text(yaml.safe_dump(calibration_document(known)))
    with EmulatorProcess(EmulatorConfig(port=0, profile_file=str(path))) as process:
        yield process.urls[0]


def invoke(*arguments: str) -> tuple[int, str]:
    return exaserve("calibrate", *arguments)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_known_constants_come_back_and_the_profile_holds(emulator, tmp_path):
    seen = []
    for seed in range(1, ATTEMPTS + 1):  # other tests share the processor
        path = tmp_path / f"{seed}.yaml"
        code, output = invoke(emulator, "-o", str(path), "--no-probes", "--seed", str(seed), *RUNS)
        assert code in (0, 1), output
        found = load_profile(path)
        off = {name: found.value(name) / truth - 1.0 for name, truth in TRUTH.items()}
        seen.append(off)
        # A pair's cost is what is left over when all else is explained: five times as uncertain.
        if all(abs(v) < (0.25 if "pair" in name else 0.05) for name, v in off.items()):
            break
    else:
        raise AssertionError(seen)
    assert found.value("kv_tokens_per_token") == pytest.approx(1.0, rel=0.03)
    assert found.value("kv_bytes_per_token") == pytest.approx(131_072.0, rel=0.03)
    assert found.limits["kv_tokens_max"] == pytest.approx(200_000, rel=0.01)
    for name, estimate in found.constants.items():
        if name in TRUTH and "pair" not in name:
            assert estimate.error < 0.2 * estimate.value
    assert "written to" in output
    made = found.engine_profile()
    for sequences, context in ((2, 300), (12, 1500)):
        truth = TRUTH["decode_fixed_s"] + sequences * (
            TRUTH["decode_per_seq_s"] + context * TRUTH["decode_per_kv_token_s"]
        )
        assert made.step_s(0.0, sequences, sequences * context) == pytest.approx(truth, rel=0.05)
    code, output = invoke(emulator, "--check", str(path), "--seed", "77", *RUNS)
    assert re.search(r"median error [0-9.]+%", output), output
    assert code == 0, output


@pytest.mark.slow
def test_runs_that_carry_nothing_are_refused_in_words(emulator, tmp_path):
    path = tmp_path / "p.yaml"
    code, output = invoke(
        emulator, "-o", str(path), "--no-probes", "--prompts", "512", "--batches", "2", "--contexts", "128"
    )
    assert code == 1
    assert "refused: prefill rate" in output
    assert "refused: decode_per_seq_s" in output
    assert "Missing:" in output
    assert "prefill_tokens_per_s" not in load_profile(path).constants
    code, output = invoke(emulator, "--check", str(path), *RUNS[:2], "--batches", "1", "--contexts", "128")
    assert code in (0, 1)


@pytest.mark.slow
def test_few_runs_and_a_prediction_predict_batches_that_were_not_measured(emulator, tmp_path):
    path = tmp_path / "p.yaml"
    few = ("--no-probes", "--prompts", "128,2048", "--batches", "1,4,16", "--contexts", "128,1024", "--repeats", "3")
    code, output = invoke(emulator, "-o", str(path), *few, "--hardware", "RTX-4090", "--precision", "fp8")
    assert code == 0, output
    for text in ("predicted", "measured alone", "combined", "the prediction is believed to within"):
        assert text in output
    found = load_profile(path).engine_profile()
    predicted = profile("RTX-4090", "Llama-3.1-8B", "fp8")
    truth = TRUTH["decode_fixed_s"] + 48 * (TRUTH["decode_per_seq_s"] + 1000 * TRUTH["decode_per_kv_token_s"])
    before, after = (abs(p.step_s(0.0, 48, 48_000) / truth - 1.0) for p in (predicted, found))
    assert after < 0.3 * before, (before, after)


def test_wrong_options_are_said_before_anything_runs(tmp_path):
    for arguments, message in (
        (("http://127.0.0.1:9", "--prompts", "many"), "whole numbers"),
        (("127.0.0.1:9",), "is the replica up"),
        (("127.0.0.1:9", "--hardware", "H1000"), "H1000"),
        (("127.0.0.1:9", "--hardware", "H100", "--engine", "vlm"), "Did you mean vllm?"),
        (("127.0.0.1:9", "--check", str(tmp_path / "none.yaml")), "cannot be read"),
    ):
        code, output = invoke(*arguments)
        assert (code, message in output) == (2, True), output
