"""The two APIs that stream named events: OpenAI's Responses and Anthropic's Messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from exaserve.emulator.answers import AnswerChoice, EngineAnswer, Pieces, quoted
from exaserve.perfmodel.engine import FinishReason

if TYPE_CHECKING:
    from exaserve.emulator.ask import GenerationJob
    from exaserve.emulator.http import Connection

__all__ = ["MessagesAnswer", "ResponsesAnswer"]


def named(name: str, payload: dict[str, Any]) -> bytes:
    """A server-sent event with a name; its type is the first key of its data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(payload, separators=(",", ":")).encode())


class MessagesAnswer(EngineAnswer):
    """``/v1/messages`` in Anthropic's form."""

    ID_PREFIX = "msg_"

    def __init__(self, connection: Connection, job: GenerationJob, pieces: Pieces, ident: str, created: int) -> None:
        super().__init__(connection, job, pieces, ident, created)
        self.constant = job.tool is None

    def _stop_reason(self) -> tuple[str, str | None]:
        piece = self.choices[0].piece
        if piece.reason is FinishReason.LENGTH:
            return "max_tokens", None
        if piece.stop is not None:
            return "stop_sequence", piece.stop
        return ("end_turn" if self.job.tool is None else "tool_use"), None

    def _usage(self, output: int) -> dict[str, int]:
        return {
            "input_tokens": self.prompt_tokens - self.cached_tokens,
            "output_tokens": output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
        }

    def _message(
        self, content: list[dict[str, Any]], output: int, stop: tuple[str | None, str | None]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.job.model,
            "stop_reason": stop[0],
            "stop_sequence": stop[1],
            "usage": self._usage(output),
        }

    def _tool_use(self, given: Any) -> dict[str, Any]:
        assert self.job.tool is not None
        return {"type": "tool_use", "id": f"toolu_{self.id[4:]}", "name": self.job.tool.name, "input": given}

    def on_begin(self, choice: AnswerChoice) -> None:
        del choice
        block = {"type": "text", "text": ""} if self.job.tool is None else self._tool_use({})
        start = {"type": "message_start", "message": self._message([], 0, (None, None))}
        self.connection.send(
            named("message_start", start)
            + named("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block})
        )

    def piece(self, choice: AnswerChoice, part: bytes) -> bytes:
        del choice
        if self.job.tool is None:
            delta = b'"type":"text_delta","text":"%b"' % part
        else:
            delta = b'"type":"input_json_delta","partial_json":%b' % quoted(part.decode())
        return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{%b}}\n\n' % delta

    def last(self, choice: AnswerChoice) -> bytes:
        rest = self.piece(choice, choice.rest) if choice.rest else b""
        reason, sequence = self._stop_reason()
        return (
            rest
            + named("content_block_stop", {"type": "content_block_stop", "index": 0})
            + named(
                "message_delta",
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": sequence},
                    "usage": self._usage(self.completion_tokens),
                },
            )
        )

    def closing(self) -> bytes:
        return named("message_stop", {"type": "message_stop"})

    def body(self) -> bytes:
        said = self.choices[0].text.decode()
        if self.job.tool is None:
            block: dict[str, Any] = {"type": "text", "text": said}
        else:
            try:
                block = self._tool_use(json.loads(said))
            except ValueError:  # cut by max_tokens
                block = {"type": "text", "text": said}
        message = self._message([block], self.completion_tokens, self._stop_reason())
        return json.dumps(message, separators=(",", ":")).encode()


class ResponsesAnswer(EngineAnswer):
    """``/v1/responses``."""

    ID_PREFIX = "resp_"
    constant = False

    def __init__(self, connection: Connection, job: GenerationJob, pieces: Pieces, ident: str, created: int) -> None:
        super().__init__(connection, job, pieces, ident, created)
        self._sequence = 0
        self._item_id = f"msg_{ident}" if job.tool is None else f"fc_{ident}"

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return named(kind, payload)

    def _item(self, text: str, status: str) -> dict[str, Any]:
        tool = self.job.tool
        if tool is not None:
            call = {"call_id": f"call_{self.id[5:]}", "name": tool.name, "arguments": text}
            return {"type": "function_call", "id": self._item_id, **call, "status": status}
        content = [self._part(text)] if status != "in_progress" else []
        return {"type": "message", "id": self._item_id, "role": "assistant", "content": content, "status": status}

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _response(self, *, complete: bool) -> dict[str, Any]:
        raw = self.job.raw
        cut = self.choices[0].piece.reason is FinishReason.LENGTH
        status = "in_progress" if not complete else "incomplete" if cut else "completed"
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        done = "incomplete" if cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if complete and cut else None,
            "instructions": raw.get("instructions"),
            "max_output_tokens": self.job.max_tokens,
            "metadata": raw.get("metadata"),
            "model": self.job.model,
            "output": [self._item(self.choices[0].text.decode(), done)] if complete else [],
            "parallel_tool_calls": raw.get("parallel_tool_calls", True) is not False,
            "previous_response_id": raw.get("previous_response_id"),
            "temperature": raw.get("temperature", 1.0),
            "tool_choice": raw.get("tool_choice") or "auto",
            "tools": raw.get("tools") or [],
            "top_p": raw.get("top_p", 1.0),
            "truncation": raw.get("truncation") or "disabled",
            "usage": usage if complete else None,
        }

    def start(self) -> None:
        super().start()
        if self.streaming:
            response = self._response(complete=False)
            self.connection.send(
                self._event("response.created", response=response)
                + self._event("response.in_progress", response=response)
            )

    def on_begin(self, choice: AnswerChoice) -> None:
        del choice
        added = self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
        if self.job.tool is None:
            added += self._event(
                "response.content_part.added",
                item_id=self._item_id,
                output_index=0,
                content_index=0,
                part=self._part(""),
            )
        self.connection.send(added)

    def piece(self, choice: AnswerChoice, part: bytes) -> bytes:
        del choice
        if self.job.tool is not None:
            return self._event(
                "response.function_call_arguments.delta", item_id=self._item_id, output_index=0, delta=part.decode()
            )
        return self._event(
            "response.output_text.delta", item_id=self._item_id, output_index=0, content_index=0, delta=part.decode(),
            logprobs=[],
        )  # fmt: skip

    def last(self, choice: AnswerChoice) -> bytes:
        said = choice.text.decode()
        out = self.piece(choice, choice.rest) if choice.rest else b""
        where: dict[str, Any] = {"item_id": self._item_id, "output_index": 0}
        if self.job.tool is not None:
            out += self._event(
                "response.function_call_arguments.done", **where, name=self.job.tool.name, arguments=said
            )
        else:
            where["content_index"] = 0
            out += self._event("response.output_text.done", **where, text=said, logprobs=[])
            out += self._event("response.content_part.done", **where, part=self._part(said))
        return out + self._event("response.output_item.done", output_index=0, item=self._item(said, "completed"))

    def closing(self) -> bytes:
        cut = self.choices[0].piece.reason is FinishReason.LENGTH
        name = "response.incomplete" if cut else "response.completed"
        return self._event(name, response=self._response(complete=True))

    def body(self) -> bytes:
        return json.dumps(self._response(complete=True), separators=(",", ":")).encode()
