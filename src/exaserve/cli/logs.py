"""``exaserve logs``: last lines of engines' output."""

from __future__ import annotations

from typing import Annotated

import typer

from exaserve.cli.nodes import AdminUrl, Target, TokenFile, send_verb

__all__ = ["logs"]


def logs(
    target: Target,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=2000, help="How many.")] = 100,
    admin_url: AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Show the last lines that a node's engines printed, also of one that failed."""
    for line in send_verb("logs", target, admin_url, admin_token_file, lines=lines):
        typer.echo(line)
