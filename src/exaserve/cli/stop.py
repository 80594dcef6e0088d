"""``exaserve stop``: drain a node's replicas, or one, and stop them."""

from __future__ import annotations

import typer

from exaserve.cli.nodes import AdminUrl, DrainS, Target, TokenFile, send_verb

__all__ = ["stop"]


def stop(
    target: Target,
    drain_s: DrainS = None,
    admin_url: AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Drain a node's replicas, or one of them, and stop them. They stay stopped until ``exaserve restart``,
    also when the node's agent is started anew."""
    for line in send_verb("stop", target, admin_url, admin_token_file, drain_s=drain_s):
        typer.echo(line)
