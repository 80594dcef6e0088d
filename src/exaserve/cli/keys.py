"""``exaserve keys``: who may use the endpoint."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from exaserve.cli.flags import command
from exaserve.cli.key_flags import AsJson, PlaceOptions, TermOptions
from exaserve.config.scalars import duration_s
from exaserve.control.keydesk import KeyChange, KeyWish
from exaserve.control.records import Allowance
from exaserve.domain.errors import ConfigError

__all__ = ["group"]

_IMPORT_MAX = 100_000
_COUNT_MAX = 10_000
_Key = Annotated[str, typer.Argument(metavar="KEY", help="A key's id, or its name.")]


def group() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help="Make, show, rotate and revoke API keys.")
    app.command("create")(command("create", CreateOptions, _create))
    app.command("list")(command("list", ListOptions, _list))
    app.command("show")(command("show", KeyOptions, _show))
    app.command("change")(command("change", ChangeOptions, _change))
    app.command("rotate")(command("rotate", RotateOptions, _rotate))
    app.command("revoke")(command("revoke", RevokeOptions, _revoke))
    app.command("import")(command("import", ImportOptions, _import))
    return app


@dataclass(frozen=True, kw_only=True)
class CreateOptions(PlaceOptions, TermOptions):
    """Of ``keys create``."""

    count: Annotated[int, typer.Option("--count", min=1, max=_COUNT_MAX, help="How many keys.")] = 1
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, to hand out.")] = False
    as_json: AsJson = False


def _create(o: CreateOptions) -> None:
    """Make a key. Its secret is shown once, now, and kept nowhere."""
    wish = KeyWish(**o.terms(Allowance()))
    made = o.target().create(
        [msgspec.structs.replace(wish, name=wish.name.replace("{n}", str(n))) for n in range(1, o.count + 1)]
    )
    if o.as_json:
        typer.echo(json.dumps(made if o.count > 1 else made[0], indent=2))
    elif o.as_csv:
        _as_csv(made, ("id", "tenant", "name", "secret"))
    elif not sys.stdout.isatty():
        for key in made:
            typer.echo(key["secret"])
    else:
        for key in made:
            typer.echo(f"{_called(key)}\n  {key['secret']}")
        typer.echo("Copy it now: the secret is kept nowhere and cannot be shown again.")


@dataclass(frozen=True, kw_only=True)
class ListOptions(PlaceOptions):
    """Of ``keys list``."""

    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None
    every: Annotated[bool, typer.Option("--all", help="Also revoked and expired ones.")] = False
    as_json: AsJson = False


def _list(o: ListOptions) -> None:
    """List keys, without their secrets."""
    keys = o.target().keys()
    now = datetime.now(UTC).timestamp()
    chosen = [
        key
        for key in keys
        if (o.tenant is None or key["tenant"] == o.tenant)
        and (o.every or not (key.get("revoked") or (key.get("expires_at") or now + 1) <= now))
    ]
    if o.as_json:
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


@dataclass(frozen=True, kw_only=True)
class KeyOptions(PlaceOptions):
    """Of ``keys show``, and of all that is done to one key."""

    key: _Key


def _show(o: KeyOptions) -> None:
    """Show one key as JSON, without its secret."""
    typer.echo(json.dumps(o.target().key(o.key), indent=2))


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(KeyOptions, TermOptions):
    """Of ``keys change``."""

    unlimited: Annotated[bool, typer.Option("--unlimited", help="No limits but those given with it.")] = False


def _change(o: ChangeOptions) -> None:
    """Change what a key may do; its secret stays."""
    target = o.target()
    before = None if o.unlimited else msgspec.convert(target.key(o.key).get("allowance", {}), Allowance)
    said = o.terms(before)
    if not said:
        raise ConfigError("nothing to change: give at least one option", param="KEY")
    typer.echo(json.dumps(target.change(o.key, KeyChange(**said)), indent=2))


@dataclass(frozen=True, kw_only=True)
class RotateOptions(KeyOptions):
    """Of ``keys rotate``."""

    grace: Annotated[str, typer.Option("--grace", metavar="TIME", help="How long the old secret is still taken.")] = (
        "24h"
    )
    as_json: AsJson = False


def _rotate(o: RotateOptions) -> None:
    """Give a key a new secret, shown once, now; the old one is taken for a while yet."""
    try:
        grace_s = duration_s(o.grace)
    except ValueError as error:
        raise ConfigError(f"--grace: {error}", param="--grace") from None
    made = o.target().rotate(o.key, grace_s)
    typer.echo(json.dumps(made, indent=2) if o.as_json else made["secret"])


@dataclass(frozen=True, kw_only=True)
class RevokeOptions(PlaceOptions):
    """Of ``keys revoke``."""

    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Ids or names.")]


def _revoke(o: RevokeOptions) -> None:
    """Revoke keys for good. Answers under way end by themselves; the next request is refused."""
    target = o.target()
    for named in o.keys:
        typer.echo(f"{_called(target.revoke(named))}  revoked")


@dataclass(frozen=True, kw_only=True)
class ImportOptions(PlaceOptions):
    """Of ``keys import``."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with a head line, or a JSON list.")]
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose they are where the file says nothing.")] = None


def _import(o: ImportOptions) -> None:
    """Take in keys that clients have already: columns secret, and tenant, name, models, priority, rpm, tpm.

    All of them, or none where one is wrong.
    """
    wishes = [_wish(row, number, o.file, o.tenant) for number, row in enumerate(_rows(o.file), 1)]
    if not wishes:
        raise ConfigError(f"{o.file}: holds no key", param="FILE")
    if len({wish.secret for wish in wishes}) < len(wishes):
        raise ConfigError(f"{o.file}: a secret stands there twice", param="FILE")
    for key in o.target().create(wishes):
        typer.echo(f"{_called(key)}  …{key['last4']}")


def _called(key: dict[str, Any]) -> str:
    return f"{key['id']}  {key['tenant']}  {key.get('name', '')}"


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
