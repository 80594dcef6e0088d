"""``exaserve status``: a gateway's replicas as a live table."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from exaserve.config import read_environment
from exaserve.domain.errors import ConfigError, ExaServeError

__all__ = ["Snapshot", "status", "table"]

_DEFAULT_URL = "http://127.0.0.1:8900"
_WIDE = 110
"""Columns from which the entropy's terms have room."""
_STYLES = {"healthy": "green", "ramping": "yellow", "half_open": "yellow", "ejected": "red", "unknown": "dim"}


class Snapshot(NamedTuple):
    """What the admin API said, and when (monotonic seconds)."""

    data: dict[str, Any]
    taken_at: float


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
    as_json: Annotated[bool, typer.Option("--json", help="Print what the admin API says, as JSON, and end.")] = False,
    interval_s: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show a gateway's replicas as a live table. Ctrl-C ends it."""
    import httpx
    from rich.console import Console

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
        snapshot = _look(client, url)
        if as_json:
            sys.stdout.write(json.dumps(snapshot.data, indent=2) + "\n")
            return
        console = Console()
        if once or not console.is_terminal:
            console.print(table(snapshot, None, console.width, None))
            return
        _live(client, url, console, snapshot, interval_s)


def _look(client: Any, url: str) -> Snapshot:
    """Asks once. ExaServeError with what to do where that fails."""
    import httpx

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
    except (ValueError, KeyError, TypeError):
        why = f"status {answer.status_code}, and not an admin API's answer"
    raise ExaServeError(f"{url}: {why}")


def _why(error: Exception) -> str:
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _live(client: Any, url: str, console: Any, first: Snapshot, interval_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    before: Snapshot | None = None
    now = first
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(table(now, before, console.width, console.height), refresh=True)
            try:
                time.sleep(interval_s)
            except KeyboardInterrupt:
                return
            try:
                before, now = now, _look(client, url)
            except ExaServeError as error:
                live.update(Text(error.message, style="red"), refresh=True)
            except KeyboardInterrupt:
                return


def table(now: Snapshot, before: Snapshot | None, width: int, height: int | None) -> Any:
    """The table for a terminal of ``width`` columns and ``height`` lines (None: as long as it gets).

    Rates need the snapshot before; the first look shows none. Where not all replicas fit, those that are not well come
    first.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    data = now.data
    rows = sorted(data["replicas"], key=_by_name)
    shown = rows
    if height is not None and len(rows) > (room := max(1, height - 8)):
        shown = sorted(rows, key=lambda row: row["eligible"] and row["state"] == "healthy")[:room]
    wide = width >= _WIDE
    grid = Table(box=None, pad_edge=False)
    grid.add_column("replica", no_wrap=True, overflow="ellipsis", max_width=width // 4)
    grid.add_column("state", no_wrap=True)
    heads = ["in fl", "run", "wait", "kv"]
    heads += ["queue s", "decode s", "mem s", "entropy s", "share", "tok/s in"] if wide else ["entropy s"]
    heads += ["age s", "req/s"]
    for head in heads:
        grid.add_column(head, justify="right", no_wrap=True)
    rates = _rates(now, before)
    for row in shown:
        grid.add_row(row["id"], _state(row), *_figures(row, rates.get(row["id"]), wide=wide))
    notes = [f"and {len(rows) - len(shown)} more"] if len(shown) < len(rows) else []
    if any(_incomplete(row) for row in shown):
        notes.append("* reports incomplete or missing")
    heads_up = [Text.from_markup(_title(now, before))]
    if data.get("peers"):
        heads_up.append(Text.from_markup(_peers(data["peers"])))
    if data.get("nodes") and data["nodes"]["nodes"]:
        heads_up.append(Text.from_markup(_nodes(data["nodes"])))
    return Group(*heads_up, grid, Text("; ".join(notes), style="dim"))


def _title(now: Snapshot, before: Snapshot | None) -> str:
    data = now.data
    well = sum(row["eligible"] for row in data["replicas"])
    parts = [
        f"[bold]{data['url']}[/bold]",
        f"policy {data['policy']}",
        f"{well} of {len(data['replicas'])} replicas ready",
        f"{data['in_flight']} in flight",
        f"{data['queued']} queued",
        f"{data['requests_total']} done",
    ]
    if before is not None and now.taken_at > before.taken_at:
        done = data["requests_total"] - before.data["requests_total"]
        parts.append(f"{done / (now.taken_at - before.taken_at):.1f} req/s")
    if data["stopping"]:
        parts.append("[red]stopping[/red]")
    return " · ".join(parts)


def _peers(peering: dict[str, Any]) -> str:
    """One line on the other gateways."""
    from rich.markup import escape

    connected, expected = peering["connected"], peering["expected"]
    style = "" if connected >= expected else "[yellow]"
    count = f"{style}{connected} of {expected} peers[/]" if style else f"{connected} of {expected} peers"
    worst = max((peer["lag_s"] for peer in peering["peers"]), default=0.0)
    told = peering["told_in_flight"]
    slow = sum(bool(peer.get("slow")) for peer in peering["peers"])
    note = f" · [yellow]{slow} too slow to decide by[/]" if slow else ""
    return f"gateway {escape(peering['name'])} · {count} · {told} told in flight · lag {worst * 1000:.1f} ms{note}"


def _nodes(nodes: dict[str, Any]) -> str:
    """One line on the nodes and their accelerators."""
    cards = nodes["accelerators"]
    parts = [f"{nodes['nodes']} nodes"]
    if cards["count"]:
        use = "" if cards["use"] is None else f", {cards['use']:.0%} busy"
        heat = "" if cards["celsius_max"] is None else f", hottest {cards['celsius_max']:.0f} °C"
        parts.append(f"{cards['count']} accelerators{use}{heat}")
    for key, text in (
        ("throttled", "throttled"),
        ("with_ecc_errors", "with ECC errors"),
        ("nodes_with_a_problem", "nodes whose accelerators do not answer"),
        ("watches", "found by watches"),
    ):
        if cards[key]:
            parts.append(f"[yellow]{cards[key]} {text}[/]")
    return " · ".join(parts)


def _rates(now: Snapshot, before: Snapshot | None) -> dict[str, float]:
    if before is None or now.taken_at <= before.taken_at:
        return {}
    counted = {row["id"]: row["requests_total"] for row in before.data["replicas"]}
    return {
        row["id"]: (row["requests_total"] - counted[row["id"]]) / (now.taken_at - before.taken_at)
        for row in now.data["replicas"]
        if row["id"] in counted
    }


def _state(row: dict[str, Any]) -> str:
    name = row["state"]
    style = _STYLES.get(name, "")
    if name in {"healthy", "ramping"} and not row["eligible"]:
        name, style = ("draining" if row["draining"] else "out"), "yellow"
    elif _incomplete(row):
        name, style = f"{name}*", "yellow"
    return f"[{style}]{name}[/]" if style else str(name)


def _incomplete(row: dict[str, Any]) -> bool:
    return bool(row["signals_missing"] or row["telemetry_error"])


def _figures(row: dict[str, Any], rate: float | None, *, wide: bool) -> list[str]:
    entropy = row["entropy"]
    kv = row["kv_use"]
    figures = [
        str(row["inflight"]),
        _number(row["running"]),
        _number(row["waiting"]),
        "-" if kv is None else f"{kv:.0%}",
    ]
    if wide:
        figures += [_seconds(entropy[f"{term}_s"]) for term in ("queued", "decode", "memory")]
        figures += [_seconds(entropy["total_s"]), f"{row['share'] * row['weight']:.2f}"]
        figures.append(f"{row['prefill_tokens_per_s']:.0f}")
    else:
        figures.append(_seconds(entropy["total_s"]))
    age = row["report_age_s"]
    return [*figures, "-" if age is None else f"{age:.1f}", "-" if rate is None else f"{rate:.1f}"]


def _number(value: int | None) -> str:
    """A dash where it is unknown, which is not zero."""
    return "-" if value is None else str(value)


def _seconds(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _by_name(row: dict[str, Any]) -> list[tuple[int, str | int]]:
    """``node2/r10`` after ``node2/r9``."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", row["id"]) if part]
