"""``exaserve simulate`` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exaserve.cli.main import main

CLUSTER = """\
model: Llama-3.1-8B-Instruct
hardware: H100
num_replicas_per_node: 4
nodes: 2
"""
QUICK = ("--seconds", "4", "--mix", "600/20")


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["simulate", *args])
    return int(end.value.code or 0)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


def test_the_comparison_in_all_its_forms(file: str, tmp_path: Path, capsys) -> None:
    result, page = tmp_path / "result.json", tmp_path / "report.html"
    assert run(file, *QUICK, "--policies", "round_robin,entropy", "--json", str(result), "--html", str(page)) == 0
    printed = capsys.readouterr().out
    assert "8 replicas of Llama-3.1-8B-Instruct" in printed
    assert "round_robin" in printed
    found = json.loads(result.read_text())
    assert found["parameters"]["load"] == pytest.approx(0.8)
    assert set(found["policies"]) == {"round_robin", "entropy"}
    assert found["policies"]["entropy"]["scenarios"]["all"]["failed"] == 0
    html = page.read_text()
    assert "<svg" in html
    assert "round_robin" in html
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_one_seed_one_file(file: str, tmp_path: Path) -> None:
    texts: list[str] = []
    for seed in ("3", "3", "4"):
        path = tmp_path / f"{len(texts)}.json"
        run(file, *QUICK, "--policies", "entropy", "--seed", seed, "--json", str(path))
        texts.append(path.read_text())
    assert texts[0] == texts[1] != texts[2]


def test_what_if_flags(file: str, tmp_path: Path) -> None:
    script, result = tmp_path / "events.yaml", tmp_path / "result.json"
    script.write_text("- {at: 1s, fail: node1/r0}\n- {at: 2s, rate: 2}\n")
    flags = ("--replicas", "6", "--gateways", "2", "--told-ms", "1", "--staleness", "0.5", "--report-loss", "0.1")
    assert run(file, *QUICK, *flags, "--events", str(script), "--policies", "entropy", "--json", str(result)) == 0
    found = json.loads(result.read_text())["parameters"]
    assert (found["replicas"], found["gateways"], found["told_ms"], found["events"]) == (6, 2, 1.0, 2)


def test_objectives_decide_the_exit_code(file: str, capsys) -> None:
    assert run(file, *QUICK, "--policies", "entropy", "--slo", "p99_ttft_ms<=60000") == 0
    assert run(file, *QUICK, "--policies", "entropy", "--slo", "p99_ttft_ms<=0.001") == 1
    assert "MISSED" in capsys.readouterr().out


def test_the_capacity_for_an_objective(file: str, tmp_path: Path, capsys) -> None:
    result = tmp_path / "result.json"
    flags = ("--replicas", "1", "--policies", "entropy", "--find-capacity", "--json", str(result))
    assert run(file, *QUICK, *flags, "--slo", "p99_ttft_ms<=300") == 0
    found = json.loads(result.read_text())["capacity"]["entropy"]
    assert found["rate_per_s"] > 0
    assert found["stats"]["scenarios"]["all"]["ttft_p99"] <= 0.3
    assert run(file, *QUICK, "--policies", "entropy", "--find-capacity") == 2
    assert "--slo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--policies", "fastest"), "not one of"),
        (("--policies", ","), "name at least one"),
        (("--mix", "64/x"), "64/x"),
        (("--mix", "1/64"), "--mix"),
        (("--slo", "p99<1"), "--slo"),
        (("--events", "missing.yaml"), "cannot be read"),
        (("--json", "/nowhere/x.json"), "--json: /nowhere/x.json cannot be written"),
        (("--html", "/nowhere/x.html"), "--html: /nowhere/x.html cannot be written"),
        (("--warmup", "100"), "--warmup: 100 s leave nothing of --seconds 60"),
        (("--trace", "missing.csv"), "--trace: missing.csv"),
    ],
)
def test_wrong_flags_are_explained_on_one_line(file: str, flags: tuple[str, ...], what: str, capsys) -> None:
    assert run(file, *flags) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


def test_events_after_the_end_are_refused(file: str, tmp_path: Path, capsys) -> None:
    script = tmp_path / "events.yaml"
    script.write_text("- {at: 2s, fail: node1/r0}\n- {at: 70s, recover: node1/r0}\n")
    assert run(file, "--events", str(script)) == 2
    assert "recover at 70 s comes after the end" in capsys.readouterr().err


TRACE: list[dict[str, Any]] = [
    {"timestamp": 150 * i, "input_length": 1536, "output_length": 5 + i % 3} for i in range(40)
]


def test_a_trace_is_replayed_as_recorded_with_its_common_beginnings(file: str, tmp_path: Path, capsys) -> None:
    found: dict[str, Any] = {}
    for name, ids in (("shared", 0), ("own", 1)):
        trace, result = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.json"
        lines = [{**row, "hash_ids": [k + ids * 100 * i for k in (0, 1, 2 + i)]} for i, row in enumerate(TRACE)]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        flags = ("--trace", str(trace), "--replicas", "1", "--policies", "entropy", "--warmup", "0.2")
        assert run(file, *flags, "--json", str(result)) == 0
        found[name] = json.loads(result.read_text())
    parameters, stats = found["shared"]["parameters"], found["shared"]["policies"]["entropy"]["scenarios"]
    assert parameters["seconds"] == pytest.approx(39 * 0.15, abs=0.01)
    assert parameters["rate_per_s"] == pytest.approx(1 / 0.15, rel=0.05)
    assert stats["all"]["requests"] == 38, "two were due in the warm-up"
    assert stats["medium"]["requests"] == 38
    own = found["own"]["policies"]["entropy"]["scenarios"]
    assert stats["all"]["ttft_p50"] < 0.7 * own["all"]["ttft_p50"], "two of three blocks are in the cache"
    recorded = str(tmp_path / "own.jsonl")
    assert run(file, "--trace", recorded, "--load", "0.5", "--seconds", "4", "--policies", "entropy") == 0
    assert "50% of capacity" in capsys.readouterr().out
    assert run(file, "--trace", recorded, "--find-capacity", "--slo", "p99_ttft_ms<=300") == 2
    assert "needs --seconds" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_comparison_fits_a_terminal_of_any_width(file: str, monkeypatch, capsys, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width if width != 80 else 81))
    assert run(file, "--seconds", "4", "--policies", "least_connections,entropy") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= max(width, 81 if width == 80 else 0)
    row = next(line for line in lines if line.startswith("least_connections")).split()
    figures = [float(word.rstrip("%").replace(",", "")) for word in row[1:] if word != "-"]
    assert len(figures) >= 4, "P99 of A, B, C and all at least"
    assert "…" not in "\n".join(lines)


def test_an_ascii_terminal_is_enough(file: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "exaserve", "simulate", file, *QUICK, "--policies", "entropy"],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "+- P99" in done.stdout
    assert done.stdout.isascii()


def test_a_load_above_capacity_is_said_not_to_hold(file: str, capsys) -> None:
    assert run(file, "--seconds", "40", "--mix", "600/20", "--load", "1.5", "--policies", "entropy:blind") == 0
    assert "not steady: open requests still grew" in " ".join(capsys.readouterr().out.split())
    assert run(file, "--seconds", "40", "--mix", "600/20", "--load", "0.7", "--policies", "entropy:blind") == 0
    assert "not steady" not in " ".join(capsys.readouterr().out.split())
