# compiled
"""What an event stream says: where its events end, whether it is at its end, whether it begins with an error. Pure."""

from __future__ import annotations

import json
import re

from exaserve.gateway.http.local_answers import chunk
from exaserve.gateway.http.upstream_head import LAST_CHUNK, ChunkDecoder

__all__ = ["DONE_MARK", "EVENT_AND_CHUNK_END", "EventHolder", "first_error"]

EVENT_AND_CHUNK_END = (b"\n\n\r\n", b"\r\r\r\n")
"""An event's blank line and the end of the chunk that carried it. Where lines end with CRLF it cannot be seen: the size
of a chunk ends alike."""
DONE_MARK = re.compile(rb'data: ?\[DONE\]|"(?:message_stop|response\.(?:completed|incomplete|failed))"')
"""How streams end in OpenAI's, Anthropic's and the responses dialect."""
_EVENT_END = (b"\n\n", b"\n\r\n", b"\r\r")
_HOLD_BYTES_MAX = 65_536
"""An event that is longer is passed on in pieces; if it breaks, the client's connection does."""
_MESSAGE_MAX = 300


class EventHolder:
    """Gives out whole events and holds the beginning of the next, so that a break leaves the client at a clean edge.

    For what does not end where an event and its chunk end: the framing is taken off and made anew until they agree
    again, so that no event waits for the next one. Begins at a chunk's beginning; whole chunks may pass it by.

    Attributes:
        clean: what was given out ends at an event's end.
        odd: the next bytes belong to an event or a chunk that has begun.
    """

    __slots__ = ("_decoder", "_held", "clean", "odd")

    def __init__(self) -> None:
        self._decoder = ChunkDecoder()
        self._held = b""
        self.clean = True
        self.odd = False

    def feed(self, data: bytes) -> bytes:
        """A chunk with the events that ``data`` makes whole; b"" where it makes none.

        Raises:
            HttpParserError: it did not begin at a chunk's beginning.
        """
        payload = self._held + self._decoder.feed(data)
        cut = max(payload.rfind(end) + len(end) if end in payload else 0 for end in _EVENT_END)
        if cut:
            self.clean = True
        elif len(payload) > _HOLD_BYTES_MAX:
            self.clean = False
            cut = len(payload)
        self._held = payload[cut:]
        self.odd = bool(self._held) or not self.clean or not self._decoder.at_edge
        return chunk(payload[:cut]) if cut else b""

    def end(self, data: bytes) -> bytes:
        """What is held, with the end of the body; what lies behind that is left out."""
        payload = self._held + self._decoder.last(data)
        return (chunk(payload) if payload else b"") + LAST_CHUNK


def first_error(raw: bytes) -> str | None:
    """What is wrong where a stream's first events, whole chunks, are an error of the engine's; None where they are not.

    Engines have said 200 by the time they find out that they cannot answer, and say so in the stream instead. An error
    that says it is the client's is none of the engine's.
    """
    if b"error" not in raw:
        return None
    found = re.search(rb"(?:^|[\r\n])data:[ \t]*(\{[^\r\n]*)", ChunkDecoder().last(raw))
    if found is None:
        return None
    try:
        value = json.loads(found[1])
    except (ValueError, RecursionError):
        return None
    error = value.get("error")
    if error is None and (value.get("type") == "error" or value.get("object") == "error"):
        error = value
    if not error or _is_the_clients(error):
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_MESSAGE_MAX]


def _is_the_clients(error: object) -> bool:
    if not isinstance(error, dict):
        return False
    code = error.get("code")
    if isinstance(code, int):
        return 400 <= code < 500 and code not in (408, 429)
    said = f"{error.get('type')} {code}".lower().replace("_", "")
    return any(word in said for word in ("badrequest", "invalidrequest", "notfound", "unprocessable"))
