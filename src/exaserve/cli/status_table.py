"""What ``exaserve status`` shows: counts by state, what is wrong and why, and a table with the worst replicas first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from exaserve.cli.tables import Cell, Column, fitted

__all__ = ["Shown", "Snapshot", "by_node", "chosen", "table"]

Row = dict[str, Any]
_WORST_FIRST = (
    "failed",
    "backoff",
    "ejected",
    "half_open",
    "unknown",
    "out",
    "stopped",
    "stopping",
    "draining",
    "starting",
    "loading",
    "warming",
    "ramping",
)
"""Then those that lack a signal, then the rest."""
_STYLES = {
    "healthy": "green",
    "failed": "bold red",
    "backoff": "red",
    "ejected": "red",
    "unknown": "dim",
    "stopped": "dim",
    "healthy*": "yellow",
}
_TOLD = ("failed", "backoff", "stopped", "stopping", "starting", "loading", "warming", "draining")
"""An agent's states that say more than the gateway's, which knows only that the replica may not be used."""
_REASONS_MAX, _NAMED_MAX = 6, 3


class Snapshot(NamedTuple):
    """What the admin API said, when (monotonic seconds), and how many of its replicas the flags left out."""

    data: dict[str, Any]
    taken_at: float
    hidden: int = 0


class Shown(NamedTuple):
    """What is to be shown.

    Attributes:
        width / height: of the terminal; no height: as long as it gets.
        rows_max: replicas in the table, None for as many as have room.
    """

    width: int
    height: int | None = None
    rows_max: int | None = None


def chosen(rows: Iterable[Row], nodes: Sequence[str], states: Sequence[str], models: Sequence[str]) -> list[Row]:
    """Rows of these nodes, states and models; an empty filter lets everything through."""
    return [
        row
        for row in rows
        if (not nodes or row["node"] in nodes)
        and (not states or _state(row).rstrip("*") in states)
        and (not models or any(model in row["models"] for model in models))
    ]


def table(now: Snapshot, before: Snapshot | None, shown: Shown) -> RenderableType:
    """Everything for one look. Rates need the snapshot before; the first look shows none."""
    rows = sorted(now.data["replicas"], key=lambda row: (_rank(row), _by_name(row)))
    head = [*_head(now, before, shown.width), _counts(rows, shown.width)]
    reasons = _reasons(rows)
    used = sum(_lines(each, shown.width) for each in (*head, *reasons))
    room = len(rows) if shown.height is None else max(3, shown.height - used - 5)
    room = min(room, shown.rows_max or room)
    rates = _rates(now, before)
    columns = (*(Column(name, rank, left) for name, rank, left in _COLUMNS),)
    kept = rows[:room]
    grid = fitted(columns, [_cells(row, rates.get(row["id"])) for row in kept], shown.width)
    notes = []
    if len(kept) < len(rows):
        notes.append(f"and {len(rows) - len(kept)} more, none worse; --all shows them, --node and --state choose")
    if any(_incomplete(row) for row in kept):
        notes.append("* reports incomplete or missing")
    return Group(*head, *reasons, grid, Text("; ".join(notes), style="dim"))


def by_node(now: Snapshot, shown: Shown) -> RenderableType:
    """One line for each node, those with the most replicas out of service first."""
    nodes: dict[str, list[Row]] = {}
    for row in now.data["replicas"]:
        nodes.setdefault(row["node"] or "-", []).append(row)
    order = sorted(nodes.items(), key=lambda each: (-sum(not row["eligible"] for row in each[1]), _parts(each[0])))
    kept = order[: shown.rows_max or len(order)]
    names = ("node", "replicas", "ready", "in fl", "run", "wait", "kv", "states")
    ranks = (0, 0, 0, 2, 3, 3, 4, 1)
    columns = [Column(name, rank, name == "states", name == "states") for name, rank in zip(names, ranks, strict=True)]
    lines = [_node_cells(name, rows) for name, rows in kept]
    more = Text(f"and {len(order) - len(kept)} more nodes", style="dim") if len(kept) < len(order) else Text("")
    head = [*_head(now, None, shown.width), _counts(now.data["replicas"], shown.width)]
    return Group(*head, fitted(columns, lines, shown.width), more)


def _node_cells(name: str, rows: list[Row]) -> list[Cell]:
    uses = [row["kv_use"] for row in rows if row["kv_use"] is not None]
    states = Counter(_state(row) for row in rows)
    return [
        name,
        str(len(rows)),
        str(sum(row["eligible"] for row in rows)),
        str(sum(row["inflight"] for row in rows)),
        _number(_sum(row["running"] for row in rows)),
        _number(_sum(row["waiting"] for row in rows)),
        f"{sum(uses) / len(uses):.0%}" if uses else "-",
        ", ".join(f"{count} {state}" for state, count in states.most_common()),
    ]


# ---- above the table ------------------------------------------------------------------------------------------------
def _head(now: Snapshot, before: Snapshot | None, width: int) -> list[Text]:
    data = now.data
    well = sum(row["eligible"] for row in data["replicas"])
    parts: list[Cell] = [
        Text(data["url"], style="bold"),
        f"policy {data['policy']}",
        f"{well} of {len(data['replicas'])} replicas ready" + (f" ({now.hidden} not chosen)" if now.hidden else ""),
        f"{data['in_flight']} in flight",
        f"{data['queued']} queued",
        f"{data['requests_total']} done",
    ]
    if before is not None and now.taken_at > before.taken_at:
        done = data["requests_total"] - before.data["requests_total"]
        parts.append(f"{done / (now.taken_at - before.taken_at):.1f} req/s")
    if data["stopping"]:
        parts.append(Text("stopping", style="red"))
    lines = [_joined(parts, width)]
    if data.get("peers"):
        lines.append(_joined(_peers(data["peers"]), width))
    if data.get("nodes") and data["nodes"]["nodes"]:
        lines.append(_joined(_nodes(data["nodes"]), width))
    return lines


def _joined(parts: Sequence[Cell], width: int) -> Text:
    """Parts with dots between, broken between parts where the terminal is narrow."""
    text, used = Text(), 0
    for part in parts:
        if used and used + 3 + len(part) > width:
            text.append("\n")
            used = 0
        elif used:
            text.append(" · ")
            used += 3
        text.append(part) if isinstance(part, str) else text.append_text(part)
        used += len(part)
    return text


def _peers(peering: dict[str, Any]) -> list[Cell]:
    """On the other gateways."""
    connected, expected = peering["connected"], peering["expected"]
    count = Text(f"{connected} of {expected} peers", style="" if connected >= expected else "yellow")
    worst = max((peer["lag_s"] for peer in peering["peers"]), default=0.0)
    slow = sum(bool(peer.get("slow")) for peer in peering["peers"])
    note: list[Cell] = [Text(f"{slow} too slow to decide by", style="yellow")] if slow else []
    told = f"{peering['told_in_flight']} told in flight"
    return [f"gateway {peering['name']}", count, told, f"lag {worst * 1000:.1f} ms", *note]


def _nodes(nodes: dict[str, Any]) -> list[Cell]:
    """On the nodes and their accelerators."""
    cards = nodes["accelerators"]
    parts: list[Cell] = [f"{nodes['nodes']} nodes"]
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
            parts.append(Text(f"{cards[key]} {text}", style="yellow"))
    return parts


def _counts(rows: Sequence[Row], width: int) -> Text:
    counts = Counter(_state(row) for row in rows)
    order = sorted(counts, key=lambda state: _ranks().get(state, len(_WORST_FIRST)))
    return _joined([Text(f"{counts[state]} {state}", style=_STYLES.get(state, "yellow")) for state in order], width)


def _reasons(rows: Sequence[Row]) -> list[Text]:
    """Why replicas are out, the same reason once for all that have it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if not row["eligible"] and _reason(row) != _state(row):
            groups.setdefault((_state(row), _reason(row)), []).append(row["id"])
    lines = []
    for (state, reason), names in list(groups.items())[:_REASONS_MAX]:
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        line = Text(f"{state}: ", style=_STYLES.get(state, "yellow"))
        lines.append(line.append(f"{reason} ({', '.join(names[:_NAMED_MAX])}{more})", style="not bold default"))
    if len(groups) > _REASONS_MAX:
        lines.append(Text(f"and {len(groups) - _REASONS_MAX} more reasons", style="dim"))
    return lines


def _lines(text: Text, width: int) -> int:
    return sum(1 + max(0, len(line) - 1) // width for line in text.plain.split("\n"))


# ---- rows -----------------------------------------------------------------------------------------------------------
_COLUMNS = (
    ("replica", 0, True),
    ("state", 0, True),
    ("in fl", 1, False),
    ("run", 3, False),
    ("wait", 3, False),
    ("kv", 2, False),
    ("queue s", 7, False),
    ("decode s", 7, False),
    ("mem s", 7, False),
    ("entropy s", 4, False),
    ("share", 8, False),
    ("tok/s in", 8, False),
    ("restarts", 6, False),
    ("age s", 5, False),
    ("req/s", 4, False),
)
"""Name, rank (0 always stays, the highest goes first where room is short), and whether it is text."""


def _cells(row: Row, rate: float | None) -> list[Cell]:
    entropy, kv, age, agent = row["entropy"], row["kv_use"], row["report_age_s"], row.get("agent")
    state = _state(row)
    return [
        row["id"],
        Text(state, style=_STYLES.get(state, "yellow")),
        str(row["inflight"]),
        _number(row["running"]),
        _number(row["waiting"]),
        "-" if kv is None else f"{kv:.0%}",
        *(_seconds(entropy[f"{term}_s"]) for term in ("queued", "decode", "memory", "total")),
        f"{row['share'] * row['weight']:.2f}",
        f"{row['prefill_tokens_per_s']:.0f}",
        "-" if agent is None else str(agent["restarts"]),
        "-" if age is None else f"{age:.1f}",
        "-" if rate is None else f"{rate:.1f}",
    ]


def _state(row: Row) -> str:
    """The agent's word where it says more than the gateway can know."""
    agent = row.get("agent")
    if agent is not None and agent["state"] in _TOLD:
        return str(agent["state"])
    name = str(row["state"])
    if name in {"healthy", "ramping"} and not row["eligible"]:
        return "draining" if row["draining"] else "out"
    return f"{name}*" if _incomplete(row) else name


def _reason(row: Row) -> str:
    agent = row.get("agent")
    if agent is not None and agent["state"] in _TOLD:
        return str(agent["reason"])
    return str(row.get("why_not") or row.get("reason") or "")


def _ranks() -> dict[str, int]:
    return {state: rank for rank, state in enumerate(_WORST_FIRST)}


def _rank(row: Row) -> int:
    state = _state(row)
    if state in _WORST_FIRST:
        return _WORST_FIRST.index(state)
    return len(_WORST_FIRST) + (0 if _incomplete(row) else 1)


def _incomplete(row: Row) -> bool:
    return bool(row["signals_missing"] or row["telemetry_error"])


def _rates(now: Snapshot, before: Snapshot | None) -> dict[str, float]:
    if before is None or now.taken_at <= before.taken_at:
        return {}
    counted = {row["id"]: row["requests_total"] for row in before.data["replicas"]}
    return {
        row["id"]: (row["requests_total"] - counted[row["id"]]) / (now.taken_at - before.taken_at)
        for row in now.data["replicas"]
        if row["id"] in counted
    }


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: int | None) -> str:
    """A dash where it is unknown, which is not zero."""
    return "-" if value is None else str(value)


def _seconds(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _by_name(row: Row) -> list[tuple[int, str | int]]:
    return _parts(row["id"])


def _parts(name: str) -> list[tuple[int, str | int]]:
    """``node2/r10`` after ``node2/r9``."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]
