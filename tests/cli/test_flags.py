"""Options as the fields of a dataclass; files that can be written; terminals of any encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from exaserve.cli.flags import command
from exaserve.cli.outputs import check_writable, write_text
from exaserve.domain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Flags:
    url: Annotated[str, typer.Argument(help="Where.")]
    rate: Annotated[float | None, typer.Option(help="How often.")] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False


def test_fields_become_options_and_come_back_typed() -> None:
    seen: list[Flags] = []

    def run(flags: Flags) -> None:
        """Says hello."""
        seen.append(flags)

    app = typer.Typer(add_completion=False)
    app.command("hello")(command("hello", Flags, run))
    done = CliRunner().invoke(app, ["http://x", "--rate", "2.5", "--quiet"])
    assert done.exit_code == 0, done.output
    assert seen == [Flags(url="http://x", rate=2.5, quiet=True)]
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Says hello." in shown
    assert "How often." in shown
    assert CliRunner().invoke(app, []).exit_code == 2


def test_a_file_that_cannot_be_written_is_told_and_a_check_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--json: .*no/such/x.json cannot be written"):
        check_writable(tmp_path / "no/such/x.json", "--json")
    check_writable(tmp_path / "x.json", "--json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "y").write_text("kept")
    check_writable(tmp_path / "y", "--json")
    assert (tmp_path / "y").read_text() == "kept"
    write_text(tmp_path / "y", "± 3 µs\n", "--json")
    assert (tmp_path / "y").read_bytes() == "± 3 µs\n".encode()


def test_an_ascii_terminal_gets_words_for_signs() -> None:
    code = (
        "from exaserve.cli.outputs import speak_any_encoding; speak_any_encoding(); "
        "print('\\u00b1 3 \\u00b5s, 2 \\u2026 \\u4e2d')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "+- 3 us, 2 ... ?\n"
