"""What the node commands share: targets, and lines that engines printed."""

from __future__ import annotations

import httpx
import pytest

from exaserve.cli.nodes import plain, send_verb
from exaserve.domain.errors import ConfigError, ExaServeError


def test_what_an_engine_printed_cannot_rewrite_a_terminal() -> None:
    assert plain("\x1b[2J\x1b]0;owned\x07gone\rHi") == "\\x1b[2J\\x1b]0;owned\\x07gone\\rHi"
    assert plain("\u009b31mred\u202e") == "\\x9b31mred\\u202e"
    assert plain("a\tprogress 50 % · ünïcode 模型") == "a\tprogress 50 % · ünïcode 模型"


def test_lines_of_an_answer_are_made_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(200, json={"lines": ["ok", "\x1b[31mred"]})
    monkeypatch.setattr(httpx, "request", lambda *_args, **_more: answer)
    assert send_verb("logs", "node1", None, None) == ["ok", "\\x1b[31mred"]


@pytest.mark.parametrize("target", ["", "/", "node1/", "/r0"])
def test_a_target_that_names_half_of_something_acts_on_nothing(target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "request", lambda *_args, **_more: pytest.fail("sent"))
    with pytest.raises(ConfigError, match="node/replica"):
        send_verb("stop", target, None, None)


@pytest.fixture
def without_agents(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The admin API of a gateway that takes no agents; what was set there."""
    done: list[str] = []

    def answer(method: str, url: str, **_more: object) -> httpx.Response:
        path = url.removeprefix("http://127.0.0.1:8900")
        if path.startswith("/nodes/"):
            return httpx.Response(404, json={"error": {"message": "No agents run here.", "code": "no_agents"}})
        if method == "GET":
            rows = [("node1/r0", "node1"), ("node1/r1", "node1"), ("10.0.0.1:8001", "")]
            return httpx.Response(200, json={"replicas": [{"id": name, "node": node} for name, node in rows]})
        done.append(path)
        return httpx.Response(200, json={})

    monkeypatch.setattr(httpx, "request", answer)
    return done


def test_without_agents_the_gateway_itself_drains(without_agents: list[str]) -> None:
    assert send_verb("drain", "node1", None, None) == [
        "node1/r0: out of rotation",
        "node1/r1: out of rotation",
    ]
    send_verb("resume", "node1/r1", None, None)
    send_verb("drain", "10.0.0.1:8001", None, None)
    assert without_agents == [
        "/replicas/node1/r0/drain",
        "/replicas/node1/r1/drain",
        "/replicas/node1/r1/undrain",
        "/replicas/10.0.0.1:8001/drain",
    ]


@pytest.mark.parametrize(
    ("verb", "target", "says"),
    [
        ("drain", "node9", "exaserve status shows"),
        ("drain", "node1/r9", "exaserve status"),
        ("stop", "node1", "No agents"),
    ],
)
def test_without_agents_the_rest_is_an_error(verb: str, target: str, says: str, without_agents: list[str]) -> None:
    with pytest.raises(ExaServeError, match=says):
        send_verb(verb, target, None, None)
    assert without_agents == []


def test_a_gateway_that_does_not_answer_is_named_with_the_flag_that_names_another() -> None:
    with pytest.raises(ExaServeError, match=r"no gateway answers at http://127.0.0.1:1 .*--admin-url"):
        send_verb("logs", "node1", "http://127.0.0.1:1", None)
