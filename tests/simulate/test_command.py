"""``exaserve simulate`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

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
    ],
)
def test_wrong_flags_are_explained_on_one_line(file: str, flags: tuple[str, ...], what: str, capsys) -> None:
    assert run(file, *flags) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error
