"""Several load processes are one client; and what only a real run shows: closed loops, conversations, TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from tests.bench.stub import DONE, END, FINISH, HEAD, ROLE, Stub, serving, token, usage
from tests.programs import program

from exaserve.bench import (
    Arrivals,
    BodyRenderer,
    Ending,
    LoadClient,
    LoadConfig,
    LoadPlan,
    Mix,
    OutputLengths,
    PlannedRequest,
    Progress,
    Scenario,
    make_plan,
)
from exaserve.bench.timer import Alarm
from exaserve.bench.workers import deal, run_load
from exaserve.workload import Conversations

MIX = Mix(((Scenario("A", 40, OutputLengths("fixed", 3)), 1.0),))


@pytest.fixture(scope="module")
def pem(tmp_path_factory) -> Path:
    """Key and certificate of a server called localhost, good for a day."""
    openssl = program("openssl")
    made: Path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", made, "-out", f"{made}.crt"], check=True, capture_output=True)
    with made.open("a") as file:
        file.write(Path(f"{made}.crt").read_text())
    return made


def plan(rate: float = 50.0, duration: float = 0.4) -> LoadPlan:
    return make_plan(MIX, Arrivals(rate, duration, "constant"), 1)


def config(stub: Stub, **options: object) -> LoadConfig:
    return LoadConfig(urls=(stub.url,), renderer=BodyRenderer("m"), **options)  # type: ignore[arg-type]


async def answer(_body, writer):
    writer.write(HEAD + ROLE + token("x") + token("x") + token("x") + FINISH + usage(3) + DONE + END)


def test_every_request_is_dealt_once_and_turns_stay_together():
    whole = make_plan(MIX, Arrivals(50.0, 20.0), 1, conversations=Conversations(3.0, think_s=1.0))
    hands = deal(whole, 3)
    assert sorted(place for _, places in hands for place in places) == list(range(len(whole)))
    for mine, places in hands:
        assert [r.index for r in mine.requests] == list(range(len(mine)))
        for request, place in zip(mine.requests, places, strict=True):
            original = whole.requests[place]
            assert (request.head, request.scheduled_s) == (original.head, original.scheduled_s)
            assert (places[request.after] if request.after >= 0 else -1) == original.after


@pytest.mark.may_block
@pytest.mark.parametrize("processes", [1, 2])
async def test_processes_send_the_whole_plan_and_give_it_back_in_order(processes):
    seen: list[Progress] = []
    the_plan = plan()
    async with serving(answer) as stub:
        result = await run_load(config(stub), the_plan, processes, seen.append)
    assert [r.index for r in result.records] == list(range(20))
    assert [r.scheduled_s for r in result.records] == [r.scheduled_s for r in the_plan.requests]
    assert {(r.verdict, r.tokens, len(r.token_s)) for r in result.records} == {(Ending.OK, 3, 3)}
    renderer = BodyRenderer("m")
    assert sorted(stub.bodies) == sorted(renderer.body(r) for r in the_plan.requests)
    assert seen[-1].ok == 20
    assert sum(len(p.recent) for p in seen) == 20


@pytest.mark.may_block
async def test_stop_reaches_the_processes():
    async with serving(answer) as stub:
        stop = asyncio.Event()

        def seen(progress: Progress) -> None:
            if progress.ok >= 5:
                stop.set()

        result = await asyncio.wait_for(run_load(config(stub), plan(20.0, 100.0), 2, seen, stop), 60.0)
    ok = sum(r.verdict is Ending.OK for r in result.records)
    assert len(result.records) == 2_000
    assert 0 < ok < 1_300, "the plan has 100 s"


@pytest.mark.may_block
async def test_a_load_process_that_cannot_work_says_why():
    bad = LoadPlan((PlannedRequest(0, "A", 0.0, 40, 3, 1, content="[]"),), 1.0, 1, ("A",))
    renderer = BodyRenderer("m", path="/v1/completions")
    async with serving(answer) as stub:
        with pytest.raises(Exception, match=r"ValueError: /v1/completions|before its time"):
            await run_load(LoadConfig(urls=(stub.url,), renderer=renderer), bad, 1)


async def test_a_closed_loop_has_its_concurrency_and_unique_prompts():
    open_now = most = 0

    async def slow(_body, writer):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.02)
        open_now -= 1
        writer.write(HEAD + token("x") + DONE + END)

    few = LoadPlan(plan().requests[:2], 1.0, 1, ("A",))
    async with serving(slow) as stub:
        result = await LoadClient(config(stub, concurrency=3), few).run()
    assert most == 3
    assert len(result.records) == len(stub.bodies)
    assert 6 < len(stub.bodies) <= 165
    assert len(set(stub.bodies)) == len(stub.bodies), "the plan's two requests are sent with new heads each round"
    ends = sorted(r.last_s for r in result.records if r.last_s is not None)
    for free, record in zip([0.0, 0.0, 0.0, *ends], result.records, strict=False):
        assert record.sent_s is not None
        assert free - 0.001 <= record.scheduled_s <= record.sent_s, "due when its lane is free"


async def test_a_closed_loop_ends_after_its_number():
    async with serving(answer) as stub:
        result = await LoadClient(config(stub, concurrency=2, requests_max=7), plan(duration=100.0)).run()
    assert [r.index for r in result.records] == list(range(7))
    assert result.elapsed_s < 50.0, "the plan has 100 s"


async def test_a_server_that_refuses_is_not_stormed():
    async with serving(answer) as stub:
        pass
    result = await LoadClient(config(stub, concurrency=2), LoadPlan(plan().requests, 0.5, 1, ("A",))).run()
    assert {r.error for r in result.records} == {"connect"}
    assert len(result.records) <= 14


def turns(count: int, think_s: float = 0.05, duration_s: float = 100.0) -> LoadPlan:
    requests = [
        PlannedRequest(i, "A", 0.0, 40 + 10 * i, 3, i + 1, session=0, after=i - 1, think_s=think_s if i else 0.0)
        for i in range(count)
    ]
    return LoadPlan(tuple(requests), duration_s, 1, ("A",))


async def test_a_turn_is_due_after_the_answer_before_it():
    async def slow(body, writer):
        await asyncio.sleep(0.1)
        await answer(body, writer)

    async with serving(slow) as stub:
        result = await LoadClient(config(stub), turns(3)).run()
    first, second, third = result.records
    assert [r.verdict for r in result.records] == [Ending.OK] * 3
    for before, after in ((first, second), (second, third)):
        assert before.last_s is not None and after.last_s is not None and after.ttft_s is not None
        assert 0.05 <= after.scheduled_s - before.last_s < 5.0
        wait_s = after.last_s - after.scheduled_s
        assert 0.095 < after.ttft_s <= wait_s, "the wait for the first answer is no latency of the second"


async def test_a_failed_turn_ends_its_conversation():
    async def refuse(_body, writer):
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}")

    async with serving(refuse) as stub:
        result = await LoadClient(config(stub), turns(3)).run()
    assert [r.error for r in result.records] == ["status", "earlier_turn", "earlier_turn"]
    assert len(stub.bodies) == 1
    assert result.elapsed_s < 50.0, "the plan has 100 s"


async def test_turns_after_the_end_are_never_due():
    async with serving(answer) as stub:
        result = await LoadClient(config(stub), turns(3, think_s=100.0, duration_s=10.0)).run()
    assert result.elapsed_s < 50.0, "the pause has 100 s"
    assert [r.error for r in result.records] == ["", "unfinished", "unfinished"]
    assert result.records[1].scheduled_s > 10.0, "which is outside of what is measured"


@pytest.mark.may_block
async def test_tls_is_spoken_and_certificates_are_checked(pem):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    heads = []

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                await answer(b"", writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"
    headers = (("authorization", "Bearer secret"),)

    async def run(**options):
        client = LoadClient(LoadConfig(urls=(url,), renderer=BodyRenderer("m"), headers=headers, **options), plan())
        return {(r.verdict, r.error) for r in (await client.run()).records}

    try:
        assert await run(ca_file=str(pem)) == {(Ending.OK, "")}
        assert heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1")
        assert b"authorization: Bearer secret" in heads[0]
        assert await run(tls_verify=False) == {(Ending.OK, "")}
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        assert await run() == {(Ending.FAILED, "connect")}
    finally:
        server.close()
        await server.wait_closed()


async def test_the_alarm_rings_once_and_never_early():
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    alarm = Alarm(loop, lambda: rung.append(loop.time()))

    async def rings(count: int) -> None:
        async with asyncio.timeout(20):
            while len(rung) < count:
                await asyncio.sleep(0.001)

    try:
        due = time.monotonic() + 0.0237
        alarm.set(due)
        await rings(1)
        await asyncio.sleep(0.05)
        late = [at - due for at in rung]
        assert len(rung) == 1
        alarm.set(time.monotonic() - 1.0)
        await rings(2)  # what is past rings at once
        alarm.set(time.monotonic() + 0.01)
        alarm.clear()
        await asyncio.sleep(0.03)
        assert len(rung) == 2
    finally:
        alarm.close()
    # loop.time() is cached for a turn of the loop, in milliseconds.
    assert late[0] > -0.0015
