"""Server-sent events of an answer, read as cheaply as counting allows.

After the first token an event costs one count of its terminators: no decoding, no JSON. What the end of the stream says
(``[DONE]``, ``usage``, an error event) is read once, from the last bytes. PURE.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

__all__ = ["EventReader", "UsageSeen", "is_answer", "usage_seen", "usage_tokens"]

# A non-empty text in any of the fields in which servers stream it: chat (``content``), completions and messages
# (``text``), tool calls (the ``name`` in their first chunk, ``arguments``), responses (``delta``). Role-only events
# have "" or null.
_ANSWER_TEXT = (
    rb'"(?:content|text|arguments|delta|partial_json)"\s*:\s*"[^"]'
    rb'|"(?:tool_calls|function_call|tool_use)"[^\n]*"name"\s*:\s*"[^"]'
    # A completion's chunk is a token also where it decodes to nothing yet (half of a character); only its end is not.
    rb'|"text_completion"[^\n]*"text"\s*:\s*""[^\n]*"finish_reason"\s*:\s*null'
)
_REASONING_TEXT = rb'"(?:reasoning_content|reasoning|thinking)"\s*:\s*"[^"]'
_ANSWER = re.compile(_ANSWER_TEXT)
_CONTENT = re.compile(_ANSWER_TEXT + rb"|" + _REASONING_TEXT)
_REASONING = re.compile(_REASONING_TEXT)
_PROMPT_USAGE = re.compile(rb'"(?:prompt_tokens|input_tokens)"\s*:\s*(\d+)')
_REASONING_USAGE = re.compile(rb'"reasoning_tokens"\s*:\s*(\d+)')
_CACHED_USAGE = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d+)')
_USAGE = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
_ERROR = re.compile(
    rb'(?:^|\n)(?:event:\s*error|data:\s*\{\s*"(?:error"\s*:|type"\s*:\s*"error"|object"\s*:\s*"error"))'
)
_DONE = re.compile(rb"(?:^|\n)(?:data:\s*\[DONE\]|event:\s*message_stop|event:\s*response\.completed)")
_PENDING_MAX = 1 << 20
"""An event that has no end within this many bytes is no event; only its last bytes are kept."""


class UsageSeen(NamedTuple):
    """Token counts by the server; None where it does not say."""

    prompt: int | None
    output: int | None
    cached: int | None
    reasoning: int | None = None


def usage_seen(text: bytes) -> UsageSeen:
    """The last ``usage`` in ``text``."""

    def last(pattern: re.Pattern[bytes]) -> int | None:
        found = pattern.findall(text)
        return int(found[-1]) if found else None

    return UsageSeen(last(_PROMPT_USAGE), last(_USAGE), last(_CACHED_USAGE), last(_REASONING_USAGE))


_ANSWER_KEYS = frozenset({"choices", "content", "output"})


def is_answer(body: bytes) -> bool:
    """Whether a body that is no event stream answers: a JSON object with text, a tool call or tokens by its usage, and
    no error. An empty body, HTML, or ``{"error": …}`` under status 200 is none."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if not isinstance(document, dict) or document.get("error") or document.get("object") == "error":
        return False
    if not _ANSWER_KEYS & document.keys():
        return False
    return bool(usage_seen(body).output) or _CONTENT.search(body) is not None


def usage_tokens(text: bytes) -> int | None:
    """Generated tokens by the last ``usage`` in ``text``, None without one."""
    found = _USAGE.findall(text)
    return int(found[-1]) if found else None


class EventReader:
    """Counts the events of one answer from body pieces cut anywhere.

    Attributes:
        events: complete events so far, without comments (lines that begin with a colon).
        has_token: an event with non-empty content was seen.
        before_token: events before the first one with content.
        has_answer: an event with content that is no reasoning was seen.
        reasoning_events: events with reasoning before it.
    """

    __slots__ = ("_pending", "_pieces", "before_token", "events", "has_answer", "has_token", "reasoning_events")

    def __init__(self) -> None:
        self.events = 0
        self.has_token = False
        self.before_token = 0
        self.has_answer = False
        self.reasoning_events = 0
        self._pending = b""
        # A server may send each closing event (finish, usage, [DONE]) as a piece of its own, after the last token.
        self._pieces = (b"", b"", b"", b"")

    def feed(self, piece: bytes) -> bool:
        """Take the next bytes of the body. True exactly once: where the first token is in them."""
        if self._pending:
            piece = self._pending + piece
            self._pending = b""
        if b"\r" in piece:
            # A lone CR at the end may be half of CRLF; it waits with the unfinished event.
            kept = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n")
            if kept:
                self._pending = piece[-_PENDING_MAX:]
                return False
        if not piece.endswith(b"\n\n"):
            end = piece.rfind(b"\n\n") + 2
            if end == 1:
                self._pending = piece[-_PENDING_MAX:]
                return False
            self._pending = piece[end:][-_PENDING_MAX:]
            piece = piece[:end]
        pieces = self._pieces
        self._pieces = (pieces[1], pieces[2], pieces[3], piece)
        if self.has_token:
            self.events += piece.count(b"\n\n")
            if piece.startswith(b":") or b"\n\n:" in piece:
                self.events -= piece.count(b"\n\n:") + piece.startswith(b":")
            if not self.has_answer:
                self._look_for_answer(piece)
            return False
        return self._look_for_token(piece)

    def _look_for_token(self, piece: bytes) -> bool:
        for event in piece.split(b"\n\n")[:-1]:
            if event.startswith(b":") or not event:
                continue
            self.events += 1
            if not self.has_token:
                if _CONTENT.search(event):
                    self.has_token = True
                else:
                    self.before_token += 1
                    continue
        if self.has_token:
            self._look_for_answer(piece)
        return self.has_token

    def _look_for_answer(self, piece: bytes) -> None:
        """While only reasoning has come, every event is looked at; an answer without any ends this at once."""
        for event in piece.split(b"\n\n")[:-1]:
            if event.startswith(b":"):
                continue
            if _ANSWER.search(event):
                self.has_answer = True
                return
            self.reasoning_events += _REASONING.search(event) is not None

    def _tail(self) -> bytes:
        return b"".join(self._pieces) + self._pending

    def usage(self) -> UsageSeen:
        """Token counts by the server's usage, from the end of the stream."""
        return usage_seen(self._tail())

    @property
    def token_events(self) -> int:
        """Events from the first token on, the closing ones included while they are not known as such."""
        return self.events - self.before_token

    def finish(self) -> tuple[bool, bool, int | None]:
        """``[DONE]`` seen, error event seen, generated tokens by the server's usage (None without)."""
        tail = self._tail()
        return _DONE.search(tail) is not None, _ERROR.search(tail) is not None, usage_tokens(tail)

    def content_events(self) -> int:
        """Events from the first token on, without the closing ones (finish, usage, ``[DONE]``), which have none."""
        if not self.has_token:
            return 0
        tail = [event for event in self._tail().split(b"\n\n") if event]
        closing = 0
        for event in reversed(tail):
            if _CONTENT.search(event):
                break
            closing += 1
        return max(1, self.events - self.before_token - closing)
