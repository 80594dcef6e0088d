"""Limits through real gateway processes: what official clients see and do, and one bound over several gateways."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.e2e.harness import MODEL, GatewayProcess, emulator, run, until

from exaserve.emulator.process import EmulatorProcess
from exaserve.gateway.guard.store import Store

pytestmark = pytest.mark.xdist_group("e2e-limits")
ASK: Any = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def engines() -> Iterator[EmulatorProcess]:
    with emulator(speed=1.0) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def key(folder: Path, *args: str) -> str:
    made = run("keys", "create", "--state-dir", str(folder), *args)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def limits_at(process: GatewayProcess) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = httpx.get(f"{process.admin_url}/limits", trust_env=False).json()["limits"]
    return rows


def kept(folder: Path) -> list[tuple[str, str, str, float]]:
    store = Store(folder)
    try:
        return store.counters()
    finally:
        store.close()


def chat(url: str, secret: str, **more: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 4, **more}
    headers = {"authorization": f"Bearer {secret}", "origin": "https://page.example"}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30, trust_env=False)


def test_what_is_left_is_said_and_429_says_when(engines: EmulatorProcess, folder: Path) -> None:
    secret = key(folder, "--rpm", "2", "--tpm", "100000")
    with GatewayProcess(engines.urls, "--state-dir", str(folder)) as process:
        url = process.ready().url
        first = chat(url, secret)
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"] in ("1m1s", "1m0s", "59s", "58s")
        assert int(first.headers["x-ratelimit-remaining-tokens"]) < 100_000
        exposed = first.headers["access-control-expose-headers"]
        assert "x-ratelimit-remaining-tokens" in exposed
        assert "retry-after-ms" in exposed
        chat(url, secret)
        refused = chat(url, secret)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert "Limit 2, Used 2, Requested 1. Please try again in " in error["message"]
        ms = int(refused.headers["retry-after-ms"])
        assert 0 < ms <= 61_000
        assert int(refused.headers["retry-after"]) == -(-ms // 1000)
        assert secret not in refused.text


def test_what_can_never_fit_or_is_used_up_is_not_to_be_retried(engines: EmulatorProcess, folder: Path) -> None:
    small, day = key(folder, "--tpm", "3"), key(folder, "--tokens-per-day", "40")
    with GatewayProcess(engines.urls, "--state-dir", str(folder)) as process:
        url = process.ready().url
        never = chat(url, small)
        assert (never.status_code, never.headers["x-should-retry"]) == (429, "false")
        assert never.json()["error"]["code"] == "insufficient_quota"
        statuses = [chat(url, day).status_code for _ in range(12)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        used = next(row["used"] for row in limits_at(process) if row["name"].endswith("day"))
        until(lambda: [row[3] for row in kept(folder)] == [used])
        process.process.kill()
        process.process.wait()
    with GatewayProcess(engines.urls, "--state-dir", str(folder)) as process:
        assert chat(process.ready().url, day).status_code == 429, "a day is longer than a process"


@pytest.mark.parametrize("how", ["openai", "anthropic"])
def test_official_clients_back_off_and_succeed(engines: EmulatorProcess, folder: Path, how: str) -> None:
    secret = key(folder, "--concurrency", "1")
    with GatewayProcess(engines.urls, "--state-dir", str(folder)) as process:
        url = process.ready().url
        headers = {"authorization": f"Bearer {secret}"}
        body = {"model": MODEL, "messages": ASK, "max_tokens": 5000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False) as held:
            parts = held.iter_bytes()  # kept: an iterator that is dropped closes the answer
            next(parts)
            assert chat(url, secret).status_code == 429
            with concurrent.futures.ThreadPoolExecutor() as pool:
                asked = pool.submit(_ask, how, url, secret)
                until(lambda: _refused(process) >= 2)
                held.close()
                assert asked.result(30)


def _refused(process: GatewayProcess) -> float:
    text = httpx.get(f"{process.admin_url}/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if 'code="rate_limit_exceeded"' in line]
    return sum(float(line.split()[-1]) for line in lines)


def _ask(how: str, url: str, secret: str) -> bool:
    if how == "openai":
        with openai.OpenAI(base_url=f"{url}/v1", api_key=secret, max_retries=5) as client:
            return bool(client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=3).choices)
    with anthropic.Anthropic(base_url=url, api_key=secret, max_retries=5) as client:
        return bool(client.messages.create(model=MODEL, messages=ASK, max_tokens=3).content)


def test_a_slot_is_given_back_whatever_ends_the_request(engines: EmulatorProcess, folder: Path) -> None:
    secret = key(folder, "--concurrency", "1")
    with GatewayProcess(engines.urls, "--state-dir", str(folder)) as process:
        url = process.ready().url
        headers = {"authorization": f"Bearer {secret}"}
        long = {"model": MODEL, "messages": ASK, "max_tokens": 5000, "ignore_eos": True}
        for body, wait_s in (({**long, "stream": True}, None), (long, 0.2)):
            try:
                with httpx.stream(
                    "POST", f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=wait_s
                ) as held:
                    next(held.iter_bytes())
            except httpx.TimeoutException:
                pass
            until(lambda: chat(url, secret).status_code == 200)
        bad = httpx.post(f"{url}/v1/chat/completions", content=b"{", headers=headers, trust_env=False)
        assert bad.status_code == 400
        assert chat(url, secret, model="none").status_code == 404
        assert chat(url, secret).status_code == 200
        assert [(row["kind"], row["used"], row["pending"]) for row in limits_at(process)] == [("concurrent", 0, 0)]


def test_one_bound_over_gateways_that_are_peers(engines: EmulatorProcess, folder: Path, tmp_path: Path) -> None:
    secret = key(folder, "--rpm", "60")
    with GatewayProcess(engines.urls, "--state-dir", str(folder), "--name", "a", "--peer-listen", "127.0.0.1:0") as one:
        line = one.wait_for("event=peering")
        address = line.split("listen=")[1].split()[0]
        args = ("--state-dir", str(tmp_path / "b"), "--name", "b", "--peer", address)
        with GatewayProcess(engines.urls, *args) as two:
            urls = [one.ready().url, two.ready().url]
            two.wait_for("event=auth mode=keys")
            one.wait_for("event=peer_up")
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda n: chat(urls[n % 2], secret).status_code, range(120)))
            assert set(answers) == {200, 429}
            assert 58 <= answers.count(200) <= 62
            until(lambda: limits_at(two)[0]["used"] + limits_at(two)[0]["heard"] == answers.count(200))
