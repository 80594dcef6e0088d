"""The gateway in front of a real engine, through the official client."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.harness import GatewayProcess, until

pytestmark = pytest.mark.xdist_group("real_vllm")
"""One test process has them all, so that there is one server."""


def counter(exposition: str, name: str, label: str = "") -> float:
    """Sum over the series of ``name`` that carry ``label``."""
    found = re.findall(rf"^{re.escape(name)}\{{([^}}]*)\}} (\S+)$", exposition, re.MULTILINE)
    return sum(float(value) for labels, value in found if label in labels)


def test_answers_streams_and_aborts_pass_through(real_vllm):
    with GatewayProcess([real_vllm]) as gateway:
        until(lambda: httpx.get(f"{gateway.url}/ready").status_code == 200, 30.0, "ready")
        client: Any = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60.0)
        model = client.models.list().data[0].id
        ask = [{"role": "user", "content": "count to ten"}]

        plain = client.chat.completions.create(model=model, messages=ask, max_tokens=8)
        assert plain.usage is not None
        assert plain.usage.completion_tokens <= 8

        chunks = list(
            client.chat.completions.create(
                model=model, messages=ask, max_tokens=8, stream=True, stream_options={"include_usage": True}
            )
        )
        assert chunks[-1].usage is not None
        assert any(c.choices and c.choices[0].delta.content for c in chunks)

        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=model, messages=ask, max_tokens=1_000_000)

        stream = client.chat.completions.create(
            model=model, messages=ask, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()

        def stopped() -> bool:
            # vLLM writes its figures when it steps, so a step must follow the abort.
            step = {"model": model, "prompt": "a", "max_tokens": 1}
            httpx.post(f"{real_vllm}/v1/completions", json=step, timeout=30.0)
            text = httpx.get(f"{real_vllm}/metrics").text
            return counter(text, "vllm:num_requests_running") == 0

        until(stopped, 30.0, "the engine has dropped the work of a client that left")

        def seen() -> bool:
            (replica,) = httpx.get(f"{gateway.admin_url}/replicas").json()["replicas"]
            return replica["inflight"] == 0 and replica["kv_use"] is not None

        until(seen, 5.0, "the engine's own figures at the gateway, and nothing left in flight")
