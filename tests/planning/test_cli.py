"""``exaserve plan`` as a command: exit codes, files, JSON, errors that help."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.planning.test_logs import V0, V1

from exaserve.cli.main import main
from exaserve.config import load_cluster

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Result:
    exit_code: int
    output: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*args: str) -> Result:
        with pytest.raises(SystemExit) as caught:
            main(["plan", *args])
        code = caught.value.code
        return Result(code if isinstance(code, int) else 0, capsys.readouterr().out)

    return call


def test_a_name_is_enough(run: Run) -> None:
    result = run("Llama-3.1-8B")
    assert result.exit_code == 0, result.output
    assert "GPU KV cache size" in result.output
    assert "no demand given" in result.output.replace("\n", " ")


def test_a_folder_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    result = run(str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["model"]["layers"] == 4


def test_a_modelopt_checkpoint_s_second_file_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert json.loads(run(str(tmp_path), "--json").output)["model"]["format"] == "nvfp4"


def test_a_demand_that_is_not_held_exits_with_one(run: Run) -> None:
    assert run("Llama-3.1-8B", "--gpu", "L4", "--nodes", "1", "--rps", "10000").exit_code == 1
    assert run("Llama-3.1-405B", "--gpu", "L4", "--tp", "1", "--pp", "1").exit_code == 1


def test_the_written_file_is_a_cluster(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    result = run("Llama-3.1-8B", "--scenarios", "--rps", "100", "--write", str(path), "--pools")
    assert result.exit_code == 0, result.output
    assert len(load_cluster(path).pools) == 3


def test_sweep_writes_a_page(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    result = run("Llama-3.1-8B", "--rps", "50", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "<svg" in page.read_text()
    rows = json.loads(run("Llama-3.1-8B", "--rps", "50", "--sweep", "--json").output)
    assert {"hardware", "fmt", "tp", "works", "per_million_tokens"} <= set(rows[0])


def test_a_log_is_set_beside_the_prediction(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(V1)
    result = run("--check", str(path), "--gpu", "L40S", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert abs(rows["weights"]["deviation"]) < 0.03
    assert abs(rows["KV cache"]["deviation"]) < 0.05
    assert abs(rows["KV cache from the log's own memory"]["deviation"]) < 0.005
    path.write_text(V0)
    table = run("meta-llama/Llama-3.1-8B-Instruct", "--check", str(path), "--gpu", "RTX-3090")
    assert table.exit_code == 0, table.output
    assert "activation peak" in table.output


PROFILE = """\
kind: exaserve-profile
version: 1
model: meta-llama/Llama-3.1-8B-Instruct
engine: vllm 0.26
date: 2026-11-01
limits: {kv_tokens_max: 400000}
constants:
  prefill_tokens_per_s: {value: 5000.0, error: 50.0, unit: tokens/s}
  decode_fixed_s: {value: 0.03, error: 0.0001, unit: s per step}
"""


def test_a_profile_is_read_and_used(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "llama.yaml"
    path.write_text(PROFILE)
    args = ("Llama-3.1-8B", "--rps", "5", "--tp", "1", "--json")
    estimated, measured = json.loads(run(*args).output), json.loads(run(*args, "--profile", str(path)).output)
    assert measured["recommended"]["rate_max_s"] < estimated["recommended"]["rate_max_s"] / 2
    assert {t["name"]: t["source"] for t in measured["terms"]}["decode, empty"] == "measured"
    shown = run("Llama-3.1-8B", "--rps", "5", "--profile", str(path)).output
    assert "measured step times" in shown


def test_a_profile_of_another_model_or_a_broken_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "llama.yaml"
    path.write_text(PROFILE)
    for args in (("Llama-3.1-70B", "--profile", str(path)), ("Llama-3.1-8B", "--profile", str(tmp_path / "none.yaml")),
                 ("Llama-3.1-8B", "--sweep", "--profile", str(path))):  # fmt: skip
        with pytest.raises(SystemExit) as caught:
            main(["plan", *args])
        assert caught.value.code == 2
        assert "profile" in capsys.readouterr().err.lower()


@pytest.mark.parametrize("width", [60, 100, 120, 200])
@pytest.mark.parametrize(
    "args",
    [
        ("deepseek-ai/DeepSeek-R1", "--scenarios", "--rps", "50"),
        ("Llama-3.1-8B", "--rps", "30", "--sweep"),
        ("Llama-3.1-8B", "--rps", "30", "--explain"),
    ],
)
def test_no_figure_is_cut_at_any_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, width: int, args: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run(*args).output.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_without_a_demand_nothing_is_said_of_holding_it(run: Run) -> None:
    slow = run(
        "Llama-3.1-405B", "--gpu", "A100-80", "--format", "fp8", "--tp", "8", "--pp", "1", "--max-model-len", "8192"
    )
    assert "does not hold the demand" not in slow.output
    assert slow.exit_code == 0, slow.output
    network = run("deepseek-ai/DeepSeek-R1", "--nodes", "2", "--tp", "16", "--network", "ethernet-1")
    assert network.exit_code == 1
    assert "network is too slow" in network.output


def test_what_is_written_is_checked_first(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    big = ("Llama-3.1-405B", "--format", "bf16", "--rps", "2", "--tp", "8", "--write", str(path))
    assert run(*big).exit_code == 2
    assert not path.exists()
    two = run("Llama-3.1-8B", "--rps", "5", "--write", str(path), "--write-engine", "emulator")
    assert two.exit_code == 0, two.output
    replicas = len(load_cluster(path).replicas())
    assert f"starts {replicas} replicas" in path.read_text()
    assert replicas < 8


def test_users_make_a_rate(run: Run) -> None:
    few = json.loads(run("Llama-3.1-8B", "--users", "100", "--json").output)
    many = json.loads(run("Llama-3.1-8B", "--users", "10000", "--json").output)
    assert 2 < few["demand"]["rate_s"] < 5  # 100 users who read for 20 s and wait a few
    assert many["demand"]["rate_s"] == pytest.approx(100 * few["demand"]["rate_s"], rel=0.3)


def test_prices_of_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("cards: {h100: 7.0}\ncurrency: EUR\n")
    value = json.loads(run("Llama-3.1-8B", "--rps", "5", "--prices", str(path), "--json").output)
    assert value["cost"]["currency"] == "EUR"
    assert value["cost"]["hour"] == pytest.approx(7.0 * value["recommended"]["cards"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "Name a model"),
        (("No-Such-Model-9B",), "config.json"),
        (("Llama-3.1-8B", "--gpu", "H1000"), "Did you mean"),
        (("Llama-3.1-8B", "--format", "int3"), "Did you mean int8 or int4"),
        (("Llama-3.1-8B", "--network", "pigeon"), "Known"),
        (("Llama-3.1-8B", "--memory-gib", "many"), "GiB"),
        (("Llama-3.1-8B", "--partition", "a,b", "--pp", "2"), "layers per stage"),
        (("Llama-3.1-8B", "--utilization", "1.5"), "(0, 1]"),
        (("Llama-3.1-8B", "--prices", "/no/such/file"), "cannot be read"),
        (("Llama-3.1-8B", "--check", "/no/such/file"), "cannot be read"),
        (("Llama-3.1-8B", "--engine", "llama.cpp"), "llama-server"),
        (("bartowski/Llama-3.1-8B-GGUF",), "GGUF"),
        (("Llama-3.1-8B", "--gpu", "H100-9g.10gb"), "MIG slice"),
    ],
)
def test_mistakes_are_named(args: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *args])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_a_broken_config_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SystemExit) as caught:
        main(["plan", str(tmp_path)])
    assert caught.value.code == 2
    assert "no JSON" in capsys.readouterr().err


def test_every_term_is_explained(run: Run) -> None:
    result = run("Llama-3.1-8B", "--rps", "5", "--explain")
    assert "Every term" in result.output
    assert "M/G/k" in result.output
