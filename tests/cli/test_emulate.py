"""``exaserve emulate --profile``: what is emulated, from what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from exaserve.cli.main import main
from exaserve.perfmodel import Calibration, calibration_document, profile
from exaserve.perfmodel.fitting import Estimate


def said(capsys: Any, *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as end:
        main(["emulate", *arguments, "--profile"])
    assert end.value.code in ((0, None) if not code else (code,))
    shown = capsys.readouterr()
    return str(shown.out + shown.err)


def test_what_is_predicted_is_shown_with_where_it_is_from(capsys: Any) -> None:
    text = " ".join(said(capsys, "--hardware", "H100").split())
    parts = ["a decode step of", "first token of 8,192 tokens", "KV cache: ", "80 % of measurements"]
    for part in [*parts, "Constants: vllm", "measured cards like this", "Nearest public measurements"]:
        assert part in text, part


def test_the_document_has_the_same(capsys: Any) -> None:
    found = json.loads(said(capsys, "--hardware", "H100", "--tp", "2", "--json"))
    made = profile("H100", "Llama-3.1-8B", tp=2)
    assert found["profile"]["decode_fixed_s"] == made.decode_fixed_s
    step = next(s for s in found["step_s"] if (s["sequences"], s["context"]) == (16, 1024))
    assert step["seconds"] == made.step_s(0.0, 16, 16 * 1024)
    assert found["first_token_s"]["1024"] == made.first_token_s(1024)
    assert found["interval"]["token"]["rows"] >= found["interval"]["token"]["configurations"] > 0
    assert found["nearest"]
    assert "reduce_s" in found["constants"]
    assert "experts" not in found["constants"]


def test_another_engine_has_other_step_times(capsys: Any) -> None:
    steps = {
        engine: json.loads(said(capsys, "--hardware", "H100", "--engine", engine, "--json"))["step_s"]
        for engine in ("vllm", "sglang", "trtllm")
    }
    assert steps["vllm"] != steps["sglang"] != steps["trtllm"]
    assert "Did you mean vllm?" in said(capsys, "--engine", "vlm", code=2)


def test_a_measured_profile_says_when_and_how_well_it_was_measured(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "p.yaml"
    constants = {"prefill_tokens_per_s": Estimate(9_000.0, 90.0), "decode_fixed_s": Estimate(0.01, 1e-4)}
    file = Calibration("Qwen3-8B", "vllm", "2026-01-01", constants)
    path.write_text(yaml.safe_dump(calibration_document(file)))
    text = " ".join(said(capsys, "--profile-file", str(path)).split())
    assert "Qwen3-8B on vllm, measured 2026-01-01" in text
    assert "prefill_tokens_per_s 1.0%" in text
    assert "Nearest public" not in text


def test_hardware_that_takes_no_time_is_from_nothing(capsys: Any) -> None:
    assert "computes nothing" in said(capsys, "--hardware", "null")
