"""What the node commands share: targets, and lines that engines printed."""

from __future__ import annotations

import httpx
import pytest

from exaserve.cli.nodes import plain, send_verb
from exaserve.domain.errors import ConfigError


def test_what_an_engine_printed_cannot_rewrite_a_terminal() -> None:
    assert plain("\x1b[2J\x1b]0;owned\x07gone\rHi") == "\\x1b[2J\\x1b]0;owned\\x07gone\\rHi"
    assert plain("\u009b31mred\u202e") == "\\x9b31mred\\u202e"
    assert plain("a\tprogress 50 % · ünïcode 模型") == "a\tprogress 50 % · ünïcode 模型"


def test_lines_of_an_answer_are_made_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(200, json={"lines": ["ok", "\x1b[31mred"]})
    monkeypatch.setattr(httpx, "post", lambda *_args, **_more: answer)
    assert send_verb("logs", "node1", None, None) == ["ok", "\\x1b[31mred"]


@pytest.mark.parametrize("target", ["", "/", "node1/", "/r0"])
def test_a_target_that_names_half_of_something_acts_on_nothing(target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "post", lambda *_args, **_more: pytest.fail("sent"))
    with pytest.raises(ConfigError, match="node/replica"):
        send_verb("stop", target, None, None)
