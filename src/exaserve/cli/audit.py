"""``exaserve audit``: what administrators did."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from exaserve.cli import key_flags as flags
from exaserve.cli.key_target import key_target
from exaserve.cli.nodes import TokenFile, plain

__all__ = ["audit"]


def audit(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many of the newest.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with what was before and after.")] = False,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Show what was done to keys, tenants and replicas, by whom, the newest last."""
    rows = key_target(state_dir, config, admin_url, admin_token_file).audit(count)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in reversed(rows):
        at = datetime.fromtimestamp(row["at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        typer.echo(plain(f"{at}  {row['who']}  {row['what']} {row['target']}".rstrip()))
    if not rows:
        typer.echo("nothing was done yet")
