"""What ``stop``, ``drain``, ``restart`` and ``logs`` share: a verb for a node's agent, by a gateway's admin API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from exaserve.config import read_environment, read_secret
from exaserve.domain.errors import ConfigError, ExaServeError

__all__ = ["AdminUrl", "DrainS", "Target", "TokenFile", "ask_admin", "plain", "send_verb"]

Target = Annotated[str, typer.Argument(metavar="NODE[/REPLICA]", help="A node, or one of its replicas (node3/r0).")]
AdminUrl = Annotated[str | None, typer.Option("--admin-url", help="A gateway's admin API. [http://127.0.0.1:8900]")]
TokenFile = Annotated[Path | None, typer.Option("--admin-token-file", metavar="FILE", help="Its bearer token.")]
DrainS = Annotated[
    float | None, typer.Option("--drain", min=0, help="Seconds to wait for requests in flight. [agents.drain]")
]
_Ask = Callable[[str, str, Any], tuple[int, dict[str, Any]]]
"""Method, path and body of a request to the admin API; status and body of its answer."""

_TIMEOUT_S = 15.0


class VerbFailed(ExaServeError):
    """The gateway or the agent refused."""

    fault = "operator"
    code = "verb_failed"


def plain(line: str) -> str:
    """A line that an engine printed, with control characters spelled out: they could rewrite a terminal."""
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode("ascii") for char in line
    )


def send_verb(verb: str, target: str, admin_url: str | None, token_file: Path | None, **options: Any) -> list[str]:
    """Sends it; returns the agent's lines. Without agents, the gateway itself drains and resumes.

    Raises:
        VerbFailed: with the gateway's own words, or where it cannot be reached.
    """
    node, slash, replica = target.partition("/")
    if not node or (slash and not replica):
        raise ConfigError(f"{target!r} names no replica; name a node, or node/replica", param="NODE")
    ask = ask_admin(admin_url, token_file)
    body = {"replica": replica} | {name: value for name, value in options.items() if value is not None}
    status, found = ask("POST", f"/nodes/{node}/{verb}", body)
    error = found.get("error", {})
    if error.get("code") == "no_agents" and verb in ("drain", "resume"):
        return _drain_at_gateway(ask, target, resume=verb == "resume")
    if status != 200:
        raise VerbFailed(error.get("message", f"status {status}"))
    return [plain(line) for line in found["lines"]]


def _drain_at_gateway(ask: _Ask, target: str, *, resume: bool) -> list[str]:
    replicas = [row["id"] for row in ask("GET", "/replicas", None)[1]["replicas"] if target in (row["id"], row["node"])]
    if not replicas:
        raise VerbFailed(f"{target} is no node and no replica here; exaserve status shows them")
    for replica in replicas:
        status, found = ask("POST", f"/replicas/{replica}/{'undrain' if resume else 'drain'}", None)
        if status != 200:
            raise VerbFailed(found.get("error", {}).get("message", f"status {status}"))
    return [f"{replica}: {'in' if resume else 'out of'} rotation" for replica in replicas]


def ask_admin(admin_url: str | None, token_file: Path | None) -> _Ask:
    """Asks a gateway's admin API; VerbFailed where none answers."""
    import httpx

    url = (admin_url or read_environment().admin_url or "http://127.0.0.1:8900").rstrip("/")
    headers = {}
    if token_file is not None:
        headers["authorization"] = f"Bearer {read_secret(token_file, '--admin-token-file')}"

    def ask(method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        try:
            answer = httpx.request(method, url + path, json=body, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
            return answer.status_code, answer.json()
        except (httpx.HTTPError, ValueError) as error:
            why = f"no gateway answers at {url} ({error}); start one, or name its admin API by --admin-url"
            raise VerbFailed(why) from None

    return ask
