"""``exaserve config``: check a cluster file, or show what it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["check", "group", "show"]

_File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Cluster file (YAML).", show_default=False, envvar="EXASERVE_CONFIG")
]


def group() -> typer.Typer:
    """The command with its two subcommands."""
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, help="Check a cluster file, or show what it comes to."
    )
    app.command("check")(check)
    app.command("show")(show)
    return app


def check(file: _File) -> None:
    """Check FILE as a start would: every problem with its line, its field and the repair. Exit code 2 if there is one.

    Secrets that it names must be readable here. Remarks are no problems.
    """
    from exaserve.config import read_cluster

    cluster, remarks = read_cluster(file, to_start=True)
    for remark in remarks:
        typer.echo(f"remark: {remark}", err=True)
    replicas = cluster.replicas()
    models = sorted({model for spec in replicas for model in spec.models})
    what = f"{len(replicas)} replica{'s' if len(replicas) != 1 else ''}"
    typer.echo(
        f"{file}: good ({what} of {', '.join(models) or 'models to be asked of them'})"
        if replicas
        else f"{file}: good (no replicas)"
    )


def show(file: _File) -> None:
    """Print every value in effect, defaults too, as a cluster file; tokens and passwords in it are masked (***)."""
    from exaserve.config import load_cluster, to_yaml

    typer.echo(to_yaml(load_cluster(file), mask=True), nl=False)
