"""Reads the bodies that clients send into a :class:`Job`, or says in the engine's own words what is wrong with them."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from exaserve.emulator import text
from exaserve.perfmodel.engine import FinishReason

__all__ = [
    "BadRequest",
    "Fields",
    "GenerationJob",
    "ModelLimits",
    "Piece",
    "ToolCall",
    "parse_object",
    "plan",
    "read_chat",
    "read_completion",
    "read_messages",
    "read_responses",
]

N_MAX = 128
"""Choices of one request."""


class BadRequest(Exception):
    """The request cannot be served as it stands."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a replica can hold, and how it behaves. Lengths in tokens."""

    names: tuple[str, ...]
    max_model_len: int
    block_size: int
    seed: int
    output_tokens_mean: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call that an emulated model makes when the client forces one."""

    name: str
    arguments: str
    required: bool


@dataclass(slots=True)
class GenerationJob:
    """One generation request, whatever API it came by.

    Attributes:
        prompts: token bytes of each prompt.
        max_tokens: the client's bound, None where it gave none.
        stop: strings that end the answer.
        echo: whether completions repeat the prompt.
        salt: requests of another one share no prefix cache with it.
    """

    model: str
    prompts: list[bytes]
    n: int = 1
    stream: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: list[str] = field(default_factory=list)
    include_stop: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    salt: str = ""
    seed: int = 0
    tool: ToolCall | None = None
    raw: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice of a job will say.

    Attributes:
        text: the answer, ASCII, nothing in it that JSON escapes unless it is a tool call's arguments.
        tokens: tokens generated for it, at least as many as the text needs.
        whole: whether every token is exactly four bytes of ``text``.
        stop: the stop string that ended it, if one did.
        hashes: chained block hashes of prompt and answer.
    """

    text: bytes
    tokens: int
    reason: FinishReason
    hashes: list[int]
    whole: bool = False
    stop: str | None = None


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The standard parser accepts lone surrogates, which clients do send; it judges the rest the same way.
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadRequest(
                f"1 validation error:\n  {{'type': 'json_invalid', 'loc': ('body',), 'msg': 'JSON decode error', "
                f"'ctx': {{'error': {str(error)!r}}}}}",
                kind="Bad Request",
            ) from None
    except RecursionError:
        raise BadRequest("JSON is nested too deeply.", kind="Bad Request") from None
    if not isinstance(value, dict):
        raise BadRequest(
            "1 validation error:\n  {'type': 'model_attributes_type', 'loc': ('body',), "
            "'msg': 'Input should be a valid dictionary or object to extract fields from'}",
            kind="Bad Request",
        )
    return value


class Fields:
    """Typed access to a request's fields; null counts as absent."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def _wrong(self, name: str, what: str) -> BadRequest:
        return BadRequest(
            f"1 validation error:\n  {{'type': '{what}_type', 'loc': ('body', '{name}'), "
            f"'msg': 'Input should be a valid {what}'}}",
            param=name,
            kind="Bad Request",
        )

    def required(self, name: str) -> Any:
        value = self.raw.get(name)
        if value is None:
            raise BadRequest(
                f"1 validation error:\n  {{'type': 'missing', 'loc': ('body', '{name}'), 'msg': 'Field required'}}",
                param=name,
                kind="Bad Request",
            )
        return value

    def flag(self, name: str) -> bool:
        value = self.raw.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._wrong(name, "boolean")
        return value

    def integer(self, name: str, least: int) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "integer")
        if value < least:
            raise BadRequest(f"{name} must be at least {least}, got {value}.", param=name)
        return value

    def number(self, name: str, least: float, most: float) -> None:
        """Checks a sampling parameter; the emulated model samples nothing."""
        value = self.raw.get(name)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "number")
        if not least <= value <= most or math.isnan(value):
            raise BadRequest(f"{name} must be in [{least:g}, {most:g}], got {value:g}.", param=name)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.raw.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(name, "dictionary")
        return value

    def string(self, name: str) -> str | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "string")
        return value

    def strings(self, name: str) -> list[str]:
        value = self.raw.get(name)
        if value is None:
            return []
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(s, str) for s in values):
            raise self._wrong(name, "list")
        return [s for s in values if s]


def _model(fields: Fields, limits: ModelLimits) -> str:
    """The model asked for; an absent one stands for the served one, as vLLM's server takes it."""
    name = fields.string("model") or limits.names[0]
    if name not in limits.names:
        raise BadRequest(f"The model `{name}` does not exist.", "model", 404, "NotFoundError")
    return name


def _common(fields: Fields, job: GenerationJob, max_names: tuple[str, ...]) -> GenerationJob:
    job.raw = fields.raw
    job.salt = fields.string("cache_salt") or ""
    job.n = fields.integer("n", 1) or 1
    if job.n > N_MAX:
        raise BadRequest(f"n must be at most {N_MAX}, got {job.n}.", "n")
    job.stream = fields.flag("stream")
    for name in max_names:
        if fields.raw.get(name) is not None:
            job.max_tokens = fields.integer(name, 1)
            break
    job.min_tokens = fields.integer("min_tokens", 0) or 0
    if job.max_tokens is not None and job.min_tokens > job.max_tokens:
        raise BadRequest(
            f"min_tokens must be less than or equal to max_tokens={job.max_tokens}, got {job.min_tokens}.", "min_tokens"
        )
    job.ignore_eos = fields.flag("ignore_eos")
    job.include_stop = fields.flag("include_stop_str_in_output")
    options = fields.mapping("stream_options")
    if options and not job.stream:
        raise BadRequest("Stream options can only be defined when `stream=True`.", "stream_options")
    job.include_usage = bool(options.get("include_usage"))
    job.continuous_usage = job.include_usage and bool(options.get("continuous_usage_stats"))
    fields.number("temperature", 0.0, 2.0)
    fields.number("top_p", 0.0, 1.0)
    fields.number("presence_penalty", -2.0, 2.0)
    fields.number("frequency_penalty", -2.0, 2.0)
    seed = fields.raw.get("seed")
    job.seed = seed if isinstance(seed, int) else 0
    return job


def _content(prompt: text.Prompt, content: Any, where: str) -> None:
    """A message's content: a string, or parts of text, pictures and tool results."""
    if content is None:
        return
    if isinstance(content, str):
        prompt.text(content)
        return
    if not isinstance(content, list):
        raise BadRequest(f"{where}.content should be a string or a list of parts.", where, kind="Bad Request")
    for part in content:
        if isinstance(part, str):
            prompt.text(part)
        elif not isinstance(part, dict):
            raise BadRequest(f"{where}.content has a part that is no object.", where, kind="Bad Request")
        elif isinstance(part.get("text"), str):
            prompt.text(part["text"])
        elif "content" in part:
            _content(prompt, part["content"], where)
        else:
            prompt.image(json.dumps(part, sort_keys=True))


def _messages(prompt: text.Prompt, messages: Any, name: str) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"{name} should be a list with at least one message.", name, kind="Bad Request")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"{name}[{i}] should be an object.", name, kind="Bad Request")
        role = message.get("role", "user" if "type" in message else None)
        if not isinstance(role, str):
            raise BadRequest(f"{name}[{i}].role is required.", name, kind="Bad Request")
        prompt.header(role)
        _content(prompt, message.get("content"), f"{name}[{i}]")
        for key in ("tool_calls", "output", "arguments"):
            if message.get(key):
                prompt.text(json.dumps(message[key]))


def _tools(prompt: text.Prompt, tools: Any) -> list[dict[str, Any]]:
    """The tools' functions, in either API's form; their definitions become part of the prompt."""
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRequest("tools should be a list of objects.", "tools", kind="Bad Request")
    if tools:
        prompt.header("tools")
        prompt.text(json.dumps(tools))
    return [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools]


def _example(schema: Any, depth: int = 0) -> Any:
    """A value that a JSON schema allows: enough for clients that parse a call's arguments."""
    if not isinstance(schema, dict) or depth > 8:
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        wanted = schema.get("required") or list(properties)
        return {name: _example(properties.get(name), depth + 1) for name in wanted}
    if kind == "array":
        return [_example(schema.get("items"), depth + 1)]
    return {"string": "text", "integer": 1, "number": 1.5, "boolean": True}.get(kind if isinstance(kind, str) else "")


def _forced(choice: Any, functions: list[dict[str, Any]]) -> ToolCall | None:
    """The call that ``tool_choice`` forces, in either API's form; None where the model may answer in words."""
    if choice is None or choice in ("auto", "none"):
        return None
    name: Any = None
    if isinstance(choice, dict):
        if choice.get("type") in ("auto", "none"):
            return None
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
    elif choice != "required":
        raise BadRequest(f"tool_choice {choice!r} is not supported.", "tool_choice")
    if not functions:
        raise BadRequest("When using `tool_choice`, `tools` must be set.", "tool_choice")
    found = [f for f in functions if name is None or f.get("name") == name]
    if not found:
        raise BadRequest(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
        )
    schema = found[0].get("parameters") or found[0].get("input_schema") or {}
    return ToolCall(str(found[0].get("name")), json.dumps(_example(schema) or {}), required=name is None)


def read_chat(raw: dict[str, Any], limits: ModelLimits) -> GenerationJob:
    """``/v1/chat/completions``."""
    fields = Fields(raw)
    job = GenerationJob(_model(fields, limits), [])
    prompt = text.Prompt()
    functions = _tools(prompt, raw.get("tools"))
    _messages(prompt, fields.required("messages"), "messages")
    prompt.header("assistant")
    job.prompts = [prompt.data()]
    _common(fields, job, ("max_completion_tokens", "max_tokens"))
    job.stop = fields.strings("stop")
    if fields.flag("logprobs") or raw.get("top_logprobs"):
        raise BadRequest("logprobs are not supported by this engine.", "logprobs")
    job.tool = _forced(raw.get("tool_choice"), functions)
    return job


def read_completion(raw: dict[str, Any], limits: ModelLimits) -> GenerationJob:
    """``/v1/completions``: a string, several, token ids, or several lists of them."""
    fields = Fields(raw)
    job = GenerationJob(_model(fields, limits), [])
    value = fields.required("prompt")
    several = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    for one in several:
        prompt = text.Prompt()
        if isinstance(one, str):
            prompt.text(one)
        elif isinstance(one, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in one):
            prompt.tokens(one)
        else:
            raise BadRequest("prompt should be a string, token ids, or a list of those.", "prompt", kind="Bad Request")
        job.prompts.append(prompt.data())
    _common(fields, job, ("max_tokens",))
    if job.max_tokens is None:
        job.max_tokens = 16
    job.stop = fields.strings("stop")
    job.echo = fields.flag("echo")
    if raw.get("logprobs"):
        raise BadRequest("logprobs are not supported by this engine.", "logprobs")
    return job


def read_responses(raw: dict[str, Any], limits: ModelLimits) -> GenerationJob:
    """``/v1/responses``."""
    fields = Fields(raw)
    job = GenerationJob(_model(fields, limits), [])
    prompt = text.Prompt()
    functions = _tools(prompt, raw.get("tools"))
    instructions = fields.string("instructions")
    if instructions:
        prompt.header("system")
        prompt.text(instructions)
    value = fields.required("input")
    if isinstance(value, str):
        prompt.header("user")
        prompt.text(value)
    else:
        _messages(prompt, value, "input")
    prompt.header("assistant")
    job.prompts = [prompt.data()]
    _common(fields, job, ("max_output_tokens",))
    job.tool = _forced(raw.get("tool_choice"), functions)
    return job


def read_messages(raw: dict[str, Any], limits: ModelLimits) -> GenerationJob:
    """``/v1/messages`` in Anthropic's form."""
    fields = Fields(raw)
    job = GenerationJob(_model(fields, limits), [])
    prompt = text.Prompt()
    functions = _tools(prompt, raw.get("tools"))
    if raw.get("system"):
        prompt.header("system")
        _content(prompt, raw["system"], "system")
    _messages(prompt, fields.required("messages"), "messages")
    prompt.header("assistant")
    job.prompts = [prompt.data()]
    _common(fields, job, ("max_tokens",))
    job.stop = fields.strings("stop_sequences")
    choice = raw.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "any":
        choice = "required"
    job.tool = _forced(choice, functions)
    return job


def plan(job: GenerationJob, prompt: bytes, index: int, limits: ModelLimits) -> Piece:
    """What choice ``index`` of a prompt will say, and how long it is. BadRequest where it does not fit the context."""
    size = len(prompt) // text.TOKEN_BYTES
    most = limits.max_model_len - size
    if most < 1:
        raise BadRequest(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your request has {size} "
            "input tokens. Please reduce the length of the input messages.",
            "input_tokens",
        )
    if job.max_tokens is not None and job.max_tokens > most:
        raise BadRequest(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested "
            f"{job.max_tokens} output tokens and your prompt contains {size} input tokens, for a total of "
            f"{job.max_tokens + size} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            "max_tokens",
        )
    bound = most if job.max_tokens is None else job.max_tokens
    seed = zlib.crc32(prompt, (limits.seed * 1_000_003 + job.seed * 8191 + index * 127) & 0xFFFFFFFF)
    tokens, reason = bound, FinishReason.LENGTH
    if job.tool is not None:
        answer = job.tool.arguments.encode()
        wanted = max(1, text.count(answer))
        if wanted <= bound:
            tokens, reason = wanted, FinishReason.STOP
        answer = answer[: tokens * text.TOKEN_BYTES]
        return Piece(answer, tokens, reason, text.chain(prompt, limits.block_size))
    if not job.ignore_eos:
        natural = max(job.min_tokens, text.natural_length(seed, limits.output_tokens_mean))
        if natural <= bound:
            tokens, reason = natural, FinishReason.STOP
    answer = text.output(seed, tokens)
    whole, ended_by = True, None
    if job.stop:
        least = job.min_tokens * text.TOKEN_BYTES
        hits = [(at, s) for s in job.stop if (at := answer.find(s.encode("utf-8", "surrogatepass"), least)) >= 0]
        if hits:
            at, ended_by = min(hits)
            end = at + len(ended_by.encode("utf-8", "surrogatepass"))
            tokens, reason, whole = -(-end // text.TOKEN_BYTES), FinishReason.STOP, False
            answer = answer[: end if job.include_stop else at]
    hashes = text.chain(prompt + answer, limits.block_size, job.salt)
    return Piece(answer, tokens, reason, hashes, whole=whole, stop=ended_by)
