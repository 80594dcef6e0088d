"""Which request gets which answer: the paths of vLLM's server, and the emulator's own under ``/emulator/``."""

from __future__ import annotations

import base64
import json
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from exaserve.domain.errors import ConfigError
from exaserve.emulator import ask, text
from exaserve.emulator.answers import AnswerChoice, ChatAnswer, CompletionAnswer, EngineAnswer
from exaserve.emulator.answers_events import MessagesAnswer, ResponsesAnswer
from exaserve.emulator.metrics import garble, rename, without
from exaserve.perfmodel.engine import FinishReason

if TYPE_CHECKING:
    from exaserve.emulator.http import Connection, HttpRequest
    from exaserve.emulator.replica import Replica

__all__ = ["control", "dispatch", "error_body"]

VERSION = "0.32.0"
"""The vLLM version whose forms these are."""

EMBEDDING_WIDTH = 64


def error_body(path: str, message: str, kind: str, param: str | None, status: int) -> bytes:
    """An error as vLLM writes it: OpenAI's form, or Anthropic's on its path."""
    if path.startswith("/v1/messages"):
        names = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large"}
        return _json({"type": "error", "error": {"type": names.get(status, "api_error"), "message": message}})
    return _json({"error": {"message": message, "type": kind, "param": param, "code": status}})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- what vLLM's server answers ---------------------------------------------------------------------------------------


def _generate(
    read: Callable[[dict[str, Any], ask.ModelLimits], ask.GenerationJob], kind: type[EngineAnswer]
) -> Callable[[Replica, Connection, HttpRequest], None]:
    def handle(replica: Replica, connection: Connection, request: HttpRequest) -> None:
        limits = replica.limits
        job = read(ask.parse_object(request.body), limits)
        pieces: list[tuple[int, ask.Piece]] = []
        for prompt in job.prompts:
            size = len(prompt) // text.TOKEN_BYTES
            pieces += [(size, ask.plan(job, prompt, index, limits)) for index in range(job.n)]
        replica.requests_total += 1
        ident = request.request_id or f"{replica.index:04x}{limits.seed & 0xFFFF:04x}{replica.requests_total:08x}"
        answer = kind(connection, job, pieces, ident, int(time.time()))
        _spoil(replica, answer)
        replica.submit(answer)

    return handle


def _models(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    del request
    permission = {
        "id": f"modelperm-{replica.index:016x}", "object": "model_permission", "created": int(replica.created),
        "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
        "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip
    data = [
        {
            "id": name, "object": "model", "created": int(replica.created), "owned_by": "vllm",
            "root": replica.config.model, "parent": None, "max_model_len": replica.limits.max_model_len,
            "permission": [permission],
        }
        for name in replica.limits.names
    ]  # fmt: skip
    connection.respond(200, _json({"object": "list", "data": data}))


def _tokenize(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    raw = ask.parse_object(request.body)
    if "messages" in raw:
        job = ask.read_chat({k: raw[k] for k in ("model", "messages", "tools") if k in raw}, replica.limits)
        data = job.prompts[0]
    else:
        data = ask.read_completion({k: raw[k] for k in ("model", "prompt") if k in raw}, replica.limits).prompts[0]
    tokens = text.tokenize(data)
    connection.respond(
        200,
        _json(
            {
                "count": len(tokens),
                "max_model_len": replica.limits.max_model_len,
                "tokens": tokens,
                "token_strs": None,
            }
        ),
    )


def _detokenize(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    del replica
    tokens = ask.Fields(ask.parse_object(request.body)).required("tokens")
    if not isinstance(tokens, list) or not all(isinstance(i, int) for i in tokens):
        raise ask.BadRequest("tokens should be a list of integers.", "tokens", kind="Bad Request")
    connection.respond(200, _json({"prompt": text.detokenize(tokens).decode("utf-8", "replace")}))


def _count_tokens(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    job = ask.read_messages(ask.parse_object(request.body), replica.limits)
    connection.respond(200, _json({"input_tokens": len(job.prompts[0]) // text.TOKEN_BYTES}))


class _EmbeddingAnswer(EngineAnswer):
    """``/v1/embeddings``: prompts are prefilled, and a vector is drawn for each."""

    ID_PREFIX = "embd-"

    def body(self) -> bytes:
        wide = self.job.raw.get("dimensions") or EMBEDDING_WIDTH
        packed = self.job.raw.get("encoding_format") == "base64"
        data = []
        for choice, prompt in zip(self.choices, self.job.prompts, strict=True):
            rng = random.Random(zlib.crc32(prompt))
            raw = [rng.gauss(0.0, 1.0) for _ in range(wide)]
            norm = sum(x * x for x in raw) ** 0.5
            vector = [x / norm for x in raw]
            value = base64.b64encode(struct.pack(f"<{wide}f", *vector)).decode() if packed else vector
            data.append({"index": choice.index, "object": "embedding", "embedding": value})
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens, "completion_tokens": 0}
        whole = {"id": self.id, "object": "list", "created": self.created, "model": self.job.model, "data": data}
        return _json(whole | {"usage": usage | {"prompt_tokens_details": None}})


def _embeddings(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    raw = ask.parse_object(request.body)
    fields = ask.Fields(raw)
    wide = fields.integer("dimensions", 1)
    if wide is not None and wide > 8192:
        raise ask.BadRequest("dimensions must be at most 8192.", "dimensions")
    job = ask.read_completion({"model": raw.get("model"), "prompt": fields.required("input")}, replica.limits)
    job.max_tokens, job.raw = 1, raw
    pieces = [(len(prompt) // text.TOKEN_BYTES, ask.Piece(b"", 1, FinishReason.STOP, [])) for prompt in job.prompts]
    for size, _ in pieces:
        if size + 1 > replica.limits.max_model_len:
            raise ask.BadRequest(
                f"This model's maximum context length is {replica.limits.max_model_len} tokens. However, your request "
                f"has {size} input tokens. Please reduce the length of the input messages.",
                "input_tokens",
            )
    replica.requests_total += 1
    answer = _EmbeddingAnswer(connection, job, pieces, request.request_id or f"{replica.requests_total:016x}", 0)
    replica.submit(answer)


def _health(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    del request
    connection.respond(200 if replica.faults.health else 503, b"")


def _version(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    del replica, request
    connection.respond(200, _json({"version": VERSION}))


def _metrics(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    del request
    fault = replica.faults.metrics
    if fault == "hang":
        connection.on_gone = None
        return
    if fault == "error":
        connection.respond(500, b"Internal Server Error", b"text/plain; charset=utf-8")
        return
    body = replica.frozen_metrics if fault == "frozen" else replica.exposition.render()
    change = {"renamed": rename, "missing": without, "garbage": garble}.get(fault)
    connection.respond(200, change(body) if change else body, b"text/plain; version=0.0.4; charset=utf-8")


_Handler = Callable[["Replica", "Connection", "HttpRequest"], None]
_INFERENCE: dict[str, _Handler] = {
    "/v1/chat/completions": _generate(ask.read_chat, ChatAnswer),
    "/v1/completions": _generate(ask.read_completion, CompletionAnswer),
    "/v1/responses": _generate(ask.read_responses, ResponsesAnswer),
    "/v1/messages": _generate(ask.read_messages, MessagesAnswer),
    "/v1/messages/count_tokens": _count_tokens,
    "/v1/embeddings": _embeddings,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
}
_GET: dict[str, _Handler] = {
    "/health": _health,
    "/ping": _health,
    "/metrics": _metrics,
    "/version": _version,
    "/v1/models": _models,
}


def dispatch(replica: Replica, connection: Connection, request: HttpRequest) -> None:
    """Answers one request to a replica, or begins to."""
    path, method = request.path, request.method
    if path.startswith("/emulator/"):
        control([replica], connection, request)
        return
    allowed = "POST" if path in _INFERENCE else "GET"
    handler = _INFERENCE.get(path) or _GET.get(path)
    if handler is None:
        connection.respond(404, _json({"detail": "Not Found"}))
        return
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        connection.respond(405, _json({"detail": "Method Not Allowed"}), extra=b"allow: %b\r\n" % allowed.encode())
        return
    if allowed == "POST" or path == "/v1/models":
        if replica.faults.freeze:
            return  # set_faults answers what is still waiting when it thaws
        if allowed == "POST" and _fails(replica, connection, path):
            return
    try:
        handler(replica, connection, request)
    except ask.BadRequest as error:
        connection.respond(error.status, error_body(path, error.message, error.kind, error.param, error.status))


# -- faults -----------------------------------------------------------------------------------------------------------


def _fails(replica: Replica, connection: Connection, path: str) -> bool:
    """Faults that come instead of an answer. True if one hit."""
    faults, rng = replica.faults, replica.rng
    if faults.reset == "before" and rng.random() < faults.reset_rate:
        connection.reset()
        return True
    if faults.error_rate and rng.random() < faults.error_rate:
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        kind = "InternalServerError"
        connection.respond(faults.error_status, error_body(path, message, kind, None, faults.error_status))
        return True
    return False


def _spoil(replica: Replica, answer: EngineAnswer) -> None:
    """Faults that hit an answer on its way."""
    faults, rng = replica.faults, replica.rng
    if faults.reset == "after" and rng.random() < faults.reset_rate:
        _Saboteur(replica, answer, 1, reset=True)
    elif faults.cut_after is not None and answer.job.stream and rng.random() < faults.cut_rate:
        _Saboteur(replica, answer, faults.cut_after, reset=False)


class _Saboteur:
    """Ends an answer after some tokens of its first choice, in place of that choice."""

    __slots__ = ("answer", "choice", "left", "replica", "reset")

    def __init__(self, replica: Replica, answer: EngineAnswer, tokens: int, *, reset: bool) -> None:
        self.replica, self.answer, self.left, self.reset = replica, answer, tokens, reset
        self.choice: AnswerChoice = answer.choices[0]
        self.choice.request.tag = self

    def begin(self) -> None:
        self.choice.begin()

    def emit(self) -> None:
        if self.left > 0:
            self.left -= 1
            self.choice.emit()
        if self.left <= 0:
            self._strike()

    def finish(self) -> None:
        """Too short to be cut earlier: what is said goes out, its end does not."""
        if self.answer.streaming and self.left > 0:
            self.choice.emit()
        self._strike()

    def _strike(self) -> None:
        connection = self.answer.connection
        self.replica.abort(self.answer)
        if connection.transport.is_closing():
            return
        connection.on_gone = None
        if self.reset:
            if not self.answer.streaming:
                connection.respond_partly(self.answer.body())
            self.replica.reset_soon(connection)
        else:
            connection.end_stream()


# -- the emulator's own paths -----------------------------------------------------------------------------------------


def control(replicas: list[Replica], connection: Connection, request: HttpRequest) -> None:
    """``/emulator/state`` and ``/emulator/fault``, for one replica or (control port) for several.

    A fault body is an object with fields of :class:`exaserve.emulator.faults.Faults` to change, and beside them
    ``replica`` (a number, a list of them, or "all"; control port only), ``clear`` (true: all others back to healthy
    first), ``kill`` (true), and ``restart`` (true, or the load time in seconds).
    """
    try:
        if (request.path, request.method) == ("/emulator/state", "GET"):
            states = [replica.state() for replica in replicas]
            connection.respond(200, _json({"replicas": states}))
        elif (request.path, request.method) == ("/emulator/fault", "POST"):
            chosen = _set(replicas, ask.parse_object(request.body))
            connection.respond(200, _json({"replicas": [replica.state() for replica in chosen]}))
        elif request.path == "/health":
            connection.respond(200, b"")
        else:
            connection.respond(404, _json({"detail": "Not Found"}))
    except (ConfigError, ask.BadRequest) as error:
        connection.respond(400, error_body(request.path, error.message, "BadRequestError", error.param, 400))


def _chosen(replicas: list[Replica], which: Any) -> list[Replica]:
    if which is None or which == "all":
        return replicas
    numbers = which if isinstance(which, list) else [which]
    by_index = {replica.index: replica for replica in replicas}
    unknown = [n for n in numbers if isinstance(n, bool) or not isinstance(n, int) or n not in by_index]
    if unknown:
        raise ConfigError(f"No replica {unknown[0]!r}; there are {min(by_index)} to {max(by_index)}.", param="replica")
    return [by_index[n] for n in numbers]


def _set(replicas: list[Replica], changes: dict[str, Any]) -> Iterable[Replica]:
    chosen = _chosen(replicas, changes.pop("replica", None))
    clear, kill, restart = (changes.pop(name, None) for name in ("clear", "kill", "restart"))
    if isinstance(restart, bool) or restart is None:
        load_s = None
    elif isinstance(restart, int | float) and restart >= 0:
        load_s = float(restart)
    else:
        raise ConfigError("restart should be true or a number of seconds.", param="restart")
    for replica in chosen:
        if clear:
            replica.clear_faults()
        if changes:
            replica.set_faults(changes)
        if restart is not None and restart is not False:
            replica.restart(load_s)
        elif kill:
            replica.kill()
    return chosen
