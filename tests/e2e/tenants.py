"""Two tenants who ask the same, through a gateway that asks for keys: what the engine had in its prefix cache of it."""

from __future__ import annotations

import httpx
from tests.e2e.harness import GatewayProcess

__all__ = ["cached_tokens"]

PROMPT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 30


def cached_tokens(gateway: GatewayProcess, model: str) -> list[int]:
    """Of one tenant's two requests, then of another's two; the last of them tries with the first one's words."""
    found = []
    with httpx.Client(base_url=gateway.admin_url, trust_env=False, timeout=60.0) as admin:
        made = {name: admin.post("/keys", json={"tenant": name, "name": name}) for name in ("first", "second")}
    assert [answer.status_code for answer in made.values()] == [201, 201]
    ask = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    for tenant, more in (("first", {}), ("first", {}), ("second", {"cache_salt": "guessed"}), ("second", {})):
        headers = {"authorization": f"Bearer {made[tenant].json()['secret']}"}
        answer = httpx.post(
            f"{gateway.url}/v1/chat/completions", json=ask | more, headers=headers, trust_env=False, timeout=120.0
        )
        assert answer.status_code == 200, answer.text
        details = answer.json()["usage"]["prompt_tokens_details"]
        found.append(0 if details is None else int(details["cached_tokens"] or 0))
    return found
