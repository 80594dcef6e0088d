"""What is asked, of what size and when: scenarios, mixes and arrivals, fixed before the first request is sent.

A plan is a pure function of its arguments: the same seed gives the same instants, sizes and bytes. Bodies are rendered
when they are sent, from a filler text and a unique head, so that a plan of a million long prompts stays small and a
12,842-token prompt costs a few microseconds.

**Token lengths.** Prompts consist of ASCII words of three letters and a space, so that a tokenizer that takes four
bytes for a token counts exactly ``prompt_tokens`` (:data:`BYTES_PER_TOKEN`); for other tokenizers that is an
estimate.

**Uniqueness.** A prompt begins with :data:`HEAD_TOKENS` words that carry 60 random bits, so no two prompts share a
prefix-cache block, unless :class:`Sessions` asks for shared beginnings.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "A9_MIX",
    "BYTES_PER_TOKEN",
    "HEAD_TOKENS",
    "LONG",
    "SHORT",
    "VERY_LONG",
    "Arrivals",
    "BodyRenderer",
    "Mix",
    "OutputLengths",
    "Plan",
    "PlannedRequest",
    "Scenario",
    "Sessions",
    "make_plan",
    "prompt_text",
]

BYTES_PER_TOKEN = 4
HEAD_TOKENS = 5
_HEADS = 1 << 60
_HEX_LETTERS = str.maketrans("0123456789", "qrstuvwxyz")
_FILLER_WORDS = 16_384
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """How many tokens answers have.

    Attributes:
        kind: ``fixed`` is always ``mean``; ``geometric`` is memoryless (an end-of-text chance per token);
            ``lognormal`` is what chat traces look like, with ``sigma`` as the standard deviation of the logarithm.
        mean: tokens, before clipping to ``tokens_min..tokens_max``.
    """

    kind: Literal["fixed", "geometric", "lognormal"] = "lognormal"
    mean: float = 128.0
    sigma: float = 0.6
    tokens_min: int = 1
    tokens_max: int = 1024

    def __post_init__(self) -> None:
        if not 1 <= self.tokens_min <= self.tokens_max:
            raise ValueError(f"tokens_min {self.tokens_min} must be from 1 to tokens_max {self.tokens_max}")
        if not (math.isfinite(self.mean) and self.mean >= 1.0):
            raise ValueError(f"mean {self.mean} must be at least 1 token")
        if self.sigma < 0.0:
            raise ValueError(f"sigma {self.sigma} must not be negative")

    def draw(self, rng: random.Random) -> int:
        """One length in tokens, within ``tokens_min..tokens_max``."""
        if self.kind == "fixed" or self.mean == 1.0:
            value = self.mean
        elif self.kind == "geometric":
            value = 1.0 + math.floor(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / self.mean))
        else:
            value = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2.0, self.sigma)
        return min(self.tokens_max, max(self.tokens_min, round(value)))


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of request: its name in reports, its prompt length and its answers' lengths."""

    name: str
    prompt_tokens: int
    output: OutputLengths = OutputLengths()

    def __post_init__(self) -> None:
        if self.prompt_tokens <= HEAD_TOKENS:
            raise ValueError(f"scenario {self.name}: prompt_tokens {self.prompt_tokens} must exceed {HEAD_TOKENS}")


SHORT = Scenario("A", 327, OutputLengths(mean=120.0, tokens_min=8, tokens_max=512))
LONG = Scenario("B", 4_218, OutputLengths(mean=160.0, tokens_min=8, tokens_max=640))
VERY_LONG = Scenario("C", 12_842, OutputLengths(mean=200.0, tokens_min=8, tokens_max=800))


@dataclass(frozen=True, slots=True)
class Mix:
    """Scenarios with their shares of the requests; shares are relative and need not add up to 1."""

    parts: tuple[tuple[Scenario, float], ...]

    def __post_init__(self) -> None:
        if not self.parts or not all(math.isfinite(share) and share >= 0.0 for _, share in self.parts):
            raise ValueError("a mix needs scenarios with finite shares of at least 0")
        if sum(share for _, share in self.parts) <= 0.0:
            raise ValueError("a mix needs at least one share above 0")
        names = [scenario.name for scenario, _ in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"scenario names must differ: {', '.join(names)}")

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        return tuple(scenario for scenario, _ in self.parts)

    def shares(self) -> tuple[float, ...]:
        """Shares that add up to 1, in the order of :attr:`parts`."""
        total = sum(share for _, share in self.parts)
        return tuple(share / total for _, share in self.parts)

    def mean_prompt_tokens(self) -> float:
        return sum(s.prompt_tokens * share for (s, _), share in zip(self.parts, self.shares(), strict=True))

    def mean_output_tokens(self) -> float:
        """Mean before clipping; the clipped mean differs by a few per cent at most for the built-in scenarios."""
        return sum(s.output.mean * share for (s, _), share in zip(self.parts, self.shares(), strict=True))


A9_MIX = Mix(((SHORT, 0.65), (LONG, 0.30), (VERY_LONG, 0.05)))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open loop: requests are due at these instants whatever the server does.

    Attributes:
        kind: ``poisson`` (independent clients) or ``constant`` (equal gaps).
        rate_per_s: mean requests per second.
        duration_s: the last request is due before this instant.
    """

    rate_per_s: float
    duration_s: float
    kind: Literal["poisson", "constant"] = "poisson"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate_per_s) and self.rate_per_s > 0.0):
            raise ValueError(f"rate_per_s {self.rate_per_s} must be above 0")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0.0):
            raise ValueError(f"duration_s {self.duration_s} must be above 0")

    def instants(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start, ascending."""
        if self.kind == "constant":
            for index in range(math.ceil(self.rate_per_s * self.duration_s)):
                at = index / self.rate_per_s
                if at < self.duration_s:
                    yield at
            return
        at = rng.expovariate(self.rate_per_s)
        while at < self.duration_s:
            yield at
            at += rng.expovariate(self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Prompts of one session and scenario begin alike, as turns of a conversation or calls with one system prompt do.

    Attributes:
        count: sessions; each request belongs to one at random.
        shared: part of the prompt that the session's requests have in common, 0..1.
    """

    count: int
    shared: float = 0.5

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count {self.count} must be at least 1")
        if not 0.0 <= self.shared <= 1.0:
            raise ValueError(f"shared {self.shared} must be from 0 to 1")


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request before it is sent.

    Attributes:
        scheduled_s: when it is due, seconds from the start of the run; latency counts from here.
        head: 60 bits that make the prompt unique.
        session: number of its session, None without sessions.
        session_head: 60 bits that the session's prompts of this scenario begin with.
        shared_tokens: leading tokens in common with the session's other prompts of this scenario.
    """

    index: int
    scenario: str
    scheduled_s: float
    prompt_tokens: int
    output_tokens: int
    head: int
    session: int | None = None
    session_head: int = 0
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Every request of a run, in the order in which they are due."""

    requests: tuple[PlannedRequest, ...]
    duration_s: float
    seed: int
    scenarios: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.requests)


def make_plan(mix: Mix, arrivals: Arrivals, seed: int, sessions: Sessions | None = None) -> Plan:
    """All requests of a run. Instants, scenarios, lengths and heads have random streams of their own, so that a change
    of the mix leaves the instants alone (and so on): runs stay comparable request by request."""
    when = random.Random(f"{seed}/arrivals")
    which = random.Random(f"{seed}/scenarios")
    length = random.Random(f"{seed}/outputs")
    head = random.Random(f"{seed}/heads")
    member = random.Random(f"{seed}/sessions")
    scenarios, shares = mix.scenarios, mix.shares()
    heads: dict[tuple[int, str], int] = {}

    def planned(index: int, at: float) -> PlannedRequest:
        scenario = which.choices(scenarios, shares)[0]
        session: int | None = None
        session_head = shared_tokens = 0
        if sessions is not None:
            session = member.randrange(sessions.count)
            key = (session, scenario.name)
            if key not in heads:
                heads[key] = random.Random(f"{seed}/session/{session}/{scenario.name}").randrange(_HEADS)
            session_head = heads[key]
            shared_tokens = min(int(scenario.prompt_tokens * sessions.shared), scenario.prompt_tokens)
        return PlannedRequest(
            index=index,
            scenario=scenario.name,
            scheduled_s=at,
            prompt_tokens=scenario.prompt_tokens,
            output_tokens=scenario.output.draw(length),
            head=head.randrange(_HEADS),
            session=session,
            session_head=session_head,
            shared_tokens=shared_tokens,
        )

    requests = tuple(planned(index, at) for index, at in enumerate(arrivals.instants(when)))
    return Plan(requests, arrivals.duration_s, seed, tuple(s.name for s in scenarios))


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


def prompt_text(request: PlannedRequest, overhead_tokens: int = 0) -> str:
    """The prompt: ``prompt_tokens - overhead_tokens`` words of four bytes, the last one without a trailing space
    (which a chat template might strip).

    Args:
        overhead_tokens: what the server's chat template adds by itself.
    """
    tokens = max(1, request.prompt_tokens - overhead_tokens)
    shared = min(request.shared_tokens, tokens)
    text = _segment(request.session_head, shared) if shared else ""
    if tokens > shared:
        text += _segment(request.head, tokens - shared)
    return text[:-1] + "."


class BodyRenderer:
    """Turns planned requests into JSON bodies for one endpoint.

    Args:
        model: name the server knows.
        stream: ask for server-sent events, with usage in the last one.
        path: ``/v1/chat/completions`` or ``/v1/completions``.
        overhead_tokens: tokens that the server's chat template adds to the text.
        exact_output: ask for exactly ``output_tokens`` (``ignore_eos``, vLLM's extension that others may refuse).
    """

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        path: str = "/v1/chat/completions",
        overhead_tokens: int = 0,
        exact_output: bool = True,
    ) -> None:
        if path not in _PROMPT_FIELDS:
            raise ValueError(f"path {path!r} must be one of {', '.join(_PROMPT_FIELDS)}")
        self.path = path
        self.stream = stream
        self.overhead_tokens = overhead_tokens
        opening, closing = _PROMPT_FIELDS[path]
        options = ',"ignore_eos":true' if exact_output else ""
        if stream:
            options += ',"stream":true,"stream_options":{"include_usage":true}'
        self._before = f'{{"model":{json.dumps(model)},{opening}'
        self._after = f'{closing}{options},"max_tokens":'

    def body(self, request: PlannedRequest) -> bytes:
        """The JSON body; the prompt is plain letters and spaces and needs no escaping."""
        text = prompt_text(request, self.overhead_tokens)
        return f"{self._before}{text}{self._after}{request.output_tokens}}}".encode("ascii")


_PROMPT_FIELDS: dict[str, Sequence[str]] = {
    "/v1/chat/completions": ('"messages":[{"role":"user","content":"', '"}]'),
    "/v1/completions": ('"prompt":"', '"'),
}
