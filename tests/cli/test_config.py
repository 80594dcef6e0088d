from __future__ import annotations

from pathlib import Path

import pytest

from exaserve.cli.main import main
from exaserve.config import parse_cluster


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(args))
    out, err = capsys.readouterr()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, out, err


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text("model: Llama-3-8B\nnodes: 2\nnum_replicas_per_node: 3\n")
    return path


def test_check_says_what_the_file_gives(cluster_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "config", "check", str(cluster_file)) == (
        0,
        f"{cluster_file}: good (6 replicas of Llama-3-8B)\n",
        "",
    )


def test_check_looks_as_a_start_would_and_remarks_are_no_problems(
    cluster_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = cluster_file.read_text()
    cluster_file.write_text(f"{text}max_num_seqs: 512\n")
    code, out, err = run(capsys, "config", "check", str(cluster_file))
    assert (code, out) == (0, f"{cluster_file}: good (6 replicas of Llama-3-8B)\n")
    assert err.startswith(f"remark: {cluster_file}:4: max_num_seqs: 512 sequences at once")
    cluster_file.write_text(f"{text}gateway: {{admin_host: 0.0.0.0}}\n")
    code, _, err = run(capsys, "config", "check", str(cluster_file))
    assert code == 2
    assert "gateway.admin_host: 0.0.0.0 can be reached from other machines" in err


def test_show_prints_a_file_with_the_same_meaning(cluster_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "config", "show", str(cluster_file))
    assert code == 0
    assert parse_cluster(out) == parse_cluster(cluster_file.read_bytes())


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_wrong_file_exits_2_with_every_problem(
    command: str, cluster_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster_file.write_text("modle: x\nnodes: 0\n")
    code, out, err = run(capsys, "config", command, str(cluster_file))
    assert (code, out) == (2, "")
    assert err == (
        f"error: 2 problems in {cluster_file}\n"
        f"  {cluster_file}:1: modle: unknown key; did you mean model?\n"
        f"  {cluster_file}:2: nodes: must be 1 or more, not 0\n"
    )


def test_the_file_may_come_from_the_environment(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXASERVE_CONFIG", str(cluster_file))
    assert run(capsys, "config", "check")[0] == 0
