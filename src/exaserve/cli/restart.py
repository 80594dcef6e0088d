"""``exaserve restart``: drain a node's replicas, or one, and start them again."""

from __future__ import annotations

import typer

from exaserve.cli.nodes import AdminUrl, DrainS, Target, TokenFile, send_verb

__all__ = ["restart"]


def restart(
    target: Target,
    drain_s: DrainS = None,
    admin_url: AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Drain a node's replicas, or one of them, and start them again."""
    for line in send_verb("restart", target, admin_url, admin_token_file, drain_s=drain_s):
        typer.echo(line)
