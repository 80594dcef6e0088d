"""``exaserve audit``: what administrators did."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from exaserve.cli.flags import command
from exaserve.cli.key_flags import PlaceOptions
from exaserve.cli.nodes import plain

__all__ = ["audit"]


@dataclass(frozen=True, kw_only=True)
class AuditOptions(PlaceOptions):
    """The command's options, as given."""

    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many of the newest.")] = 50
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with what was before and after.")] = False


def _audit(o: AuditOptions) -> None:
    """Show what was done to keys, tenants and replicas, by whom, the newest last."""
    rows = o.target().audit(o.count)
    if o.as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in reversed(rows):
        at = datetime.fromtimestamp(row["at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        typer.echo(plain(f"{at}  {row['who']}  {row['what']} {row['target']}".rstrip()))
    if not rows:
        typer.echo("nothing was done yet")


audit = command("audit", AuditOptions, _audit)
