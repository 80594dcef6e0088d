"""Turns the engine's tokens into what a client reads: one :class:`Answer` per HTTP request, one :class:`Choice` per
sequence of it.

A streamed token of ordinary text is the hot path: :meth:`Choice.emit` joins a head, four bytes and a tail that were
made when the request began. Everything else (first and last events, tool calls, usage in every chunk, text cut by a
stop string) goes through :meth:`Answer.piece`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from exaserve.emulator.http import frame
from exaserve.emulator.text import TOKEN_BYTES
from exaserve.perfmodel.engine import EngineRequest, FinishReason

if TYPE_CHECKING:
    from exaserve.emulator.ask import GenerationJob, Piece
    from exaserve.emulator.http import Connection

__all__ = ["AnswerChoice", "ChatAnswer", "CompletionAnswer", "EngineAnswer", "Pieces", "quoted"]

Pieces = Sequence["tuple[int, Piece]"]
"""Prompt length in tokens and what is said, for each choice."""

_PROBE = b"\0\0\0\0"
"""Stands for a token while a constant head and tail are found around it."""


def quoted(value: str) -> bytes:
    """A JSON string."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def event(payload: bytes) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % payload


class AnswerChoice:
    """One sequence of an answer: what is said, how far, and where it goes. It is the engine request's ``tag``."""

    __slots__ = ("answer", "ended", "head", "index", "piece", "position", "request", "tail", "text", "write")

    def __init__(self, answer: EngineAnswer, index: int, piece: Piece, prompt_tokens: int) -> None:
        self.answer = answer
        self.index = index
        self.piece = piece
        self.text = piece.text
        self.position = 0
        self.head = self.tail = b""
        self.write: Callable[[bytes], None] | None = None
        """Where constant-size events go; None where events are made one by one, or not at all."""
        self.request = EngineRequest(prompt_tokens, piece.tokens, piece.reason, piece.hashes, self)
        self.ended = False

    def begin(self) -> None:
        """The first token is about to come."""
        if self.answer.streaming:
            self.answer.on_begin(self)

    def emit(self) -> None:
        """One more token, not the last."""
        position = self.position
        self.position = position + TOKEN_BYTES
        if self.write is not None:
            self.write(self.head + self.text[position : position + TOKEN_BYTES] + self.tail)
        elif self.answer.streaming:
            part = self.text[position : position + TOKEN_BYTES]
            if part:
                self.answer.connection.send(self.answer.piece(self, part))

    def finish(self) -> None:
        """The last token is out."""
        self.ended = True
        self.answer.on_finish(self)

    @property
    def rest(self) -> bytes:
        """Text of the last token."""
        return self.text[self.position :]


class EngineAnswer:
    """One HTTP request in progress, common to all APIs."""

    ID_PREFIX = "cmpl-"
    constant = True
    """Whether two pieces of four bytes give events of one size, so that head and tail can be made once."""

    def __init__(self, connection: Connection, job: GenerationJob, pieces: Pieces, ident: str, created: int) -> None:
        self.connection = connection
        self.job = job
        self.id = self.ID_PREFIX + ident
        self.created = created
        self.choices = [AnswerChoice(self, i, piece, prompt) for i, (prompt, piece) in enumerate(pieces)]
        self.streaming = False
        self.left = len(self.choices)
        self.on_complete: Callable[[EngineAnswer], None] | None = None

    # -- usage ------------------------------------------------------------------------------------------------------

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many choices it has."""
        return sum(c.request.prompt_tokens for c in self.choices[:: self.job.n])

    @property
    def completion_tokens(self) -> int:
        return sum(c.piece.tokens for c in self.choices)

    @property
    def cached_tokens(self) -> int:
        return sum(c.request.cached_tokens for c in self.choices[:: self.job.n])

    def usage(self, completion: int | None = None) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt = self.prompt_tokens
        done = self.completion_tokens if completion is None else completion
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + done,
            "completion_tokens": done,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    # -- the life of an answer --------------------------------------------------------------------------------------

    def start(self) -> None:
        """The request is accepted: a stream's head goes out at once."""
        if not self.job.stream:
            return
        self.streaming = True
        self.connection.begin_stream()
        if not (self.constant and self.connection.chunked):
            return
        for choice in self.choices:
            if choice.piece.whole:
                head, tail = frame(self.piece(choice, _PROBE)).split(_PROBE)
                choice.head, choice.tail, choice.write = head, tail, self.connection.write

    def on_begin(self, choice: AnswerChoice) -> None:
        """Writes what precedes a choice's first token."""

    def piece(self, choice: AnswerChoice, part: bytes) -> bytes:
        """The event of one token of a stream."""
        raise NotImplementedError

    def last(self, choice: AnswerChoice) -> bytes:
        """The event with a choice's last token and its finish reason."""
        raise NotImplementedError

    def closing(self) -> bytes:
        """The events after the last choice's end."""
        raise NotImplementedError

    def body(self) -> bytes:
        """The whole answer, not streamed."""
        raise NotImplementedError

    def on_finish(self, choice: AnswerChoice) -> None:
        """One choice is complete; after the last one, so is the answer."""
        self.left -= 1
        if self.streaming:
            last = self.last(choice)
            if self.left:
                self.connection.send(last)
            else:
                self.connection.end_stream(last + self.closing())
        elif not self.left:
            self.connection.respond(200, self.body())
        if not self.left and self.on_complete is not None:
            self.on_complete(self)


def _reason(choice: AnswerChoice) -> str:
    tool = choice.answer.job.tool
    if tool is not None and tool.required and choice.piece.reason is FinishReason.STOP:
        return "tool_calls"
    return choice.piece.reason.value


class ChatAnswer(EngineAnswer):
    """``/v1/chat/completions``."""

    ID_PREFIX = "chatcmpl-"

    def __init__(self, connection: Connection, job: GenerationJob, pieces: Pieces, ident: str, created: int) -> None:
        super().__init__(connection, job, pieces, ident, created)
        self.constant = not job.continuous_usage and job.tool is None
        self._open = b'{"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            quoted(self.id), created, quoted(job.model),
        )  # fmt: skip

    def _chunk(self, choice: AnswerChoice, delta: bytes, rest: bytes) -> bytes:
        usage = b""
        if self.job.continuous_usage:
            done = min(choice.position // TOKEN_BYTES, choice.piece.tokens)
            usage = b',"usage":' + json.dumps(self.usage(done), separators=(",", ":")).encode()
        values = (self._open, choice.index, delta, rest, usage)
        return event(b'%b{"index":%d,"delta":{%b},"logprobs":null,%b%b}' % values)

    def on_begin(self, choice: AnswerChoice) -> None:
        role = self._chunk(
            choice, b'"role":"assistant","content":""', b'"finish_reason":null}],"prompt_token_ids":null'
        )
        self.connection.send(role)

    def _delta(self, choice: AnswerChoice, part: bytes) -> bytes:
        tool = self.job.tool
        if tool is None:
            return b'"content":"%b"' % part
        arguments = quoted(part.decode())
        if choice.position <= TOKEN_BYTES:
            return b'"tool_calls":[{"id":%b,"type":"function","index":0,"function":{"name":%b,"arguments":%b}}]' % (
                quoted(f"chatcmpl-tool-{self.id[9:]}"), quoted(tool.name), arguments,
            )  # fmt: skip
        return b'"tool_calls":[{"index":0,"function":{"arguments":%b}}]' % arguments

    def piece(self, choice: AnswerChoice, part: bytes) -> bytes:
        return self._chunk(choice, self._delta(choice, part), b'"finish_reason":null,"token_ids":null}]')

    def last(self, choice: AnswerChoice) -> bytes:
        rest = choice.rest
        choice.position += TOKEN_BYTES
        stop = b"null" if choice.piece.stop is None else quoted(choice.piece.stop)
        ending = b'"finish_reason":"%b","stop_reason":%b,"token_ids":null}]' % (_reason(choice).encode(), stop)
        return self._chunk(choice, self._delta(choice, rest), ending)

    def closing(self) -> bytes:
        if not self.job.include_usage:
            return event(b"[DONE]")
        usage = json.dumps(self.usage(), separators=(",", ":")).encode()
        return event(b'%b],"usage":%b}' % (self._open, usage)) + event(b"[DONE]")

    def body(self) -> bytes:
        return json.dumps(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.job.model,
                "choices": [self._whole(choice) for choice in self.choices],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": self.usage(),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "kv_transfer_params": None,
            },
            separators=(",", ":"),
        ).encode()

    def _whole(self, choice: AnswerChoice) -> dict[str, Any]:
        tool = self.job.tool
        calls = []
        if tool is not None:
            call = {"name": tool.name, "arguments": choice.text.decode()}
            ident = f"chatcmpl-tool-{self.id[9:]}{choice.index or ''}"
            calls = [{"id": ident, "type": "function", "function": call}]
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": choice.text.decode() if tool is None else None,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": calls,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": _reason(choice),
            "stop_reason": choice.piece.stop,
            "token_ids": None,
        }


class CompletionAnswer(EngineAnswer):
    """``/v1/completions``."""

    def __init__(self, connection: Connection, job: GenerationJob, pieces: Pieces, ident: str, created: int) -> None:
        super().__init__(connection, job, pieces, ident, created)
        self.constant = not job.continuous_usage
        self._open = b'{"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            quoted(self.id), created, quoted(job.model),
        )  # fmt: skip

    def _chunk(self, choice: AnswerChoice, part: bytes, ending: bytes) -> bytes:
        usage = b"null"
        if self.job.continuous_usage:
            done = min(choice.position // TOKEN_BYTES, choice.piece.tokens)
            usage = json.dumps(self.usage(done), separators=(",", ":")).encode()
        return event(
            b'%b{"index":%d,"text":%b,"logprobs":null,%b,"prompt_token_ids":null,"token_ids":null}],"usage":%b}'
            % (self._open, choice.index, part, ending, usage)
        )

    def _echo(self, choice: AnswerChoice) -> str:
        if not self.job.echo:
            return ""
        return self.job.prompts[choice.index // self.job.n].replace(b"\0", b"").decode("utf-8", "replace")

    def on_begin(self, choice: AnswerChoice) -> None:
        echo = self._echo(choice)
        if echo:
            self.connection.send(self._chunk(choice, quoted(echo), b'"finish_reason":null,"stop_reason":null'))

    def piece(self, choice: AnswerChoice, part: bytes) -> bytes:
        return self._chunk(choice, b'"%b"' % part, b'"finish_reason":null,"stop_reason":null')

    def last(self, choice: AnswerChoice) -> bytes:
        rest = choice.rest
        choice.position += TOKEN_BYTES
        stop = b"null" if choice.piece.stop is None else quoted(choice.piece.stop)
        ending = b'"finish_reason":"%b","stop_reason":%b' % (choice.piece.reason.value.encode(), stop)
        return self._chunk(choice, b'"%b"' % rest, ending)

    def closing(self) -> bytes:
        if not self.job.include_usage:
            return event(b"[DONE]")
        usage = json.dumps(self.usage(), separators=(",", ":")).encode()
        return event(b'%b],"usage":%b}' % (self._open, usage)) + event(b"[DONE]")

    def body(self) -> bytes:
        choices = [
            {
                "index": choice.index,
                "text": self._echo(choice) + choice.text.decode(),
                "logprobs": None,
                "finish_reason": choice.piece.reason.value,
                "stop_reason": choice.piece.stop,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
            for choice in self.choices
        ]
        return json.dumps(
            {
                "id": self.id,
                "object": "text_completion",
                "created": self.created,
                "model": self.job.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": None,
                "usage": self.usage(),
                "kv_transfer_params": None,
            },
            separators=(",", ":"),
        ).encode()
