"""What is asked, of what size and when: scenarios, mixes and arrivals, fixed before the first request is sent.

A plan is a pure function of its arguments: the same seed gives the same instants, sizes and bytes. Bodies are rendered
when they are sent (:mod:`exaserve.workload.prompts`), from a filler text and a unique head, so that a plan of a million
long prompts stays small and a 12,842-token prompt costs a few microseconds.
"""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass, field
from typing import Literal

from exaserve.workload.arrivals import Arrivals

__all__ = [
    "HEAD_TOKENS",
    "LONG",
    "REFERENCE_MIX",
    "SHORT",
    "VERY_LONG",
    "Conversations",
    "LoadPlan",
    "Mix",
    "OutputLengths",
    "PlannedRequest",
    "Scenario",
    "Sessions",
    "make_plan",
    "prefix_parts",
]

HEAD_TOKENS = 5
HEADS = 1 << 60


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
    """One kind of request: its name in reports, its prompt length and its answers' lengths.

    Attributes:
        prompt_tokens: length of every prompt, or the mean where ``prompt`` draws it.
        prompt: how prompt lengths are drawn; None makes all equal.
    """

    name: str
    prompt_tokens: int
    output: OutputLengths = OutputLengths()
    prompt: OutputLengths | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens <= HEAD_TOKENS:
            raise ValueError(f"scenario {self.name}: prompt_tokens {self.prompt_tokens} must exceed {HEAD_TOKENS}")

    def draw_prompt(self, rng: random.Random) -> int:
        """One prompt length, tokens."""
        return self.prompt_tokens if self.prompt is None else max(HEAD_TOKENS + 1, self.prompt.draw(rng))


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


REFERENCE_MIX = Mix(((SHORT, 0.65), (LONG, 0.30), (VERY_LONG, 0.05)))
"""The reference mix: 65 % short, 30 % long and 5 % very long prompts."""


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
class Conversations:
    """Sessions of several turns. A turn's prompt repeats everything said before and adds a question, so its beginning
    is in the cache of the replica that had the turn before. A turn is due ``think_s`` after the answer before it has
    ended: sessions arrive as an open loop, the turns of one wait for each other, as people do.

    What the model answered is not fed back: its place is taken by text of the same length, so that a run does not
    depend on answers. (A replica then finds in its cache the prompts said before, but not its own answers.)

    Attributes:
        turns_mean: turns per session, geometric, at least 1.
        question_tokens: what a turn adds to the prompt, beside the last answer.
        think_s: mean of the exponential pause between an answer and the next question, seconds.
        system_tokens: leading tokens that all sessions of a scenario share (a system prompt).
        prompt_tokens_max: a session ends before a prompt would be longer than this.
    """

    turns_mean: float = 4.0
    question_tokens: int = 64
    think_s: float = 5.0
    system_tokens: int = 0
    prompt_tokens_max: int = 16_384

    def __post_init__(self) -> None:
        if not (math.isfinite(self.turns_mean) and self.turns_mean >= 1.0):
            raise ValueError(f"turns_mean {self.turns_mean} must be at least 1")
        if self.question_tokens <= HEAD_TOKENS:
            raise ValueError(f"question_tokens {self.question_tokens} must exceed {HEAD_TOKENS}")
        if not (math.isfinite(self.think_s) and self.think_s >= 0.0):
            raise ValueError(f"think_s {self.think_s} must be 0 or more")
        if self.system_tokens < 0:
            raise ValueError(f"system_tokens {self.system_tokens} must be 0 or more")


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request before it is sent.

    Attributes:
        scheduled_s: when it is due, seconds from the start of the run; latency counts from here. Of a request that
            follows another (``after``) this is the earliest instant, as if answers took no time.
        head: 60 bits that make the prompt's own part unique.
        session: number of its session, None without sessions.
        session_head: 60 bits that the session's prompts of this scenario begin with.
        shared_tokens: leading tokens in common with the session's other prompts of this scenario.
        parts: (head, tokens) of leading parts in common with other prompts, in place of ``session_head``.
        content: the user's own prompt as JSON text (a string, or a list of messages); "" is a synthetic prompt.
        after: index of the request whose answer must have ended first, -1 without one.
        think_s: pause after that, seconds.
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
    parts: tuple[tuple[int, int], ...] = ()
    content: str = ""
    after: int = -1
    think_s: float = 0.0


def prefix_parts(request: PlannedRequest) -> tuple[tuple[int, int], ...]:
    """(head, tokens) of a prompt's leading parts that other prompts may begin with too: equal heads, equal text."""
    if request.parts:
        return request.parts
    return ((request.session_head, request.shared_tokens),) if request.shared_tokens else ()


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Every request of a run, in the order in which they are due; a request's ``index`` is its place."""

    requests: tuple[PlannedRequest, ...]
    duration_s: float
    seed: int
    scenarios: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.requests)


def make_plan(
    mix: Mix,
    arrivals: Arrivals,
    seed: int,
    sessions: Sessions | None = None,
    conversations: Conversations | None = None,
) -> LoadPlan:
    """All requests of a run. Instants, scenarios, lengths and heads have random streams of their own, so that a change
    of the mix leaves the instants alone (and so on): runs stay comparable request by request.

    Args:
        sessions: common beginnings by session.
        conversations: sessions of several turns instead; ``arrivals`` then still gives the rate of requests, and its
            instants, thinned by the mean number of turns, are when sessions begin.

    Raises:
        ValueError: both kinds of sessions.
    """
    if sessions is not None and conversations is not None:
        raise ValueError("sessions and conversations exclude each other")
    streams = _Streams(seed)
    if conversations is not None:
        requests = _conversations(mix, arrivals, seed, conversations, streams)
    else:
        requests = _single(mix, arrivals, seed, sessions, streams)
    return LoadPlan(requests, arrivals.duration_s, seed, tuple(s.name for s in mix.scenarios))


class _Streams:
    """Random streams, one per question."""

    __slots__ = ("head", "length", "member", "prompt", "think", "turns", "when", "which")

    def __init__(self, seed: int) -> None:
        self.when = random.Random(f"{seed}/arrivals")
        self.which = random.Random(f"{seed}/scenarios")
        self.length = random.Random(f"{seed}/outputs")
        self.prompt = random.Random(f"{seed}/prompts")
        self.head = random.Random(f"{seed}/heads")
        self.member = random.Random(f"{seed}/sessions")
        self.turns = random.Random(f"{seed}/turns")
        self.think = random.Random(f"{seed}/think")


def _single(
    mix: Mix, arrivals: Arrivals, seed: int, sessions: Sessions | None, streams: _Streams
) -> tuple[PlannedRequest, ...]:
    scenarios, shares = mix.scenarios, mix.shares()
    heads: dict[tuple[int, str], int] = {}

    def planned(index: int, at: float) -> PlannedRequest:
        scenario = streams.which.choices(scenarios, shares)[0]
        prompt_tokens = scenario.draw_prompt(streams.prompt)
        session: int | None = None
        session_head = shared_tokens = 0
        if sessions is not None:
            session = streams.member.randrange(sessions.count)
            key = (session, scenario.name)
            if key not in heads:
                heads[key] = random.Random(f"{seed}/session/{session}/{scenario.name}").randrange(HEADS)
            session_head = heads[key]
            shared_tokens = min(int(prompt_tokens * sessions.shared), prompt_tokens)
        return PlannedRequest(
            index=index,
            scenario=scenario.name,
            scheduled_s=at,
            prompt_tokens=prompt_tokens,
            output_tokens=scenario.output.draw(streams.length),
            head=streams.head.randrange(HEADS),
            session=session,
            session_head=session_head,
            shared_tokens=shared_tokens,
        )

    return tuple(planned(index, at) for index, at in enumerate(arrivals.instants(streams.when)))


def _conversations(
    mix: Mix, arrivals: Arrivals, seed: int, how: Conversations, streams: _Streams
) -> tuple[PlannedRequest, ...]:
    """Turns of all sessions, in the order of their earliest instants."""
    scenarios, shares = mix.scenarios, mix.shares()
    system = {s.name: random.Random(f"{seed}/system/{s.name}").randrange(HEADS) for s in scenarios}
    turns: list[tuple[PlannedRequest, int]] = []  # with the place of the turn before, -1 for a first one
    stay = 1.0 - 1.0 / how.turns_mean
    for session, begins in enumerate(arrivals.instants(streams.when)):
        # Every instant is drawn, so that the number of turns leaves the other sessions' instants alone.
        if streams.turns.random() * how.turns_mean >= 1.0:
            continue
        scenario = streams.which.choices(scenarios, shares)[0]
        first = scenario.draw_prompt(streams.prompt)
        shared = min(how.system_tokens, first - HEAD_TOKENS - 1)
        parts: tuple[tuple[int, int], ...] = ((system[scenario.name], shared),) if shared > 0 else ()
        own, at, before = first - max(shared, 0), begins, -1
        while True:
            head = streams.head.randrange(HEADS)
            output = scenario.output.draw(streams.length)
            total = sum(tokens for _, tokens in parts) + own
            think_s = streams.think.expovariate(1.0 / how.think_s) if how.think_s and before >= 0 else 0.0
            at += think_s
            planned = PlannedRequest(
                index=len(turns),
                scenario=scenario.name,
                scheduled_s=at,
                prompt_tokens=total,
                output_tokens=output,
                head=head,
                session=session,
                parts=parts,
                think_s=think_s,
            )
            turns.append((planned, before))
            before = len(turns) - 1
            parts = (*parts, (head, own), (streams.head.randrange(HEADS), output))
            own = how.question_tokens
            if total + output + own > how.prompt_tokens_max or streams.turns.random() >= stay:
                break
    order = sorted(range(len(turns)), key=lambda place: (turns[place][0].scheduled_s, place))
    new_place = {old: new for new, old in enumerate(order)}
    return tuple(
        dataclasses.replace(turns[old][0], index=new, after=new_place[turns[old][1]] if turns[old][1] >= 0 else -1)
        for new, old in enumerate(order)
    )
