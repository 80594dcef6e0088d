"""The options of ``keys``, ``tenants`` and ``audit``: where, how much may be used, and what a key is for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from exaserve.cli.key_target import KeyTarget, key_target
from exaserve.cli.nodes import TokenFile
from exaserve.config.scalars import duration_s
from exaserve.control.records import ROUTE_GROUPS, SETTABLE, Allowance, PriorityName
from exaserve.domain.errors import ConfigError

__all__ = ["AsJson", "LimitOptions", "NameOptions", "PlaceOptions", "TermOptions"]

AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where the keys are."""

    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir", metavar="DIR", help="The gateway's state folder. [that of --config, or of port 8000]"
        ),
    ] = None
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The gateway's cluster file.")
    ] = None
    admin_url: Annotated[
        str | None, typer.Option("--admin-url", metavar="URL", help="A gateway's admin API, in place of a folder.")
    ] = None
    admin_token_file: TokenFile = None

    def target(self) -> KeyTarget:
        return key_target(self.state_dir, self.config, self.admin_url, self.admin_token_file)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much may be used, of which models."""

    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="A model, or pattern such as llama-*. Repeat. [all]"),
    ] = None
    rpm: Annotated[int | None, typer.Option("--rpm", min=0, help="Requests in any minute.")] = None
    tpm: Annotated[int | None, typer.Option("--tpm", min=0, help="Prompt and generated tokens in any minute.")] = None
    input_tpm: Annotated[int | None, typer.Option("--input-tpm", min=0, help="Prompt tokens in any minute.")] = None
    output_tpm: Annotated[int | None, typer.Option("--output-tpm", min=0, help="Generated tokens in any minute.")] = (
        None
    )
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=0, help="Requests under way at one time.")] = (
        None
    )
    tokens_per_day: Annotated[int | None, typer.Option("--tokens-per-day", min=0, help="Tokens in a day (UTC).")] = None
    tokens_per_month: Annotated[
        int | None, typer.Option("--tokens-per-month", min=0, help="Tokens in a month (UTC).")
    ] = None
    money_per_month: Annotated[
        float | None, typer.Option("--money-per-month", min=0, help="Cost in a month, by the prices.")
    ] = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="Free text for reports. Repeat.")
    ] = None

    def limits(self, before: Allowance | None) -> dict[str, Any]:
        """What the options say of allowance, models and labels, by field; an allowance is laid over ``before``, or
        with None over no limits at all."""
        bounds = {
            "requests_per_minute": self.rpm,
            "tokens_per_minute": self.tpm,
            "input_tokens_per_minute": self.input_tpm,
            "output_tokens_per_minute": self.output_tpm,
            "concurrent_requests": self.concurrency,
            "tokens_per_day": self.tokens_per_day,
            "tokens_per_month": self.tokens_per_month,
            "money_per_month": self.money_per_month,
        }
        said: dict[str, Any] = {}
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        if given or before is None:
            said["allowance"] = msgspec.structs.replace(before or Allowance(), **given)
        if self.model is not None:
            said["models"] = tuple(self.model)
        if self.label is not None:
            said["labels"] = dict(map(_label, self.label))
        return said


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """Whose a key is, and what for."""

    name: Annotated[str | None, typer.Option("--name", help="What people call it; {n} is its number with --count.")] = (
        None
    )
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose it is. [default]")] = None
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="30d, 12h, 2027-01-31 or never. [never]")
    ] = None
    route: Annotated[
        list[str] | None,
        typer.Option("--route", help="inference, models or metrics. Repeat. [inference and models]"),
    ] = None
    priority: Annotated[PriorityName | None, typer.Option("--priority", help="low, normal or high. [normal]")] = None
    may_say: Annotated[
        list[str] | None, typer.Option("--may-say", help="priority, tenant, destination or cache_salt. Repeat. [none]")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TermOptions(LimitOptions, NameOptions):
    """What a key is for, and how much."""

    def terms(self, before: Allowance | None) -> dict[str, Any]:
        """What the options say of a key, by field; see :meth:`limits`."""
        said = self.limits(before)
        if self.expires is not None:
            said["expires_at"] = _expiry(self.expires)
        if self.route is not None:
            said["routes"] = _among("--route", self.route, ROUTE_GROUPS)
        if self.may_say is not None:
            said["may_say"] = _among("--may-say", self.may_say, SETTABLE)
        given = {"name": self.name, "tenant": self.tenant, "priority": self.priority}
        return said | {field: value for field, value in given.items() if value is not None}


def _label(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise ConfigError(f"--label {text}: write NAME=TEXT", param="--label")
    return name, value


def _among(flag: str, given: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    for each in given:
        if each not in known:
            raise ConfigError(f"{flag} {each}: choose of {', '.join(known)}", param=flag)
    return tuple(given)


def _expiry(text: str) -> float | None:
    """Seconds since 1970 of ``30d``, ``12h``, ``2027-01-31`` (its beginning, UTC); None of ``never``."""
    if text == "never":
        return None
    try:
        if text.endswith("d") and text[:-1].replace(".", "", 1).isdigit():
            return time.time() + 86_400 * float(text[:-1])
        if text[:4].isdigit() and "-" in text:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return time.time() + duration_s(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--expires {text}: write a time from now such as 30d or 12h, a date such as 2027-01-31, or never",
            param="--expires",
        ) from None
