"""Real engines under a real agent and behind a real gateway: answers, aborts, figures, adapters, loss and return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.harness import GatewayProcess, until
from tests.e2e.tenants import cached_tokens
from tests.real_vllm.live import ADAPTER, HEADERS, KEY, LATE_ADAPTER, MODEL, NODE, Live, sample
from tests.real_vllm.server import environment

pytestmark = pytest.mark.xdist_group("real_vllm")
"""One test process has them all, so that there is one set-up."""

BACK_S = 300.0
"""One engine's start on a machine that does other things too."""
LOAD_PROMPTS = 12
LONG = 1900
"""Tokens of an answer that nobody waits for: many seconds."""


def official(live: Live, key: str = KEY) -> Any:
    return openai.OpenAI(base_url=f"{live.gateway.url}/v1", api_key=key, max_retries=0, timeout=60.0)


def test_plain_and_streamed_answers_come_from_both_replicas(live):
    client = official(live)
    assert {model.id for model in client.models.list().data} == {MODEL, ADAPTER}
    ask = [{"role": "user", "content": "count to ten"}]
    plain = client.chat.completions.create(model=MODEL, messages=ask, max_tokens=8)
    assert 0 < plain.usage.completion_tokens <= 8

    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ask, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage.completion_tokens <= 8
    assert any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks)

    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=ask, max_tokens=1_000_000)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: live.complete(max_tokens=32, ignore_eos=True), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {answer.headers["x-exaserve-replica"] for answer in answers} == {f"{NODE}/r0", f"{NODE}/r1"}


def test_engines_that_ask_for_a_key_are_watched_with_it_and_clients_need_it_too(live):
    """That they are ready at all shows that the agent's probes carried it."""
    with pytest.raises(openai.AuthenticationError):
        official(live, "another").completions.create(model=MODEL, prompt="a", max_tokens=1)
    assert live.row(0)["eligible"], "a client's wrong key is no fault of the engine"


def test_an_engine_stops_when_the_client_leaves(live):
    """vLLM's own counter of aborted requests stays at 0 (docs/gateway.md says why); its scheduler's gauges prove it."""
    body = {"model": MODEL, "prompt": "a", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    before = [sample(url, "vllm:generation_tokens_total") for url in live.engines]
    with live.client.stream("POST", "/v1/completions", json=body) as answer:
        index = int(answer.headers["x-exaserve-replica"][-1])
        engine = live.engines[index]
        lines = answer.iter_lines()  # held: where it is collected the answer is closed
        next(lines)
        began = time.monotonic()
        until(lambda: sample(engine, "vllm:num_requests_running") == 1, 10.0, "the engine computes")
        until(lambda: sample(engine, "vllm:kv_cache_usage_perc") > 0, 10.0, "and holds KV")

        def seen() -> bool:
            row = live.row(index)
            return bool(row["running"] == 1 and row["kv_use"] > 0 and row["inflight"] == 1)

        until(seen, 10.0, "the gateway sees both by the agent")
        priced = live.row(index)["entropy"]
        made = sample(engine, "vllm:generation_tokens_total") - before[index]
        rest_s = (LONG - made) * (time.monotonic() - began) / made
    left_at = time.monotonic()
    until(lambda: sample(engine, "vllm:num_requests_running") == 0, 10.0, "nothing runs")
    until(lambda: sample(engine, "vllm:kv_cache_usage_perc") == 0, 10.0, "its blocks are free")
    took_s = time.monotonic() - left_at
    assert took_s < 0.5 * rest_s, "the work was dropped, not finished"
    tokens = sample(engine, "vllm:generation_tokens_total")
    time.sleep(1.0)
    assert sample(engine, "vllm:generation_tokens_total") - tokens <= 2, "no more than the agent's own probes"
    assert sample(engine, "vllm:request_success_total", 'finished_reason="abort"') == 0, "then the docs are out of date"
    until(lambda: live.row(index)["inflight"] == 0 and live.row(index)["running"] == 0, 20.0, "the gateway knows")
    idle = live.row(index)["entropy"]
    assert priced["decode_s"] > idle["decode_s"], "a running sequence costs, one that was dropped does not"
    assert live.gateway.gauge("exaserve_requests_total") > 0


def test_prefix_cache_hits_are_seen(live):
    before = [live.row(index)["prefix_hits_total"] or 0.0 for index in range(2)]  # unknown until an engine has told
    prompt = "the quick brown fox jumps over the lazy dog of the house " * 60
    answers = [live.complete(prompt=prompt, max_tokens=1) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
    (where,) = {answer.headers["x-exaserve-replica"] for answer in answers}
    cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0 < cached[1] == cached[2], "the replica that has the prefix is chosen again"
    index = int(where[-1])

    def told() -> bool:
        row = live.row(index)
        return bool(
            (row["prefix_hits_total"] or 0.0) - before[index] == cached[1] + cached[2] < row["prefix_queries_total"]
        )

    until(told, 10.0, "the engine's own count in the admin API")
    assert live.gateway.gauge("exaserve_cached_tokens_total") >= cached[1] + cached[2]


def test_adapters_are_loaded_and_unloaded_while_it_runs(live):
    ask = {"prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0}
    texts = [live.complete(**ask, model=model).json()["choices"][0]["text"] for model in (MODEL, ADAPTER)]
    assert texts[0] != texts[1], "an adapter changes the answer"
    assert live.complete(**ask, model=LATE_ADAPTER).status_code == 404

    engine = live.engines[0]
    load = {"lora_name": LATE_ADAPTER, "lora_path": str(live.folder / LATE_ADAPTER)}
    loaded = httpx.post(f"{engine}/v1/load_lora_adapter", json=load, headers=HEADERS, timeout=30.0, trust_env=False)
    assert loaded.status_code == 200, loaded.text
    until(lambda: LATE_ADAPTER in live.row(0)["models"], 20.0, "the agent finds it")
    answers = [live.complete(**ask, model=LATE_ADAPTER) for _ in range(3)]
    assert {answer.headers["x-exaserve-replica"] for answer in answers} == {f"{NODE}/r0"}, "only one replica has it"
    assert answers[0].json()["choices"][0]["text"] not in texts

    unload = {"lora_name": LATE_ADAPTER}
    unloaded = httpx.post(
        f"{engine}/v1/unload_lora_adapter", json=unload, headers=HEADERS, timeout=30.0, trust_env=False
    )
    assert unloaded.status_code == 200, unloaded.text
    until(lambda: live.row(0)["models"] == [MODEL, ADAPTER], 20.0, "and that it has gone")
    assert live.complete(**ask, model=LATE_ADAPTER).status_code == 404


def load_client(live: Live, path: Path) -> subprocess.CompletedProcess[str]:
    """vLLM's own load client, through the gateway."""
    command = [str(live.program), "bench", "serve", "--backend", "openai", "--base-url", live.gateway.url]
    command += ["--endpoint", "/v1/completions", "--model", MODEL, "--tokenizer", str(live.folder / "model")]
    command += ["--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16"]
    command += ["--num-prompts", str(LOAD_PROMPTS), "--save-result", "--result-filename", str(path)]
    env = environment() | {"OPENAI_API_KEY": KEY}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_a_killed_engine_is_restarted_while_the_other_answers(live, tmp_path):
    """What waits for its answer there is answered elsewhere; vLLM's own load client sees nothing of it."""
    family = live.tree(1)
    assert len(family) >= 3, "API server, core and worker"
    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(live.complete, max_tokens=800, ignore_eos=True) for _ in range(6)]
        until(lambda: live.row(1)["running"], 20.0, "some of them run there")
        os.kill(family[0], signal.SIGKILL)
        until(lambda: not live.row(1)["eligible"], 20.0, "out of rotation")
        answers = [each.result() for each in waiting]
    assert [answer.status_code for answer in answers] == [200] * 6, [answer.text[:200] for answer in answers]
    assert live.gateway.gauge("exaserve_retries_total") > 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), 15.0, "core and worker ended with it")
    assert "state=backoff was=ready" in live.log().rpartition(f"replica={NODE}/r1 state=starting")[0]
    for _ in range(5):
        answer = live.complete()
        assert (answer.status_code, answer.headers["x-exaserve-replica"]) == (200, f"{NODE}/r0")

    result = tmp_path / "bench.json"
    done = load_client(live, result)
    assert done.returncode == 0, done.stderr[-2_000:]
    counts = json.loads(result.read_text())
    assert (counts["completed"], counts["failed"]) == (LOAD_PROMPTS, 0)

    until(lambda: live.unit(1)["ready"] and live.row(1)["eligible"], BACK_S, "the engine is back")
    assert live.unit(1)["restarts"] == 1
    assert set(live.tree(1)).isdisjoint(family)
    until(lambda: live.complete().headers["x-exaserve-replica"] == f"{NODE}/r1", 30.0, "and it serves again")


def test_tenants_share_no_prefix_cache(live):
    """One engine for all, so that it is no chance where the requests went."""
    engine = live.engines[0]
    with GatewayProcess([engine], "--auth", "keys", "--engine-api-key-file", str(live.folder / "key")) as gateway:
        gateway.ready()
        first, again, others, others_again = cached_tokens(gateway, MODEL)
    assert (first, others) == (0, 0)
    assert again > 0
    assert others_again > 0
