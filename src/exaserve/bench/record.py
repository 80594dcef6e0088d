"""What became of one request, as its client saw it."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

__all__ = ["Ending", "Record"]


class Ending(Enum):
    """How a request ended. Exactly one per request."""

    OK = "ok"
    FAILED = "failed"
    """No usable answer: refused, lost or timed out before a token, a status that is not 2xx, or a 2xx with none."""
    CUT = "cut"
    """An answer began and did not end as it should."""


@dataclass(slots=True)
class Record:
    """One request. Instants are seconds from the start of the run; None where it did not come to that.

    Attributes:
        scheduled_s: when it was due.
        connected_s: when there was a connection for it: of a new one when it was open (TLS included), of a reused one
            when it was taken.
        sent_s: when its bytes were handed to the kernel.
        first_byte_s: first byte of the answer.
        first_token_s: first event with non-empty content; of an answer that is not streamed, its last byte.
        first_answer_s: first event with content that is no reasoning.
        last_s: last byte of the answer, or the failure.
        token_s: when each event with content came, the first token's included; several in one read have one instant.
        tokens: generated tokens by the server's ``usage``, else events with content.
        reasoning_tokens: those of them that were reasoning, by the server's ``usage``, else events before the answer.
        tokens_known: whether ``tokens`` is the server's own count.
        prompt_seen: prompt tokens by the server's ``usage``, None without one.
        cached_seen: those of them that came from its prefix cache, None where it does not say.
        events: server-sent events, ``[DONE]`` included.
        status: HTTP status, 0 while there is none.
        error: "" or a word for what went wrong: ``connect``, ``lost``, ``timeout``, ``status``, ``protocol``,
            ``error_event``, ``no_done``, ``no_answer`` (a 2xx without text, tool call or tokens: empty, HTML, error),
            ``unfinished`` (the run ended first), ``earlier_turn`` (never sent: the answer it was to follow failed).
        replica: the gateway's ``x-exaserve-replica``, "" without one.
        done: ``[DONE]`` was seen.
        error_event: an error came inside the stream.
        complete: the answer's framing was complete.
        retries: times that it was sent again, because a reused connection was closed before any byte.
    """

    index: int
    scenario: str
    scheduled_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    session: int | None = None
    connected_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    first_answer_s: float | None = None
    last_s: float | None = None
    token_s: array[float] = field(default_factory=lambda: array("d"))
    tokens: int = 0
    reasoning_tokens: int = 0
    tokens_known: bool = False
    prompt_seen: int | None = None
    cached_seen: int | None = None
    events: int = 0
    status: int = 0
    error: str = ""
    replica: str = ""
    done: bool = False
    error_event: bool = False
    complete: bool = False
    retries: int = 0

    @property
    def verdict(self) -> Ending:
        if self.complete and not self.error:
            return Ending.OK
        return Ending.CUT if self.first_token_s is not None and 200 <= self.status < 300 else Ending.FAILED

    @property
    def ttft_s(self) -> float | None:
        """Scheduled to first token, seconds."""
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def ttfa_s(self) -> float | None:
        """Scheduled to first token of the answer proper, after any reasoning, seconds."""
        return None if self.first_answer_s is None else self.first_answer_s - self.scheduled_s

    @property
    def ttft_sent_s(self) -> float | None:
        """Sent to first token, seconds: what a closed-loop client would report."""
        if self.first_token_s is None or self.sent_s is None:
            return None
        return self.first_token_s - self.sent_s

    @property
    def latency_s(self) -> float | None:
        """Scheduled to last byte, seconds."""
        return None if self.last_s is None else self.last_s - self.scheduled_s

    @property
    def token_gap_s(self) -> float | None:
        """Mean seconds per token after the first; None of an answer that came in one piece."""
        if self.tokens < 2 or self.first_token_s is None or self.last_s is None:
            return None
        if self.in_one_piece:
            return None
        return (self.last_s - self.first_token_s) / (self.tokens - 1)

    @property
    def in_one_piece(self) -> bool:
        """Its content came at one instant, so that nothing can be said of its pace."""
        return len(self.token_s) < 2 or self.token_s[-1] <= self.token_s[0]

    def gaps_s(self) -> list[float]:
        """Seconds between one event with content and the next; none of an answer that came in one piece."""
        return [] if self.in_one_piece else [b - a for a, b in itertools.pairwise(self.token_s)]

    @property
    def stall_s(self) -> float | None:
        """The longest gap between two events with content, seconds; None with fewer than two."""
        return max(self.gaps_s(), default=None)

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON; what is not known is left out, instants to the microsecond."""
        out: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "token_s":
                value = [round(at, 6) for at in value]
            elif isinstance(value, float):
                value = round(value, 6)
            if value is not None and value not in ("", []):
                out[each.name] = value
        out["verdict"] = self.verdict.value
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Record:
        """The record that :meth:`as_dict` wrote. TypeError for unknown members."""
        known = {name: value for name, value in values.items() if name != "verdict"}
        return cls(**{**known, "token_s": array("d", known.get("token_s", ()))})
