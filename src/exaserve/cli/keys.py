"""``exaserve keys``: who may use the endpoint."""

from __future__ import annotations

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from exaserve.cli import key_flags as flags
from exaserve.cli.key_target import key_target
from exaserve.cli.nodes import TokenFile
from exaserve.config.scalars import duration_s
from exaserve.control.keydesk import KeyChange, KeyWish
from exaserve.control.records import ROUTE_GROUPS, SETTABLE, Allowance, PriorityName
from exaserve.domain.errors import ConfigError

__all__ = ["group"]

_IMPORT_MAX = 100_000
_COUNT_MAX = 10_000
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key's id, or its name.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Whose it is. [default]")]
Name = Annotated[str | None, typer.Option("--name", help="What people call it; {n} is its number with --count.")]
Routes = Annotated[
    list[str] | None,
    typer.Option("--route", help="inference, models or metrics. Repeat. [inference and models]"),
]
Priority = Annotated[PriorityName | None, typer.Option("--priority", help="low, normal or high. [normal]")]
MaySay = Annotated[
    list[str] | None, typer.Option("--may-say", help="priority, tenant, destination or cache_salt. Repeat. [none]")
]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="WHEN", help="30d, 12h, 2027-01-31 or never. [never]")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def group() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help="Make, show, rotate and revoke API keys.")
    for command in (create, show_list, show, change, rotate, revoke, import_keys):
        app.command({"show_list": "list", "import_keys": "import"}.get(command.__name__, command.__name__))(command)
    return app


def create(
    name: Name = None,
    tenant: Tenant = None,
    expires: Expires = None,
    model: flags.Models = None,
    route: Routes = None,
    priority: Priority = None,
    may_say: MaySay = None,
    rpm: flags.Rpm = None,
    tpm: flags.Tpm = None,
    input_tpm: flags.InputTpm = None,
    output_tpm: flags.OutputTpm = None,
    concurrency: flags.Concurrency = None,
    tokens_per_day: flags.TokensDay = None,
    tokens_per_month: flags.TokensMonth = None,
    money_per_month: flags.MoneyMonth = None,
    label: flags.Labels = None,
    count: Annotated[int, typer.Option("--count", min=1, max=_COUNT_MAX, help="How many keys.")] = 1,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, to hand out.")] = False,
    as_json: AsJson = False,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Make a key. Its secret is shown once, now, and kept nowhere."""
    given = _given(
        tenant, expires, model, route, priority, may_say, label,
        flags.allowance_of(
            None, requests_per_minute=rpm, tokens_per_minute=tpm, input_tokens_per_minute=input_tpm,
            output_tokens_per_minute=output_tpm, concurrent_requests=concurrency, tokens_per_day=tokens_per_day,
            tokens_per_month=tokens_per_month, money_per_month=money_per_month,
        ),
    )  # fmt: skip
    target = key_target(state_dir, config, admin_url, admin_token_file)
    wishes = [KeyWish(name=(name or "").replace("{n}", str(number)), **given) for number in range(1, count + 1)]
    made = target.create(wishes)
    if as_json:
        typer.echo(json.dumps(made if count > 1 else made[0], indent=2))
    elif as_csv:
        _as_csv(made, ("id", "tenant", "name", "secret"))
    elif not sys.stdout.isatty():
        for key in made:
            typer.echo(key["secret"])
    else:
        for key in made:
            typer.echo(f"{key['id']}  {key['tenant']}  {key.get('name', '')}\n  {key['secret']}")
        typer.echo("Copy it now: the secret is kept nowhere and cannot be shown again.")


def show_list(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also revoked and expired ones.")] = False,
    as_json: AsJson = False,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """List keys, without their secrets."""
    keys = key_target(state_dir, config, admin_url, admin_token_file).keys()
    now = datetime.now(UTC).timestamp()
    chosen = [
        key
        for key in keys
        if (tenant is None or key["tenant"] == tenant)
        and (every or not (key.get("revoked") or (key.get("expires_at") or now + 1) <= now))
    ]
    if as_json:
        typer.echo(json.dumps(chosen, indent=2))
        return
    if not chosen:
        hidden = f"; {len(keys)} others are revoked, expired or another tenant's (--all)" if keys else ""
        typer.echo(f"no keys{hidden}. Make one: exaserve keys create --tenant NAME --name NAME")
        return
    from rich.console import Console

    from exaserve.cli.tables import Column, print_table

    columns = [
        Column("id"), Column("tenant", left=True), Column("name", left=True, wrap=True),
        Column("secret", left=True), Column("models", 3, left=True, wrap=True),
        Column("limits", 1, left=True, wrap=True), Column("priority", 4, left=True),
         Column("expires", 2, left=True), Column("state", 5, left=True),
    ]  # fmt: skip
    rows = [
        (
            key["id"], key["tenant"], key.get("name", ""), f"{key.get('prefix', '')}…{key.get('last4', '')}",
            " ".join(key.get("models", ["*"])), _limits(key.get("allowance", {})), key.get("priority", "normal"),
            _day(key.get("expires_at")), "revoked" if key.get("revoked") else "",
        )
        for key in chosen
    ]  # fmt: skip
    print_table(Console(), "", columns, rows)


def show(
    key: Key,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Show one key as JSON, without its secret."""
    typer.echo(json.dumps(key_target(state_dir, config, admin_url, admin_token_file).key(key), indent=2))


def change(
    key: Key,
    name: Name = None,
    tenant: Tenant = None,
    expires: Expires = None,
    model: flags.Models = None,
    route: Routes = None,
    priority: Priority = None,
    may_say: MaySay = None,
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
    """Change what a key may do; its secret stays."""
    target = key_target(state_dir, config, admin_url, admin_token_file)
    before = msgspec.convert({} if unlimited else target.key(key).get("allowance", {}), Allowance)
    allowance = flags.allowance_of(
        before, requests_per_minute=rpm, tokens_per_minute=tpm, input_tokens_per_minute=input_tpm,
        output_tokens_per_minute=output_tpm, concurrent_requests=concurrency, tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month, money_per_month=money_per_month,
    )  # fmt: skip
    if unlimited and allowance is msgspec.UNSET:
        allowance = Allowance()
    given = _given(tenant, expires, model, route, priority, may_say, label, allowance)
    if name is not None:
        given["name"] = name
    if not given:
        raise ConfigError("nothing to change: give at least one option", param="KEY")
    typer.echo(json.dumps(target.change(key, KeyChange(**given)), indent=2))


def rotate(
    key: Key,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long the old secret is still taken.")
    ] = "24h",
    as_json: AsJson = False,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Give a key a new secret, shown once, now; the old one is taken for a while yet."""
    try:
        grace_s = duration_s(grace)
    except ValueError as error:
        raise ConfigError(f"--grace: {error}", param="--grace") from None
    made = key_target(state_dir, config, admin_url, admin_token_file).rotate(key, grace_s)
    typer.echo(json.dumps(made, indent=2) if as_json else made["secret"])


def revoke(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Ids or names.")],
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Revoke keys for good. Answers under way end by themselves; the next request is refused."""
    target = key_target(state_dir, config, admin_url, admin_token_file)
    for named in keys:
        gone = target.revoke(named)
        typer.echo(f"{gone['id']}  {gone['tenant']}  {gone.get('name', '')}  revoked")


def import_keys(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with a head line, or a JSON list.")],
    tenant: Tenant = None,
    state_dir: flags.StateDir = None,
    config: flags.ConfigPath = None,
    admin_url: flags.AdminUrl = None,
    admin_token_file: TokenFile = None,
) -> None:
    """Take in keys that clients have already: columns secret, and tenant, name, models, priority, rpm, tpm.

    All of them, or none where one is wrong.
    """
    wishes = [_wish(row, number, file, tenant) for number, row in enumerate(_rows(file), 1)]
    if not wishes:
        raise ConfigError(f"{file}: holds no key", param="FILE")
    if len({wish.secret for wish in wishes}) < len(wishes):
        raise ConfigError(f"{file}: a secret stands there twice", param="FILE")
    target = key_target(state_dir, config, admin_url, admin_token_file)
    for key in target.create(wishes):
        typer.echo(f"{key['id']}  {key['tenant']}  {key.get('name', '')}  …{key['last4']}")


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        text = file.read_text("utf-8-sig")
        rows = json.loads(text) if text.lstrip()[:1] == "[" else list(csv.DictReader(text.splitlines()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"is neither CSV nor JSON: {error}"
        raise ConfigError(f"{file}: {why}", param="FILE") from None
    if len(rows) > _IMPORT_MAX or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file}: must be at most {_IMPORT_MAX} objects", param="FILE")
    return rows


def _wish(row: dict[str, Any], number: int, file: Path, tenant: str | None) -> KeyWish:
    """One row; what is empty counts as not given."""
    said = {name: value for name, value in row.items() if value not in ("", None)}
    allowance = {
        long: said.pop(short)
        for short, long in (("rpm", "requests_per_minute"), ("tpm", "tokens_per_minute"))
        if short in said
    }
    if isinstance(said.get("models"), str):
        said["models"] = said["models"].split()
    if tenant is not None:
        said.setdefault("tenant", tenant)
    if allowance:
        said["allowance"] = allowance
    if "secret" not in said:
        raise ConfigError(f"{file}: row {number}: secret is missing", param="secret")
    try:
        return msgspec.convert(said, KeyWish, strict=False)
    except msgspec.ValidationError as error:  # its text names types and fields, never a value
        raise ConfigError(f"{file}: row {number}: {error}", param="FILE") from None


def _given(
    tenant: str | None,
    expires: str | None,
    models: list[str] | None,
    routes: list[str] | None,
    priority: PriorityName | None,
    may_say: list[str] | None,
    labels: list[str] | None,
    allowance: Allowance | msgspec.UnsetType,
) -> dict[str, Any]:
    """What flags say of a key, by field."""
    _among("--route", routes, ROUTE_GROUPS)
    _among("--may-say", may_say, SETTABLE)
    values: dict[str, Any] = {
        "tenant": msgspec.UNSET if tenant is None else tenant,
        "expires_at": flags.expiry_of(expires),
        "models": msgspec.UNSET if models is None else tuple(models),
        "routes": msgspec.UNSET if routes is None else tuple(routes),
        "priority": msgspec.UNSET if priority is None else priority,
        "may_say": msgspec.UNSET if may_say is None else tuple(may_say),
        "labels": flags.labels_of(labels),
        "allowance": allowance,
    }
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def _among(flag: str, given: list[str] | None, known: tuple[str, ...]) -> None:
    for each in given or ():
        if each not in known:
            raise ConfigError(f"{flag} {each}: choose of {', '.join(known)}", param=flag)


def _as_csv(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)


_SHORT = {
    "requests_per_minute": "rpm", "tokens_per_minute": "tpm", "input_tokens_per_minute": "input-tpm",
    "output_tokens_per_minute": "output-tpm", "concurrent_requests": "at once", "tokens_per_day": "tokens/day",
    "tokens_per_month": "tokens/month", "money_per_month": "money/month",
}  # fmt: skip


def _limits(allowance: dict[str, Any]) -> str:
    return ", ".join(f"{value:,g} {_SHORT[name]}" for name, value in allowance.items() if value is not None) or "none"


def _day(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
