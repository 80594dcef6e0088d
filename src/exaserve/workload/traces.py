"""Plans from recorded traffic: the public trace formats, and files of real prompts. PURE: lines in, plan out.

| format | lines | time |
|---|---|---|
| BurstGPT | CSV ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`` | seconds |
| Azure LLM inference 2023, 2024 | CSV ``TIMESTAMP,ContextTokens,GeneratedTokens`` | ``2023-11-16 18:17:03.9799600`` |
| Mooncake | JSONL ``{"timestamp", "input_length", "output_length", "hash_ids"}`` | milliseconds |
| ShareGPT | JSON array, as it is published, or JSONL ``{"conversations": [{"from", "value"}, …]}`` | none |
| prompts | JSONL ``{"prompt" or "messages", "max_tokens", "timestamp", "scenario", "session"}`` | seconds, optional |

A Mooncake hash id stands for a block of 512 tokens; equal ids become equal text, so the trace's own reuse of prefixes
is kept. Of a ShareGPT conversation the first thing said is the prompt, and the answer to it gives the length.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.workload.arrivals import Arrivals
from exaserve.workload.plan import HEAD_TOKENS, HEADS, LoadPlan, PlannedRequest

__all__ = ["MOONCAKE_BLOCK_TOKENS", "TraceRow", "detect_format", "plan_from_rows", "read_rows"]

MOONCAKE_BLOCK_TOKENS = 512
_CLASSES = ((1_024, "short"), (8_192, "medium"), (math.inf, "long"))
"""Scenario of a row by its prompt's tokens, so that short and long ones are not averaged."""
_BYTES_PER_TOKEN = 4.0
_UNKNOWN = (
    "the trace is none that is known: BurstGPT or Azure CSV (by their first line), Mooncake JSONL "
    '("input_length"), a ShareGPT array, or JSONL with "prompt" or "messages"'
)
_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request.

    Attributes:
        at_s: seconds since the first one; None in a file of prompts without times.
        blocks: hash ids of the prompt's blocks.
        content: the prompt itself as JSON text, "" where only its length is known.
    """

    at_s: float | None
    prompt_tokens: int
    output_tokens: int
    scenario: str
    blocks: tuple[int, ...] = ()
    content: str = ""
    session: int | None = None


def detect_format(first_line: str) -> str:
    """``burstgpt``, ``azure``, ``mooncake``, ``prompts``, or ``array`` (of prompts: one JSON document).

    Raises:
        ConfigError: none of them.
    """
    line = first_line.lstrip("\ufeff").strip()
    columns = [column.strip().lower() for column in line.split(",")]
    if {"request tokens", "response tokens"} <= set(columns):
        return "burstgpt"
    if {"contexttokens", "generatedtokens"} <= set(columns):
        return "azure"
    if line.startswith("["):
        return "array"
    if line.startswith("{"):
        try:
            keys = json.loads(line).keys()
        except (ValueError, AttributeError):
            keys = ()
        if "input_length" in keys:
            return "mooncake"
        if {"prompt", "messages", "conversations"} & set(keys):
            return "prompts"
    raise ConfigError(_UNKNOWN)


def read_rows(lines: Iterable[str], output_tokens: int = 256) -> tuple[list[TraceRow], int]:
    """Rows in the order of their times, and how many were left out because they asked or answered nothing.

    Args:
        output_tokens: for prompts that do not say how long their answers may be.

    Raises:
        ConfigError: unknown format, or a line that cannot be read (with its number).
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise ConfigError("the trace is empty")
    kind = detect_format(first[1])
    if kind == "array":
        return _read_array("".join([first[1], *(line for _, line in numbered)]), output_tokens)
    columns: list[str] = []
    if kind in _CSV:
        columns = [name.strip().lower() for name in next(csv.reader([first[1].lstrip("\ufeff")]))]
    rows: list[TraceRow] = []
    skipped = 0
    for number, line in numbered if columns else itertools.chain([first], numbered):
        row = _row(kind, number, line, columns, output_tokens)
        if row is None:
            skipped += 1
        else:
            rows.append(row)
    if not rows:
        raise ConfigError("the trace has no request with a prompt and an answer")
    return _from_zero(rows), skipped


def _read_array(text: str, output_tokens: int) -> tuple[list[TraceRow], int]:
    """Rows of a file that is one JSON array."""
    try:
        entries = json.loads(text.lstrip("\ufeff"))
    except ValueError as error:
        raise ConfigError(f"the trace is no JSON array: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(_UNKNOWN)
    rows: list[TraceRow] = []
    for number, entry in enumerate(entries, 1):
        try:
            row = _prompt(entry, output_tokens)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"entry {number} of the trace: {what}") from None
        if row is not None:
            rows.append(row)
    if not rows:
        raise ConfigError("the trace has no request with a prompt and an answer")
    return _from_zero(rows), len(entries) - len(rows)


def _row(kind: str, number: int, line: str, columns: list[str], output_tokens: int) -> TraceRow | None:
    try:
        if columns:
            return _CSV[kind](dict(zip(columns, next(csv.reader([line])), strict=False)))
        value = json.loads(line)
        return _mooncake(value) if kind == "mooncake" else _prompt(value, output_tokens)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"line {number} of the trace ({kind}): {what}") from None


def _from_zero(rows: list[TraceRow]) -> list[TraceRow]:
    if any(row.at_s is None for row in rows):
        return rows
    rows.sort(key=lambda row: row.at_s or 0.0)
    start = rows[0].at_s or 0.0
    return [
        TraceRow(
            (row.at_s or 0.0) - start,
            row.prompt_tokens,
            row.output_tokens,
            row.scenario,
            row.blocks,
            row.content,
            row.session,
        )
        for row in rows
    ]


def _class(tokens: int) -> str:
    return next(name for limit, name in _CLASSES if tokens <= limit)


def _burstgpt(row: dict[str, str]) -> TraceRow | None:
    prompt, output = int(float(row["request tokens"])), int(float(row["response tokens"]))
    session = row.get("session id") or ""
    if prompt < 1 or output < 1:
        return None
    number = int(float(session)) if session.replace(".", "", 1).isdigit() else None
    return TraceRow(float(row["timestamp"]), prompt, output, _class(prompt), session=number)


def _azure(row: dict[str, str]) -> TraceRow | None:
    prompt, output = int(float(row["contexttokens"])), int(float(row["generatedtokens"]))
    if prompt < 1 or output < 1:
        return None
    return TraceRow(_seconds(row["timestamp"]), prompt, output, _class(prompt))


_CSV = {"burstgpt": _burstgpt, "azure": _azure}


def _mooncake(row: dict[str, Any]) -> TraceRow | None:
    prompt, output = int(row["input_length"]), int(row.get("output_length", 1))
    if prompt < 1 or output < 1:
        return None
    blocks = tuple(int(block) for block in row.get("hash_ids", ()))
    return TraceRow(float(row.get("timestamp", 0.0)) / 1000.0, prompt, output, _class(prompt), blocks)


def _prompt(row: dict[str, Any], output_tokens: int) -> TraceRow | None:
    content = row.get("messages") or row.get("prompt")
    recorded = 0
    if content is None and row.get("conversations"):
        content, answer = _first_exchange(row["conversations"])
        recorded = _tokens(answer)
    if not content:
        return None
    if not isinstance(content, str | list):
        raise TypeError("prompt must be a text and messages a list")
    text = content if isinstance(content, str) else "".join(_spoken(message) for message in content)
    tokens = max(1, _tokens(text))
    output = int(row.get("max_tokens") or row.get("output_tokens") or recorded or output_tokens)
    at = row.get("timestamp")
    return TraceRow(
        None if at is None else float(at),
        tokens,
        max(1, output),
        str(row.get("scenario") or _class(tokens)),
        content=json.dumps(content, ensure_ascii=False, separators=(",", ":")),
    )


def _tokens(text: str) -> int:
    """By its bytes."""
    return round(len(text.encode()) / _BYTES_PER_TOKEN)


def _first_exchange(turns: list[dict[str, Any]]) -> tuple[str, str]:
    """The first thing that a person said, and the answer to it; "" where there is none."""
    place = next((i for i, turn in enumerate(turns) if turn.get("from") in ("human", "user")), None)
    if place is None:
        return "", ""
    after = turns[place + 1] if place + 1 < len(turns) else {}
    answer = after["value"] if after.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard") else ""
    return str(turns[place]["value"]), str(answer)


def _spoken(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _seconds(text: str) -> float:
    """``2023-11-16 18:17:03.9799600`` (also with ``T`` and a zone of zero) as seconds since 1970, days by the
    Gregorian calendar's rule."""
    date, _, clock = text.strip().replace("T", " ").partition(" ")
    clock = clock.split("+")[0].removesuffix("Z")
    year, month, day = (int(part) for part in date.split("-"))
    hour, minute, second = clock.split(":")
    years = year - (month <= 2)
    era_day = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = years * 365 + years // 4 - years // 100 + years // 400 + era_day - 719_468
    return days * 86_400.0 + int(hour) * 3_600.0 + int(minute) * 60.0 + float(second)


def _block_head(seed: int, block: int) -> int:
    """60 bits of a hash id: SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    x = (block * _MIX + seed + 1) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (x ^ (x >> 31)) % HEADS


def _parts(row: TraceRow, seed: int) -> Iterator[tuple[int, int]]:
    left = row.prompt_tokens
    for block in row.blocks:
        tokens = min(left, MOONCAKE_BLOCK_TOKENS)
        if tokens <= 0:
            return
        yield _block_head(seed, block), tokens
        left -= tokens


def plan_from_rows(
    rows: Sequence[TraceRow],
    seed: int,
    *,
    speed: float = 1.0,
    duration_s: float | None = None,
    requests_max: int | None = None,
    arrivals: Arrivals | None = None,
) -> LoadPlan:
    """Replays a trace.

    Args:
        speed: how much faster than recorded.
        duration_s: what is due later (after ``speed``) is left out.
        requests_max: only so many from the start.
        arrivals: instants in place of the recorded ones; the rows are then drawn in turn, again and again.

    Raises:
        ConfigError: rows without times and no ``arrivals``.
    """
    head = random.Random(f"{seed}/heads")
    if arrivals is not None:
        instants = list(arrivals.instants(random.Random(f"{seed}/arrivals")))
        order = list(range(len(rows)))
        if rows[0].at_s is None:
            random.Random(f"{seed}/order").shuffle(order)
        chosen = [(at, rows[order[i % len(rows)]]) for i, at in enumerate(instants)]
    elif any(row.at_s is None for row in rows):
        raise ConfigError("the file gives no times: choose a rate, or a concurrency")
    else:
        chosen = [((row.at_s or 0.0) / speed, row) for row in rows]
    if duration_s is not None:
        chosen = [(at, row) for at, row in chosen if at < duration_s]
    chosen = chosen[:requests_max]
    requests = tuple(
        PlannedRequest(
            index=index,
            scenario=row.scenario,
            scheduled_s=at,
            prompt_tokens=max(row.prompt_tokens, HEAD_TOKENS + 1),
            output_tokens=row.output_tokens,
            head=head.randrange(HEADS),
            session=row.session,
            parts=tuple(_parts(row, seed)),
            content=row.content,
        )
        for index, (at, row) in enumerate(chosen)
    )
    end = duration_s or (arrivals.duration_s if arrivals else (requests[-1].scheduled_s + 1e-6 if requests else 1.0))
    names = {name: None for _, name in _CLASSES} | {row.scenario: None for row in rows}
    seen = {request.scenario for request in requests}
    return LoadPlan(requests, end, seed, tuple(name for name in names if name in seen))
