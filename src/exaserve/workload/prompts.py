"""What a planned request says: prompts of a chosen length, unique or alike as planned, and the JSON around them. PURE.

**Token lengths.** Without :class:`Words`, prompts consist of ASCII words of three letters and a space, so that a
tokenizer that takes four bytes for a token counts exactly ``prompt_tokens`` (:data:`BYTES_PER_TOKEN`); for other
tokenizers that is an estimate. ``Words`` of which the server's own tokenizer makes a known number of tokens make the
length exact.

**Uniqueness.** A prompt's own part begins with words that carry 60 random bits, so no two prompts share a prefix-cache
block unless the plan gives them common leading parts.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from exaserve.workload.plan import PlannedRequest, prefix_parts

__all__ = ["BYTES_PER_TOKEN", "BodyRenderer", "Words", "prompt_text"]

BYTES_PER_TOKEN = 4
_HEX_LETTERS = str.maketrans("0123456789", "qrstuvwxyz")
_FILLER_WORDS = 16_384
_GIVEN_UP_MAX = 4
"""Words that may be given up for spare ones to reach a length."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _word(number: int) -> str:
    return _LETTERS[number // 676 % 26] + _LETTERS[number // 26 % 26] + _LETTERS[number % 26] + " "


def _head_text(head: int) -> str:
    """Five words of three letters, four bits a letter."""
    letters = f"{head:015x}".translate(_HEX_LETTERS)
    return f"{letters[:3]} {letters[3:6]} {letters[6:9]} {letters[9:12]} {letters[12:]} "


def _filler(words: Iterable[int]) -> str:
    return "".join(_word(number) for number in words)


# A fixed generator: the filler is the same text in every process and for every seed.
_FILLER = _filler(number * 7_919 % 26**3 for number in range(_FILLER_WORDS))


def _segment(head: int, tokens: int) -> str:
    """A head and filler, exactly ``tokens`` words long; a segment shorter than a head keeps the head's first words."""
    text = _head_text(head)
    missing = tokens * BYTES_PER_TOKEN - len(text)
    if missing <= 0:
        return text[: tokens * BYTES_PER_TOKEN]
    repeats, rest = divmod(missing, len(_FILLER))
    return text + _FILLER * repeats + _FILLER[:rest]


def _segments(request: PlannedRequest, overhead_tokens: int) -> Iterator[tuple[int, int]]:
    """(head, tokens) of the prompt's parts, the common ones first and its own last."""
    left = max(1, request.prompt_tokens - overhead_tokens)
    for head, tokens in prefix_parts(request):
        taken = min(tokens, left)
        if taken:
            yield head, taken
        left -= taken
    if left:
        yield request.head, left


def prompt_text(request: PlannedRequest, overhead_tokens: int = 0) -> str:
    """The prompt: ``prompt_tokens - overhead_tokens`` words of four bytes, the last one without a trailing space
    (which a chat template might strip).

    Args:
        overhead_tokens: what the server's chat template adds by itself.
    """
    text = "".join(_segment(head, tokens) for head, tokens in _segments(request, overhead_tokens))
    return text[:-1] + "."


@dataclass(frozen=True, slots=True)
class Words:
    """A vocabulary whose words, set apart by one space, each become ``tokens_each`` tokens.

    Attributes:
        words: at least two different ones, none with a character that JSON escapes.
        tokens_each: tokens of each.
        spare: words by their number of tokens, for what ``tokens_each`` does not divide.
        lead / lead_tokens: the first word of every prompt, and its tokens: a word at the beginning has no space before
            it, and may be cut otherwise than the same word later.
    """

    words: tuple[str, ...]
    tokens_each: int = 1
    spare: tuple[tuple[int, str], ...] = ()
    lead: str = ""
    lead_tokens: int = 0

    def __post_init__(self) -> None:
        if len(set(self.words)) < 2:
            raise ValueError("words: at least two different ones are needed, or no two prompts would differ")
        if self.tokens_each < 1:
            raise ValueError(f"tokens_each {self.tokens_each} must be at least 1")

    def text(self, segments: Iterable[tuple[int, int]]) -> str:
        """Words for (head, tokens) parts. What a part's length leaves over goes to the next one, or to a spare word."""
        words: list[str] = [self.lead] if self.lead else []
        rest = -self.lead_tokens
        for head, tokens in segments:
            count, rest = divmod(tokens + rest, self.tokens_each)
            words += itertools.islice(self._sequence(head), count)
        return " ".join(words if rest <= 0 else self._filled(words, rest))

    def _filled(self, words: list[str], rest: int) -> list[str]:
        """``words`` and ``rest`` tokens more, by spare words, which may take the place of the last few."""
        for given_up in range(min(_GIVEN_UP_MAX, len(words) - 1) + 1):
            spare = self._change(rest + given_up * self.tokens_each)
            if spare is not None:
                return words[: len(words) - given_up] + spare
        return words

    def _change(self, amount: int) -> list[str] | None:
        """Spare words of ``amount`` tokens together, None where there are none."""
        ways: list[list[str] | None] = [[]] + [None] * amount
        for total in range(1, amount + 1):
            for size, word in self.spare:
                before = ways[total - size] if size <= total else None
                if before is not None:
                    ways[total] = [*before, word]
                    break
        return ways[amount]

    def _sequence(self, head: int) -> Iterator[str]:
        """The head's digits in base ``len(words)``, then every word in turn."""
        base = len(self.words)
        for _ in range(max(1, math.ceil(60 / math.log2(base)))):
            head, digit = divmod(head, base)
            yield self.words[digit]
        yield from itertools.cycle(self.words)


_PROMPT_FIELDS: dict[str, Sequence[str]] = {
    "/v1/chat/completions": ('"messages":[{"role":"user","content":"', '"}]'),
    "/v1/completions": ('"prompt":"', '"'),
}


class BodyRenderer:
    """Turns planned requests into JSON bodies for one endpoint.

    Args:
        model: name the server knows.
        stream: ask for server-sent events, with usage in the last one.
        path: ``/v1/chat/completions`` or ``/v1/completions``.
        overhead_tokens: tokens that the server's chat template adds to the text.
        exact_output: ask for exactly ``output_tokens`` (``ignore_eos``, vLLM's extension that others may refuse).
        words: vocabulary of known token counts; None takes words of four bytes.
        extra: further members of every body, such as ``{"temperature": 0}``.
        output_field: ``max_tokens``, or ``max_completion_tokens`` where a cloud demands it.
    """

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        path: str = "/v1/chat/completions",
        overhead_tokens: int = 0,
        exact_output: bool = True,
        words: Words | None = None,
        extra: dict[str, object] | None = None,
        output_field: str = "max_tokens",
    ) -> None:
        if path not in _PROMPT_FIELDS:
            raise ValueError(f"path {path!r} must be one of {', '.join(_PROMPT_FIELDS)}")
        self.path = path
        self.stream = stream
        self.overhead_tokens = overhead_tokens
        self.words = words
        self._opening, self._closing = _PROMPT_FIELDS[path]
        options = ',"ignore_eos":true' if exact_output else ""
        if stream:
            options += ',"stream":true,"stream_options":{"include_usage":true}'
        if extra:
            options += "," + json.dumps(extra, separators=(",", ":"))[1:-1]
        self._before = f'{{"model":{json.dumps(model)},'
        self._after = f"{options},{json.dumps(output_field)}:"

    def text(self, request: PlannedRequest) -> str:
        """The prompt of a synthetic request."""
        if self.words is None:
            return prompt_text(request, self.overhead_tokens)
        return self.words.text(_segments(request, self.overhead_tokens))

    def body(self, request: PlannedRequest) -> bytes:
        """The JSON body; a synthetic prompt is plain letters and spaces and needs no escaping."""
        if request.content:
            inner = self._given(request.content)
        else:
            inner = f"{self._opening}{self.text(request)}{self._closing}"
        return f"{self._before}{inner}{self._after}{request.output_tokens}}}".encode()

    def _given(self, content: str) -> str:
        """A prompt of the user's own: JSON text of a string or of a list of messages."""
        if self.path == "/v1/completions":
            if content.startswith("["):
                raise ValueError("/v1/completions takes texts, not messages")
            return f'"prompt":{content}'
        return (
            f'"messages":{content}'
            if content.startswith("[")
            else (f'"messages":[{{"role":"user","content":{content}}}]')
        )
