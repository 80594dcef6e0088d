"""``exaserve tenants``: groups of keys with limits of their own."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from exaserve.cli import key_flags as flags
from exaserve.cli.key_target import key_target
from exaserve.cli.nodes import TokenFile
from exaserve.control.keydesk import TenantChange
from exaserve.control.records import Allowance

__all__ = ["group"]

TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="A tenant's name.")]


def group() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help="Limits, weights and models of tenants, over all their keys.")
    for command in (set_tenant, list_tenants, remove):
        app.command(command.__name__.removesuffix("_tenant").removesuffix("_tenants"))(command)
    return app


def set_tenant(
    tenant: TenantName,
    model: flags.Models = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Share of a saturated cluster against others. [1]")
    ] = None,
    cache_group: Annotated[
        str | None, typer.Option("--cache-group", help="Tenants of one group share prefix caches. [its own]")
    ] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disabled/--enabled", help="Whether its keys are accepted.", show_default=False)
    ] = None,
    rpm: flags.Rpm = None,
    tpm: flags.Tpm = None,
    input_tpm: flags.InputTpm = None,
    output_tpm: flags.OutputTpm = None,
    concurrency: flags.Concurrency = None,
    tokens_per_day: flags.TokensDay = None,
    tokens_per_month: flags.TokensMonth = None,
    money_per_month: flags.MoneyMonth = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="No limits but those given with it.")] = False,
    label: flags.Labels = None,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Make a tenant, or change one; what is not given stays."""
    target = key_target(state_dir, config, admin_url, admin_token_file)
    known = {} if unlimited else next((each for each in target.tenants() if each["name"] == tenant), {})
    allowance = flags.allowance_of(
        msgspec.convert(known.get("allowance", {}), Allowance), requests_per_minute=rpm, tokens_per_minute=tpm,
        input_tokens_per_minute=input_tpm, output_tokens_per_minute=output_tpm, concurrent_requests=concurrency,
        tokens_per_day=tokens_per_day, tokens_per_month=tokens_per_month, money_per_month=money_per_month,
    )  # fmt: skip
    if unlimited and allowance is msgspec.UNSET:
        allowance = Allowance()
    unset = msgspec.UNSET
    change = TenantChange(
        allowance=allowance,
        models=unset if model is None else tuple(model),
        weight=unset if weight is None else weight,
        cache_group=unset if cache_group is None else cache_group,
        labels=flags.labels_of(label),
        disabled=unset if disabled is None else disabled,
    )
    typer.echo(json.dumps(target.set_tenant(tenant, change), indent=2))


def list_tenants(
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Show all tenants as JSON."""
    typer.echo(json.dumps(key_target(state_dir, config, admin_url, admin_token_file).tenants(), indent=2))


def remove(
    tenant: TenantName,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Forget a tenant, where none of its keys is in use."""
    key_target(state_dir, config, admin_url, admin_token_file).remove_tenant(tenant)
    typer.echo(f"{tenant}  removed")
