"""The order and the patience in which a local cluster is stopped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.ports import free_ports

from exaserve.config import parse_cluster
from exaserve.local import cluster as module
from exaserve.local.cluster import STOP_GRACE_S, LocalCluster


@pytest.mark.parametrize(
    ("text", "others_s"),
    [
        ("{model: Llama-3.2-1B, gateway: {drain: 45s}}", 0.0),
        ("{model: m, engine: 'null', gateway: {drain: 45s}, agents: {enabled: true, drain: 20s, stop: 7s}}", 27.0),
    ],
)
async def test_the_gateway_is_stopped_first_and_has_its_drain(monkeypatch: pytest.MonkeyPatch, text, others_s) -> None:
    stopped: list[tuple[list[str], float]] = []

    async def stop_all(children: list[Any], grace_s: float) -> None:
        stopped.append(([child.name for child in children], grace_s))

    monkeypatch.setattr(module, "stop_all", stop_all)
    local = LocalCluster(parse_cluster(text.encode(), "test"))
    local._children = [SimpleNamespace(name="node1"), SimpleNamespace(name="gateway")]  # type: ignore[list-item]
    await local.stop()
    assert stopped == [(["gateway"], 45.0 + STOP_GRACE_S), (["node1"], others_s + STOP_GRACE_S)]


@pytest.mark.may_block
async def test_a_cluster_whose_admin_api_wants_a_token_comes_up(tmp_path: Path) -> None:
    token = tmp_path / "admin"
    token.write_text("sixteen characters at least")
    base = free_ports(3, neighbours=True, hosts=("127.0.0.1", "127.0.1.1"))[0]
    text = (
        f"model: m\nengine: 'null'\nbase_port: {base}\nagents: {{enabled: true, port: {base + 2}}}\n"
        f"gateway: {{port: {base}, admin_port: {base + 1}, admin_token_file: {token}, drain: 0}}\n"
    )
    async with LocalCluster(parse_cluster(text)) as local, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{local.admin_url}/nodes")).status_code == 401
