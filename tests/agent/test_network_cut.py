"""A node behind a real link that is cut: a network namespace, a veth pair, an agent process inside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from random import Random

import httpx
import pytest
from tests.agent.namespace import Unavailable, ip, linked
from tests.gateway.running import until

from exaserve.config import load_cluster
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.app import Gateway
from exaserve.observe import EventLog

pytestmark = [pytest.mark.may_block, pytest.mark.slow]

NAME = f"exa{os.getpid() % 100_000}"
NET = f"10.213.{os.getpid() % 250}"


@pytest.fixture
def link():
    """A namespace with a link to it; yields the name of our end."""
    with contextlib.ExitStack() as stack:
        try:
            near = stack.enter_context(linked(NAME, NET))
        except Unavailable as error:
            pytest.skip(str(error))
        yield near


async def test_a_node_that_is_cut_off_is_out_and_comes_back(link, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("the secret of the inside")
    config = tmp_path / "cluster.yaml"
    config.write_text(
        f"model: m\nengine: 'null'\nbase_port: 18001\n"
        f"nodes: [{{name: far, address: {NET}.2}}, {{name: near, address: 127.0.77.1}}]\n"
        f"health: {{slow_start: 60s}}\n"
        f"gateway: {{port: 8000, admin_port: 8900, drain: 0s}}\n"
        f"agents: {{enabled: true, host: {NET}.1, port: 18902, token_file: {token}}}\n"
    )
    cluster = load_cluster(config)
    import msgspec

    cluster = msgspec.structs.replace(cluster, gateway=msgspec.structs.replace(cluster.gateway, port=0, admin_port=0))
    lines: list[str] = []
    gateway = Gateway(cluster, log=EventLog(lines.append), rng=Random(0), agent_token=token.read_text().strip())
    await gateway.start()
    agent = [sys.executable, "-m", "exaserve", "agent", "-c", str(config), "--node"]
    far = subprocess.Popen(["ip", "netns", "exec", NAME, *agent, "far"], stderr=subprocess.DEVNULL)
    near = subprocess.Popen([*agent, "near"], stderr=subprocess.DEVNULL)

    def eligible() -> set[str]:
        return {str(each) for each, state in gateway.scheduler.states().items() if state.eligible}

    async def served(count: int) -> list[str]:
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as client:
            body = {"model": "m", "prompt": "x", "max_tokens": 1}
            answers = [await client.post("/v1/completions", json=body) for _ in range(count)]
        assert all(answer.status_code == 200 for answer in answers)
        return [answer.headers["x-exaserve-replica"] for answer in answers]

    try:
        await until(lambda: eligible() == {"far/r0", "near/r0"}, 60)
        assert set(await served(8)) == {"far/r0", "near/r0"}
        ip("link", "set", link, "down")
        asked = asyncio.create_task(served(4))  # some of these go to the node that is not there any more
        await until(lambda: eligible() == {"near/r0"})
        assert set(await asked) == {"near/r0"}
        await asyncio.sleep(2.5)
        ip("link", "set", link, "up")
        await until(lambda: "far/r0" in eligible())
        assert gateway.fleet.view(ReplicaId("far/r0")).state == "ramping"
        assert gateway.scheduler.states()[ReplicaId("far/r0")].standing.ramp < 0.6
    finally:
        for process in (far, near):
            process.terminate()
            process.wait(30)
        await gateway.stop(0.0)
