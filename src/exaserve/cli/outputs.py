"""Files that commands write, and text that any terminal can take."""

from __future__ import annotations

import codecs
import io
import sys
from pathlib import Path

import typer

from exaserve.domain.errors import ConfigError

__all__ = ["STDOUT", "check_writable", "speak_any_encoding", "write_text"]

STDOUT = Path("-")
_ASCII = {
    "±": "+-",
    "µ": "u",
    "…": "...",
    "°": " deg ",
    "·": "-",
    "→": "->",
    "✓": "yes",
    "✗": "no",
    "≤": "<=",
    "≥": ">=",
}


def check_writable(path: Path | None, flag: str) -> None:
    """A run of minutes must not end in an error that could have been told at its start. Leaves nothing behind.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None or path == STDOUT:
        return
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"{flag}: {path} cannot be written: {error.strerror}", param=flag) from None


def write_text(path: Path, text: str, flag: str) -> None:
    """Writes UTF-8 whatever the locale says; ``-`` is standard output. ConfigError where it cannot be written."""
    if path == STDOUT:
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}: {path} cannot be written: {error.strerror}", param=flag) from None


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def speak_any_encoding() -> None:
    """Standard output and error spell out what their encoding lacks (``+-`` for ``±``) instead of failing."""
    codecs.register_error("exaserve-spell", _spelled_out)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="exaserve-spell")
