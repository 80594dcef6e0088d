"""Keys at a whole gateway: who is asked, what is refused, what engines see, and how soon a change holds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import Watched, admin_of, client_of, running, until

from exaserve.control.document import Document
from exaserve.control.keydesk import Keydesk
from exaserve.control.records import LimitRule
from exaserve.domain.errors import ConfigError
from exaserve.gateway.app import Gateway
from exaserve.gateway.guard.secrets_file import SecretsFile
from exaserve.gateway.guard.store import Store

pytestmark = pytest.mark.may_block
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@contextlib.asynccontextmanager
async def kept(*engines: FakeEngine, folder: Path | None = None, **settings: Any) -> AsyncIterator[Watched]:
    """A gateway with a state folder, in front of engines that have a key of their own."""
    for engine in engines:
        engine.answers["/v1/chat/completions"] = (200, b'{"choices":[]}')
    options = {"engine_api_key": "sk-engines-own", "state_dir": folder}
    async with running(*engines, options=options, **settings) as gateway:
        await until(lambda: all(state.standing.available for state in gateway.scheduler.states().values()))
        yield gateway


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def made(gateway: Gateway, **wish: object) -> str:
    async with admin_of(gateway) as admin:
        answer = await admin.post("/keys", json=wish)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["secret"])


async def test_the_first_key_closes_the_endpoint_and_the_last_revoked_does_not_open_it(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as gateway, client_of(gateway) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        secret = await made(gateway, tenant="acme", name="one")
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        for headers in (
            bearer(secret),
            {"x-api-key": secret},
            {"Api-Key": secret},
            {"AUTHORIZATION": f"bearer {secret}"},
        ):
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
        async with admin_of(gateway) as admin:
            assert (await admin.post("/keys/one/revoke")).json()["revoked"] is True
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(secret))).status_code == 401
        assert not any(secret in line for line in gateway.lines)


async def test_401_comes_before_anything_else_is_said(tmp_path: Path) -> None:
    guarded = ("POST /v1/chat/completions", "POST /nowhere", "GET /nowhere", "PUT /v1/models", "GET /metrics")
    async with (
        FakeEngine() as engine,
        kept(engine, folder=tmp_path, auth="keys") as gateway,
        client_of(gateway) as client,
    ):
        for line in guarded:
            assert (await client.request(*line.split(), content=b"no json")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready?x=1")).status_code == 200
        assert (await client.options("/v1/chat/completions")).status_code == 204


async def test_a_key_sees_and_uses_only_its_models(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as gateway, client_of(gateway) as client:
        other, mine = await made(gateway, models=["other-*"]), await made(gateway, models=["m"])
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=bearer(other))
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "model")
        assert "'m'" in answer.json()["error"]["message"]
        for secret, names in ((other, []), (mine, ["m"])):
            listed = (await client.get("/v1/models", headers=bearer(secret))).json()["data"]
            assert [card["id"] for card in listed] == names
        assert (await client.get("/v1/models/m", headers=bearer(other))).status_code == 404
        listing = await made(gateway, routes=["models"])
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(listing))).status_code == 403
        assert (await client.get("/metrics", headers=bearer(mine))).status_code == 403


async def test_engines_get_their_own_key_and_never_the_clients(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as gateway, client_of(gateway) as client:
        secret = await made(gateway)
        engine.heads.clear()
        for headers in (bearer(secret), {"X-API-KEY": secret}, {"api-key": secret, "Authorization": "Basic eDp5"}):
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
        chats = [head for head in engine.heads if b"/v1/chat/completions" in head]
        assert len(chats) == 3
        for head in chats:
            assert secret.encode() not in head
            assert b"Basic" not in head
            assert head.count(b"Bearer sk-engines-own") == 1


async def test_what_a_command_writes_into_the_folder_holds_at_every_gateway_that_shares_it(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as one, kept(engine, folder=tmp_path) as two:
        secret = await made(one)
        async with client_of(two) as client:
            await until(lambda: two.core.guard is not None)
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(secret))).status_code == 200
            store = Store(tmp_path)  # as the command line does
            document = Document("command")
            document.merge(store.entries(), 2**62)
            done = Keydesk(document, SecretsFile(tmp_path).read()).revoke(one.keeper.desk.all_keys()[0].id)
            store.write([document.put(*change, 2**41) for change in done.changes])
            store.close()
            await until(lambda: one.keeper.desk.all_keys()[0].revoked and two.keeper.desk.all_keys()[0].revoked)
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(secret))).status_code == 401


async def test_peers_share_keys_also_those_that_were_away(tmp_path: Path) -> None:
    async with (
        FakeEngine() as engine,
        kept(engine, folder=tmp_path / "a", name="a", peer_listen="127.0.0.1:0") as one,
        client_of(one) as at_one,
    ):
        assert one.peering is not None
        peers = (one.peering.url,)
        before = await made(one, name="before")
        async with kept(engine, folder=tmp_path / "b", name="b", peers=peers) as two, client_of(two) as at_two:
            await until(lambda: two.core.guard is not None and two.control.secrets == one.control.secrets)
            assert (await at_two.post("/v1/chat/completions", json=CHAT, headers=bearer(before))).status_code == 200
            there = await made(two, name="there")
            await until(lambda: len(one.keeper.desk.all_keys()) == 2)
            assert (await at_one.post("/v1/chat/completions", json=CHAT, headers=bearer(there))).status_code == 200
        async with admin_of(one) as admin:  # while the other is away
            await admin.post("/keys/before/revoke")
        async with kept(engine, folder=tmp_path / "b", name="b", peers=peers) as two, client_of(two) as at_two:
            await until(lambda: not _has(two, "before"))
            assert (await at_two.post("/v1/chat/completions", json=CHAT, headers=bearer(before))).status_code == 401


def _has(gateway: Gateway, name: str) -> bool:
    try:
        gateway.keeper.desk.key(name)
    except ConfigError:
        return False
    return True


async def test_levers_outlive_the_gateway_and_reach_its_peers(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        name = f"127.0.0.1:{engine.port}"
        async with kept(engine, folder=tmp_path, name="a", peer_listen="127.0.0.1:0") as one:
            assert one.peering is not None
            async with kept(engine, name="b", peers=(one.peering.url,)) as two, admin_of(one) as admin:
                await admin.post(f"/replicas/{name}/weight", json={"weight": 0.25})
                await admin.post(f"/replicas/{name}/score", json={"score": 2.5})
                await admin.post("/policy", json={"policy": "round_robin"})
                state = two.scheduler.states()[next(iter(two.scheduler.states()))]
                await until(lambda: (state.standing.weight, state.standing.forced) == (0.25, 2.5))
                await until(lambda: two.scheduler.policy_name == "round_robin")
                assert (await admin.post(f"/replicas/{name}/drain")).json()["draining"] is True
                await until(lambda: state.standing.draining)
                assert (await admin.post(f"/replicas/{name}/undrain")).json()["draining"] is False
                await until(lambda: not state.standing.draining)
        async with kept(engine, folder=tmp_path) as again, admin_of(again) as admin:
            state = next(iter(again.scheduler.states().values()))
            assert (state.standing.weight, again.scheduler.policy_name) == (0.25, "round_robin")
            await admin.post(f"/replicas/{name}/weight", json={"weight": None})
            await admin.post("/policy", json={"policy": None})
            assert (state.standing.weight, again.scheduler.policy_name) == (1.0, "entropy")
            rows = (await admin.get("/audit?count=2")).json()["audit"]
            assert [(row["what"], row["after"]) for row in rows] == [("policy", None), ("weight", None)]
            assert rows[1]["before"] == "0.25"


async def test_nobody_else_can_read_the_folder_and_no_secret_is_in_the_database(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with FakeEngine() as engine, kept(engine, folder=folder) as gateway:
        secret = await made(gateway)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
            assert secret.encode() not in file.read_bytes()


async def test_a_key_that_is_revoked_under_load_is_refused_from_then_on(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as gateway, client_of(gateway) as client:
        secret = await made(gateway, name="one")
        statuses: list[int] = []

        async def keep_asking() -> None:
            while not statuses or statuses[-1] != 401:
                answer = await client.post("/v1/chat/completions", json=CHAT, headers=bearer(secret))
                statuses.append(answer.status_code)

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await until(lambda: len(statuses) > 20)
        async with admin_of(gateway) as admin:
            await admin.post("/keys/one/revoke")
        await asyncio.wait_for(asyncio.gather(*asking), 20)
        assert set(statuses) == {200, 401}


async def test_a_database_of_a_newer_version_or_a_damaged_one_is_said_at_the_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store._db.execute("PRAGMA user_version=99")
    store.close()
    with pytest.raises(ConfigError, match="newer version"):
        Store(tmp_path)
    (tmp_path / "control.sqlite").write_bytes(b"no database, only text " * 100)
    with pytest.raises(ConfigError, match=r"control\.sqlite: .*backup"):
        Store(tmp_path)


async def test_the_admin_api_names_what_is_wrong(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as gateway, admin_of(gateway) as admin:
        for body, param in (
            ({"tenant": ""}, "tenant"),
            ({"routes": ["all"]}, "routes[0]"),
            ({"allowance": {"rpm": 3}}, "allowance"),
        ):
            answer = await admin.post("/keys", json=body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
        many = await admin.post("/keys", json=[{"name": "a"}, {"name": "b", "secret": "short"}])
        assert many.status_code == 400
        assert (await admin.get("/keys")).json()["keys"] == [], "all or none"
        assert (await admin.get("/keys/none")).status_code == 404


async def test_an_endpoint_for_other_machines_asks_for_keys_or_is_said_to_be_open(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        with pytest.raises(ConfigError, match=r"gateway\.host: 0\.0\.0\.0 .*exaserve keys create"):
            async with kept(engine, folder=tmp_path, host="0.0.0.0"):
                pass
        async with kept(engine, folder=tmp_path, host="0.0.0.0", auth="open") as gateway:
            assert gateway.core.guard is None
            await made(gateway)
        async with kept(engine, folder=tmp_path, host="0.0.0.0") as gateway:
            assert gateway.core.guard is not None


async def test_a_reload_changes_limits_and_metrics_say_what_was_refused(tmp_path: Path) -> None:
    async with FakeEngine() as engine, kept(engine, folder=tmp_path) as gateway, client_of(gateway) as client:
        secret = await made(gateway)
        rules = (LimitRule(model="m", requests_per_minute=1),)
        gateway.reload(msgspec.structs.replace(gateway.cluster, limits=rules))
        statuses = [
            (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(secret))).status_code for _ in range(3)
        ]
        assert statuses == [200, 429, 429]
        shown = gateway.metrics.render().decode()
        assert 'exaserve_limit_refused_total{kind="requests"} 2' in shown
        assert "exaserve_keys 1" in shown
        gateway.reload(msgspec.structs.replace(gateway.cluster, limits=()))
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(secret))).status_code == 200
        assert not any("reload_needs_restart" in line for line in gateway.lines)
