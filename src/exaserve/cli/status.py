"""``exaserve status``: a gateway's replicas as a live table."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exaserve.config import read_environment
from exaserve.domain.errors import ConfigError, ExaServeError

if TYPE_CHECKING:
    from rich.console import Console

    from exaserve.cli.status_table import Snapshot

__all__ = ["status"]

_DEFAULT_URL = "http://127.0.0.1:8900"
_ROWS_ONCE = 40
"""Replicas that ``--once`` shows unless asked for all: the worst."""


def status(
    admin: Annotated[
        str | None,
        typer.Option("--admin-url", "--admin", metavar="URL", help=f"Admin API of the gateway. [{_DEFAULT_URL}]"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--admin-token-file", "--token-file", metavar="FILE", help="Bearer token of the admin API."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    every: Annotated[bool, typer.Option("--all", help="With --once: every replica, not the worst 40.")] = False,
    by_node: Annotated[bool, typer.Option("--by-node", help="One line for each node; implies --once.")] = False,
    node: Annotated[list[str] | None, typer.Option("--node", metavar="NAME", help="Only these nodes.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="NAME", help="Only replicas in these states, such as failed.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only these models.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the admin API says, as JSON, and end.")] = False,
    interval_s: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show a gateway's replicas, the worst first, as a live table. Ctrl-C ends it."""
    import httpx
    from rich.console import Console

    from exaserve.cli import status_table
    from exaserve.cli.tables import log_wide

    url = (admin or read_environment().admin_url or _DEFAULT_URL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    headers = {}
    if token_file is not None:
        try:
            headers["authorization"] = f"Bearer {token_file.read_text('utf-8').strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--admin-token-file {token_file}: cannot be read: {error}", param="--admin-token-file"
            ) from None
    with httpx.Client(base_url=url, headers=headers, timeout=5.0, trust_env=False) as client:

        def look() -> Snapshot:
            found = _look(client, url)
            rows = status_table.chosen(found.data["replicas"], node or [], state or [], model or [])
            hidden = len(found.data["replicas"]) - len(rows)
            return found._replace(data={**found.data, "replicas": rows}, hidden=hidden)

        snapshot = look()
        if as_json:
            sys.stdout.write(json.dumps(snapshot.data, indent=2) + "\n")
            return
        console = Console()
        if by_node or once or not console.is_terminal:
            console = log_wide(console)
            shown = status_table.Shown(console.width, rows_max=None if every or state or node else _ROWS_ONCE)
            if by_node:
                console.print(status_table.by_node(snapshot, shown._replace(rows_max=None)))
            else:
                console.print(status_table.table(snapshot, None, shown))
            return
        _live(look, console, snapshot, interval_s)


def _look(client: Any, url: str) -> Snapshot:
    """Asks once. ExaServeError with what to do where that fails."""
    import httpx

    from exaserve.cli.status_table import Snapshot

    try:
        answer = client.get("/replicas")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExaServeError(
            f"no gateway answers at {url} ({_why(error)}); start one, or name its admin API by --admin-url"
        ) from None
    try:
        data = answer.json()
        if answer.status_code == 200 and "replicas" in data:
            return Snapshot(data, time.monotonic())
        why = data["error"]["message"]
        if answer.status_code == 404:
            why = (
                "this is not an admin API, perhaps the port for clients' requests; the admin API has a port of its own"
                f" ({_DEFAULT_URL} unless changed): give that by --admin-url"
            )
    except (ValueError, KeyError, TypeError):
        why = f"status {answer.status_code}, and not an admin API's answer"
    raise ExaServeError(f"{url}: {why}")


def _why(error: Exception) -> str:
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _live(look: Callable[[], Snapshot], console: Console, first: Snapshot, interval_s: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from exaserve.cli.status_table import Shown, table

    before: Snapshot | None = None
    now, trouble = first, ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            view = table(now, before, Shown(console.width, console.height - bool(trouble)))
            live.update(Group(Text(trouble, style="red"), view) if trouble else view, refresh=True)
            try:
                time.sleep(interval_s)
                before, now, trouble = now, look(), ""
            except ExaServeError as error:
                trouble = error.message
            except KeyboardInterrupt:
                return
