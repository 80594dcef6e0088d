"""``exaserve tenants``: groups of keys with limits of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from exaserve.cli.flags import command
from exaserve.cli.key_flags import LimitOptions, PlaceOptions
from exaserve.control.keydesk import TenantChange
from exaserve.control.records import Allowance

__all__ = ["group"]


def group() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help="Limits, weights and models of tenants, over all their keys.")
    app.command("set")(command("set", SetOptions, _set))
    app.command("list")(command("list", PlaceOptions, _list))
    app.command("remove")(command("remove", TenantOptions, _remove))
    return app


@dataclass(frozen=True, kw_only=True)
class TenantOptions(PlaceOptions):
    """Of ``tenants remove``, and of all that is done to one tenant."""

    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="A tenant's name.")]


@dataclass(frozen=True, kw_only=True)
class SetOptions(TenantOptions, LimitOptions):
    """Of ``tenants set``."""

    weight: Annotated[
        float | None, typer.Option("--weight", help="Share of a saturated cluster against others. [1]")
    ] = None
    cache_group: Annotated[
        str | None, typer.Option("--cache-group", help="Tenants of one group share prefix caches. [its own]")
    ] = None
    disabled: Annotated[
        bool | None, typer.Option("--disabled/--enabled", help="Whether its keys are accepted.", show_default=False)
    ] = None
    unlimited: Annotated[bool, typer.Option("--unlimited", help="No limits but those given with it.")] = False


def _set(o: SetOptions) -> None:
    """Make a tenant, or change one; what is not given stays."""
    target = o.target()
    known = next((each for each in target.tenants() if each["name"] == o.tenant), {})
    before = None if o.unlimited else msgspec.convert(known.get("allowance", {}), Allowance)
    given = {"weight": o.weight, "cache_group": o.cache_group, "disabled": o.disabled}
    said = o.limits(before) | {field: value for field, value in given.items() if value is not None}
    typer.echo(json.dumps(target.set_tenant(o.tenant, TenantChange(**said)), indent=2))


def _list(o: PlaceOptions) -> None:
    """Show all tenants as JSON."""
    typer.echo(json.dumps(o.target().tenants(), indent=2))


def _remove(o: TenantOptions) -> None:
    """Forget a tenant, where none of its keys is in use."""
    o.target().remove_tenant(o.tenant)
    typer.echo(f"{o.tenant}  removed")
