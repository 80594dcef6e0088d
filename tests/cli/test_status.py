"""``exaserve status``: the worst first with the reason, at any size, in any terminal."""

from __future__ import annotations

import io
import time
from typing import Any

import httpx
import pytest
from rich.console import Console

from exaserve.cli.status import _look
from exaserve.cli.status_table import Shown, Snapshot, by_node, chosen, table
from exaserve.domain.errors import ExaServeError


def row(name: str, state: str = "healthy", agent: str = "ready", reason: str = "", **more: Any) -> dict[str, Any]:
    eligible = state == "healthy" and agent == "ready"
    told = {"state": agent, "ready": eligible, "reason": reason, "restarts": 12, "pid": 4711}
    return {
        "id": name, "node": name.partition("/")[0], "models": ["m"], "state": state, "reason": "the gateway's own",
        "why_not": "" if eligible else "the gateway's own", "agent": told, "eligible": eligible, "draining": False,
        "weight": 1.0, "share": 1.0, "inflight": 123, "requests_total": 1000, "running": 100, "waiting": 23,
        "kv_use": 0.875, "report_age_s": 0.1, "signals_missing": [], "telemetry_error": "",
        "prefill_tokens_per_s": 33870.0,
        "entropy": {"queued_s": 1.234, "decode_s": 0.567, "memory_s": 0.089, "total_s": 1.89},
    } | more  # fmt: skip


def snapshot(rows: list[dict[str, Any]]) -> Snapshot:
    data = {
        "url": "http://127.0.0.1:8000", "policy": "entropy", "in_flight": 5, "queued": 0, "requests_total": 10,
        "stopping": False, "peers": None, "nodes": None, "replicas": rows,
    }  # fmt: skip
    return Snapshot(data, time.monotonic())


def printed(rows: list[dict[str, Any]], width: int = 120, view: Any = table, **more: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    args = (snapshot(rows), Shown(width, **more)) if view is by_node else (snapshot(rows), None, Shown(width, **more))
    console.print(view(*args))
    return out.getvalue()


MIXED = [
    row("node1/r0"),
    row("node2/r0", "unknown", "failed", "ended with exit code 1: wrong arguments: Value error, no"),
    row("node10/r0", "ejected", "backoff", "was ended by SIGKILL"),
    row("node3/r0", "unknown", "loading", "pid 12"),
    row("node4/r0", "ejected", "stopped", "stopped by an operator, until exaserve restart"),
    row("node5/r0", telemetry_error="status 404"),
    row("node6/r0", "ejected", why_not="3 failures in a row"),
]


def test_the_worst_is_first_and_says_why() -> None:
    text = printed(MIXED)
    lines = text.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("node")]
    assert names == ["node2/r0", "node10/r0", "node6/r0", "node4/r0", "node3/r0", "node5/r0", "node1/r0"]
    assert "failed: ended with exit code 1: wrong arguments: Value error, no (node2/r0)" in text
    assert "ejected: 3 failures in a row (node6/r0)" in text, "the gateway's own word where the agent calls it ready"
    assert "1 failed · 1 backoff · 1 ejected · 1 stopped · 1 loading" in text
    assert "healthy* " in text and "* reports incomplete or missing" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_tables_fit_by_leaving_out_columns_and_cut_no_figure(width) -> None:
    text = printed(MIXED, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    at = next(k for k, line in enumerate(lines) if line.startswith("replica"))
    heads = " ".join(lines[at - 1 : at + 1]).split()
    first = next(line for line in lines if line.startswith("node2/r0"))
    assert "123" in first.split()
    for head, value in (("entropy", "1.890"), ("kv", "88%"), ("tok/s", "33870"), ("decode", "0.567")):
        assert (value in first.split()) is (head in heads), "a column is shown whole or not at all"
    assert ("no room for" in text) is (width < 120)
    assert "…" not in text


def test_thousands_of_replicas_are_a_page() -> None:
    rows = [row(f"node{k // 12}/r{k % 12}") for k in range(3072)]
    rows[2000] = row("node166/r8", "unknown", "failed", "ended with exit code 1")
    for k in range(100, 112):
        rows[k] = row(rows[k]["id"], "unknown", "loading", "no completion yet")
    text = printed(rows, rows_max=40)
    assert len(text.splitlines()) < 60
    assert "1 failed · 12 loading · 3059 healthy" in text
    assert "loading: no completion yet (node8/r4, node8/r5, node8/r6 and 9 more)" in text
    assert "and 3032 more, none worse" in text
    assert len(printed(rows, height=30).splitlines()) <= 30


def test_one_line_for_each_node() -> None:
    rows = [row(f"node{k // 4}/r{k % 4}") for k in range(40)]
    rows[22] = row("node5/r2", "unknown", "failed", "x")
    lines = [line.split() for line in printed(rows, view=by_node).splitlines() if line.startswith("node")]
    assert [line[:3] for line in lines[1:3]] == [["node5", "4", "3"], ["node0", "4", "4"]]
    assert lines[1][-4:] == ["3", "healthy,", "1", "failed"]


def test_filters() -> None:
    def ids(**by: list[str]) -> list[str]:
        return [each["id"] for each in chosen(MIXED, by.get("nodes", []), by.get("states", []), by.get("models", []))]

    assert ids(nodes=["node1", "node3"]) == ["node1/r0", "node3/r0"]
    assert ids(states=["failed", "healthy"]) == ["node1/r0", "node2/r0", "node5/r0"]
    assert ids(models=["other"]) == []
    assert len(ids()) == len(MIXED)


def test_the_port_for_clients_is_recognised() -> None:
    body = {"error": {"message": "There is no /replicas here.", "type": "invalid_request_error"}}
    transport = httpx.MockTransport(lambda _request: httpx.Response(404, json=body))
    with (
        httpx.Client(base_url="http://127.0.0.1:8000", transport=transport) as client,
        pytest.raises(ExaServeError, match=r"a port of its own .*8900 unless changed.*--admin-url"),
    ):
        _look(client, "http://127.0.0.1:8000")


def test_what_was_not_chosen_is_counted_so_that_an_empty_table_is_not_taken_for_an_empty_cluster() -> None:
    console = Console(file=io.StringIO(), width=160, color_system=None, record=True)
    console.print(table(snapshot([])._replace(hidden=48), None, Shown(160)))
    assert "0 of 0 replicas ready (48 not chosen)" in console.export_text()


def test_a_state_that_says_it_all_has_no_line_of_its_own() -> None:
    text = printed([row("node1/r0", eligible=False, draining=True, why_not="draining")])
    assert "1 draining" in text
    assert "draining: draining" not in text
