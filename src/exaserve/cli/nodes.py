"""What ``stop``, ``drain``, ``restart`` and ``logs`` share: a verb for a node's agent, by a gateway's admin API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from exaserve.config import read_environment, read_secret
from exaserve.domain.errors import ConfigError, ExaServeError

__all__ = ["AdminUrl", "DrainS", "Target", "TokenFile", "plain", "send_verb"]

Target = Annotated[str, typer.Argument(metavar="NODE[/REPLICA]", help="A node, or one of its replicas (node3/r0).")]
AdminUrl = Annotated[str | None, typer.Option("--admin-url", help="A gateway's admin API. [http://127.0.0.1:8900]")]
TokenFile = Annotated[Path | None, typer.Option("--admin-token-file", metavar="FILE", help="Its bearer token.")]
DrainS = Annotated[
    float | None, typer.Option("--drain", min=0, help="Seconds to wait for requests in flight. [agents.drain]")
]
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
    """Sends it; returns the agent's lines.

    Raises:
        VerbFailed: with the gateway's own words, or where it cannot be reached.
    """
    import httpx

    node, slash, replica = target.partition("/")
    if not node or (slash and not replica):
        raise ConfigError(f"{target!r} names no replica; name a node, or node/replica", param="NODE")
    url = admin_url or read_environment().admin_url or "http://127.0.0.1:8900"
    headers = {}
    if token_file is not None:
        headers["authorization"] = f"Bearer {read_secret(token_file, '--admin-token-file')}"
    body = {"replica": replica} | {name: value for name, value in options.items() if value is not None}
    try:
        answer = httpx.post(
            f"{url.rstrip('/')}/nodes/{node}/{verb}", json=body, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )
        found = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise VerbFailed(f"the gateway's admin API at {url} did not answer: {error}") from None
    if answer.status_code != 200:
        raise VerbFailed(found.get("error", {}).get("message", f"status {answer.status_code}"))
    return [plain(line) for line in found["lines"]]
