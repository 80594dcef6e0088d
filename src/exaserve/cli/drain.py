"""``exaserve drain``: take a node's replicas, or one, out of rotation."""

from __future__ import annotations

from typing import Annotated

import typer

from exaserve.cli.nodes import AdminUrl, Target, TokenFile, send_verb

__all__ = ["drain"]


def drain(
    target: Target,
    resume: Annotated[bool, typer.Option("--resume", help="Put them back into rotation.")] = False,
    admin_url: AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Take a node's replicas, or one of them, out of rotation; requests in flight go on and the engines stay up.

    Where no agents run, the gateways themselves drain its replicas, until told otherwise; also one without a node
    (127.0.0.1:8001).
    """
    for line in send_verb("resume" if resume else "drain", target, admin_url, admin_token_file):
        typer.echo(line)
