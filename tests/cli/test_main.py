from __future__ import annotations

import subprocess
import sys

import pytest

from exaserve import __version__
from exaserve.cli import main as cli
from exaserve.cli.form import form
from exaserve.domain.errors import CapacityError, ConfigError


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "exaserve", *args], capture_output=True, text=True, timeout=30, check=False
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"exaserve {__version__} ({form()})\n")


def test_help_lists_every_command_with_its_summary() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in cli.COMMANDS:
        assert name in done.stdout


def test_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom exaserve.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'uvloop', 'httpx', 'starlette', 'yaml', 'prometheus_client'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_command_exits_2_without_traceback() -> None:
    done = run("gatewya")
    assert done.returncode == 2
    assert "No such command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("nodes: must be 1 or more"), 2), (CapacityError("full"), 1), (KeyboardInterrupt(), 130)],
)
def test_error_of_ours_becomes_one_message(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        def main(self, **_: object) -> None:
            raise error

    monkeypatch.setattr(cli, "build", Failing)
    with pytest.raises(SystemExit) as exit_:
        cli.main([])
    assert exit_.value.code == code
    if not isinstance(error, KeyboardInterrupt):
        assert capsys.readouterr().err == f"error: {error}\n"


def test_help_shows_what_stands_in_brackets_and_wraps_paragraphs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["gateway", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "[entropy]" in shown
    assert "--config is read again when it changes, and on SIGHUP." in shown


def test_help_keeps_columns_in_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.strip().startswith("bench report") for line in lines)


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_help_at_80_columns_loses_nothing(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = []
    for width in ("300", "80"):
        monkeypatch.setenv("COLUMNS", width)
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        cut.append(capsys.readouterr().out.count("…"))
    assert cut[0] == cut[1]
