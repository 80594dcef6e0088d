"""The flags of ``keys`` and ``tenants``: where, and how much may be used."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from exaserve.config.scalars import duration_s
from exaserve.control.records import Allowance
from exaserve.domain.errors import ConfigError

__all__ = [
    "AdminUrl",
    "Concurrency",
    "ConfigPath",
    "InputTpm",
    "Labels",
    "Models",
    "MoneyMonth",
    "OutputTpm",
    "Rpm",
    "StateDir",
    "TokensDay",
    "TokensMonth",
    "Tpm",
    "allowance_of",
    "expiry_of",
    "labels_of",
]

StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The gateway's state folder. [that of --config, or of port 8000]"),
]
ConfigPath = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The gateway's cluster file.")]
AdminUrl = Annotated[
    str | None, typer.Option("--admin-url", metavar="URL", help="A gateway's admin API, in place of a folder.")
]
Rpm = Annotated[int | None, typer.Option("--rpm", min=0, help="Requests in any minute.")]
Tpm = Annotated[int | None, typer.Option("--tpm", min=0, help="Prompt and generated tokens in any minute.")]
InputTpm = Annotated[int | None, typer.Option("--input-tpm", min=0, help="Prompt tokens in any minute.")]
OutputTpm = Annotated[int | None, typer.Option("--output-tpm", min=0, help="Generated tokens in any minute.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", min=0, help="Requests under way at one time.")]
TokensDay = Annotated[int | None, typer.Option("--tokens-per-day", min=0, help="Tokens in a day (UTC).")]
TokensMonth = Annotated[int | None, typer.Option("--tokens-per-month", min=0, help="Tokens in a month (UTC).")]
MoneyMonth = Annotated[float | None, typer.Option("--money-per-month", min=0, help="Cost in a month, by the prices.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAME", help="A model, or pattern such as llama-*. Repeat. [all]")
]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="Free text for reports. Repeat.")
]


def allowance_of(before: Allowance | None, **given: Any) -> Allowance | msgspec.UnsetType:
    """The allowance with what flags give laid over it; UNSET where they give nothing."""
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        return msgspec.UNSET
    return msgspec.structs.replace(before or Allowance(), **said)


def labels_of(texts: list[str] | None) -> dict[str, str] | msgspec.UnsetType:
    if texts is None:
        return msgspec.UNSET
    labels = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise ConfigError(f"--label {text}: write NAME=TEXT", param="--label")
        labels[name] = value
    return labels


def expiry_of(text: str | None) -> float | msgspec.UnsetType | None:
    """Seconds since 1970 of ``30d``, ``12h``, ``2027-01-31`` (its beginning, UTC) or ``never``; UNSET for None."""
    if text is None:
        return msgspec.UNSET
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
