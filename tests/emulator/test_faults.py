"""Each fault does what it says, and leaves a healthy replica when it is taken back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio
from tests.gateway.running import until

from exaserve.domain.errors import ConfigError
from exaserve.emulator.faults import Faults, merge
from exaserve.emulator.server import Emulator

Start = Callable[..., Awaitable[Emulator]]

Body = Callable[..., dict[str, object]]
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def emulator(start: Start) -> Emulator:
    return await start(replicas=2, control_port=0, load_s=0.05)


@pytest_asyncio.fixture
async def client(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.urls[0], timeout=30.0) as client:
        yield client


async def test_slow(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    async def duration() -> float:
        begin = time.monotonic()
        await client.post(CHAT, json=chat(max_tokens=30, ignore_eos=True))
        return time.monotonic() - begin

    normal = min([await duration() for _ in range(3)])
    answer = await client.post("/emulator/fault", json={"slow": 50})
    assert answer.json()["replicas"][0]["faults"]["slow"] == 50
    assert await duration() > 4 * normal
    await client.post("/emulator/fault", json={"clear": True})
    assert emulator.replicas[0].engine.slow == 1.0


async def test_freeze_and_thaw(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    running = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=1000, ignore_eos=True)))
    await until(lambda: emulator.replicas[0].engine.running)
    emulator.fault(0, freeze=True)
    held = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=3)))
    listed = asyncio.create_task(client.get("/v1/models"))
    done, _ = await asyncio.wait({running, held, listed}, timeout=0.3)
    assert not done
    # A frozen engine looks alive, which is what makes it dangerous.
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/metrics")).status_code == 200
    async with httpx.AsyncClient(base_url=emulator.urls[1]) as other:
        assert (await other.get("/v1/models")).status_code == 200
    emulator.fault(0, freeze=False)
    assert [r.status_code for r in await asyncio.gather(running, held, listed)] == [200, 200, 200]


async def test_a_client_that_gives_up_on_a_frozen_replica_leaves_nothing(
    emulator: Emulator, client: httpx.AsyncClient, chat: Body
) -> None:
    emulator.fault(0, freeze=True)
    with pytest.raises(httpx.ReadTimeout):
        await client.post(CHAT, json=chat(), timeout=httpx.Timeout(20, read=0.3))
    emulator.fault(0, freeze=False)
    engine = emulator.replicas[0].engine
    await until(lambda: not engine.running and not engine.waiting)
    assert engine.kv_use == 0.0


async def test_refuse_and_reopen(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    async with client.stream("POST", CHAT, json=chat(max_tokens=200, ignore_eos=True, stream=True)) as running:
        lines = running.aiter_lines()
        await anext(lines)
        emulator.fault(0, refuse=True)
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        assert emulator.replicas[0].state()["listening"] is False
        assert [line async for line in lines if line][-1] == "data: [DONE]"
    async with httpx.AsyncClient(base_url=str(emulator.control_url)) as other:
        control = await other.post("/emulator/fault", json={"replica": 0, "refuse": False})
    assert control.status_code == 200
    await until(lambda: emulator.replicas[0].state()["listening"])
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_reset_before_the_first_byte(
    emulator: Emulator, client: httpx.AsyncClient, chat: Body, stream: bool
) -> None:
    emulator.fault(0, reset="before")
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await client.post(CHAT, json=chat(stream=stream))
    assert emulator.replicas[0].engine.steps_total == 0
    emulator.fault(0, reset="never")
    assert (await client.post(CHAT, json=chat(stream=stream))).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_reset_after_the_first_byte(
    emulator: Emulator, client: httpx.AsyncClient, chat: Body, stream: bool
) -> None:
    emulator.fault(0, reset="after")
    got = b""

    async def read() -> None:
        nonlocal got
        async with client.stream("POST", CHAT, json=chat(stream=stream)) as answer:
            assert answer.status_code == 200
            async for part in answer.aiter_raw():
                got += part

    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await read()
    assert got
    assert b"[DONE]" not in got
    assert emulator.replicas[0].engine.kv_use == 0.0


async def test_errors_at_a_rate(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    emulator.fault(0, error_rate=0.5, error_status=503)
    codes = [(await client.post(CHAT, json=chat(max_tokens=1))).status_code for _ in range(60)]
    assert 15 < codes.count(503) < 45
    assert codes.count(503) + codes.count(200) == 60


@pytest.mark.parametrize("after", [0, 1, 5, 1000])
async def test_cut_in_the_middle(emulator: Emulator, client: httpx.AsyncClient, chat: Body, after: int) -> None:
    emulator.fault(0, cut_after=after)
    answer = await client.post(CHAT, json=chat(max_tokens=20, ignore_eos=True, stream=True))
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    assert '"finish_reason":"' not in answer.text
    assert answer.text.count('"content":" ') == min(after, 20)
    whole = await client.post(CHAT, json=chat(max_tokens=20))
    assert whole.json()["choices"]
    emulator.fault(0, cut_after=None)
    assert "[DONE]" in (await client.post(CHAT, json=chat(stream=True))).text


async def test_metrics_faults(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    async def scrape() -> str:
        return (await client.get("/metrics")).content.decode("utf-8", "replace")

    def generated(text: str) -> float:
        line = next(line for line in text.splitlines() if line.startswith("vllm:generation_tokens_total{"))
        return float(line.split()[-1])

    emulator.fault(0, metrics="frozen")
    await client.post(CHAT, json=chat(max_tokens=4, ignore_eos=True))
    assert generated(await scrape()) == 0
    emulator.fault(0, metrics="ok")
    assert generated(await scrape()) == 4
    emulator.fault(0, metrics="renamed")
    assert "vllm:gpu_cache_usage_perc{" in await scrape()
    assert "vllm:kv_cache_usage_perc" not in await scrape()
    emulator.fault(0, metrics="missing")
    assert "num_requests_waiting" not in await scrape()
    assert "num_requests_running" in await scrape()
    emulator.fault(0, metrics="garbage")
    assert "NaNNaN" in await scrape()
    emulator.fault(0, metrics="error")
    assert (await client.get("/metrics")).status_code == 500
    emulator.fault(0, metrics="hang")
    with pytest.raises(httpx.ReadTimeout):
        await client.get("/metrics", timeout=httpx.Timeout(20, read=0.3))
    assert (await client.get("/health")).status_code == 200


async def test_health_can_fail_alone(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    emulator.fault(0, health=False)
    assert (await client.get("/health")).status_code == 503
    assert (await client.post(CHAT, json=chat(max_tokens=1))).status_code == 200


async def test_kill_and_restart_lose_everything(emulator: Emulator, client: httpx.AsyncClient, chat: Body) -> None:
    await client.post(CHAT, json=chat("a long prompt " * 30, max_tokens=1))
    assert emulator.replicas[0].state()["blocks_cached"] > 0
    running = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=1500, ignore_eos=True)))
    await until(lambda: emulator.replicas[0].engine.running)
    emulator.replicas[0].kill()
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await running
    with pytest.raises(httpx.ConnectError):
        await client.get("/health")
    emulator.fault(0, refuse=False)  # taking back what was not set brings nothing back to life
    await asyncio.sleep(0.05)
    assert not emulator.replicas[0].state()["listening"]
    emulator.replicas[0].restart()
    await until(lambda: emulator.replicas[0].state()["listening"])
    state = emulator.replicas[0].state()
    assert (state["blocks_cached"], state["steps"], state["restarts"], state["running"]) == (0, 0, 1, 0)
    assert (await client.post(CHAT, json=chat(max_tokens=1))).status_code == 200


async def test_restart_takes_its_load_time(emulator: Emulator) -> None:
    async with httpx.AsyncClient() as control:
        begin = time.monotonic()
        answer = await control.post(f"{emulator.control_url}/emulator/fault", json={"replica": [1], "restart": 0.3})
        assert answer.json()["replicas"][0]["alive"] is False
        await until(lambda: emulator.replicas[1].state()["listening"])
        assert time.monotonic() - begin >= 0.29


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_blocks(
    emulator: Emulator, client: httpx.AsyncClient, chat: Body, stream: bool
) -> None:
    engine = emulator.replicas[0].engine
    emulator.fault(0, slow=20)  # so that it does not end by itself
    body = chat("a long prompt " * 50, max_tokens=1000, ignore_eos=True, stream=stream, n=3)
    task = asyncio.create_task(client.post(CHAT, json=body))
    await until(lambda: len(engine.decoding) == 3)
    assert engine.kv_use > 0
    task.cancel()
    steps = engine.steps_total
    await until(lambda: not engine.running)
    assert engine.kv_use == 0.0
    assert engine.steps_total - steps < 200
    assert emulator.replicas[0].stats.ended["abort"] == 3
    metrics = (await client.get("/metrics")).text
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 3.0' in metrics


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"slwo": 4}, "Did you mean 'slow'"),
        ({"slow": 0}, "positive"),
        ({"slow": "fast"}, "float"),
        ({"reset": "sometimes"}, "reset"),
        ({"error_rate": 2}, "between 0 and 1"),
        ({"error_status": 200}, "between 400 and 599"),
        ({"cut_after": -1}, "at least 0"),
        ({"replica": 9}, "No replica 9"),
        ({"restart": "now"}, "restart"),
    ],
)
async def test_wrong_faults_are_refused(emulator: Emulator, body: dict[str, object], said: str) -> None:
    async with httpx.AsyncClient(base_url=str(emulator.control_url)) as control:
        answer = await control.post("/emulator/fault", json=body)
        assert answer.status_code == 400
        assert said in answer.text
        assert (await control.get("/emulator/state")).json()["replicas"][0]["faults"] == {
            name: getattr(Faults(), name) for name in Faults.__struct_fields__
        }
        assert (await control.get("/nothing")).status_code == 404


def test_faults_merge_field_by_field() -> None:
    faults = merge(merge(Faults(), {"slow": 3}), {"freeze": True})
    assert (faults.slow, faults.freeze) == (3.0, True)
    with pytest.raises(ConfigError):
        merge(faults, {"freeze": "yes"})
