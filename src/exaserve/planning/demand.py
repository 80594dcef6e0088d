"""What is asked of a cluster: classes of requests with rates, lengths and the time each may wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from exaserve.domain.errors import ConfigError

__all__ = ["REFERENCE_CLASSES", "RequestClass", "Targets", "TrafficDemand", "block_for_length", "reference_demand"]


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One kind of request: mean lengths in tokens, rate in requests per second, allowed P99 to the first token."""

    name: str
    prompt_tokens: int
    output_tokens: int
    rate_s: float
    ttft_p99_s: float = math.inf

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def validate(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ConfigError(f"Class {self.name}: lengths must be at least one token.", param="prompt_tokens")
        if not (self.rate_s >= 0 and math.isfinite(self.rate_s)):
            raise ConfigError(f"Class {self.name}: the rate {self.rate_s} is no number of requests/s.", param="rps")


@dataclass(frozen=True, slots=True)
class Targets:
    """What must hold: P99 to the first token (for classes that do not state their own), and per token after it."""

    ttft_p99_s: float = 2.0
    tpot_s: float = 0.05


@dataclass(frozen=True, slots=True)
class TrafficDemand:
    """Classes together. What is not given is a mean over requests, weighted by rate.

    Attributes:
        rate_s: requests per second in total.
        prompt / output: tokens.
        pairs: (prompt token, context token) pairs that prefill attention looks at, per request.
        context: of a sequence while it decodes, tokens.
    """

    classes: tuple[RequestClass, ...]
    rate_s: float = field(init=False)
    prompt: float = field(init=False)
    output: float = field(init=False)
    pairs: float = field(init=False)
    context: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.classes:
            raise ConfigError("A demand needs at least one class of requests.", param="demand")
        for each in self.classes:
            each.validate()
        derived = {"rate_s": sum(c.rate_s for c in self.classes)}
        object.__setattr__(self, "rate_s", derived["rate_s"])
        output = self.mean([c.output_tokens for c in self.classes])
        weighted = self.mean([c.output_tokens * (c.prompt_tokens + c.output_tokens / 2) for c in self.classes])
        derived |= {
            "prompt": self.mean([c.prompt_tokens for c in self.classes]),
            "output": output,
            "pairs": self.mean([c.prompt_tokens * c.prompt_tokens / 2 for c in self.classes]),
            "context": weighted / output,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def per_day(self) -> float:
        return self.rate_s * 86_400

    def share(self, each: RequestClass) -> float:
        return each.rate_s / self.rate_s if self.rate_s else 1.0 / len(self.classes)

    def mean(self, values: Sequence[float]) -> float:
        return sum(self.share(c) * v for c, v in zip(self.classes, values, strict=True))

    @property
    def longest(self) -> int:
        return max(c.tokens for c in self.classes)

    def at(self, rate_s: float) -> TrafficDemand:
        """The same mix at another total rate."""
        total = self.rate_s
        if not total:
            return TrafficDemand(tuple(replace(c, rate_s=rate_s / len(self.classes)) for c in self.classes))
        return TrafficDemand(tuple(replace(c, rate_s=c.rate_s * rate_s / total) for c in self.classes))

    def only(self, each: RequestClass) -> TrafficDemand:
        return TrafficDemand((each,))

    def with_targets(self, targets: Targets) -> TrafficDemand:
        return TrafficDemand(
            tuple(replace(c, ttft_p99_s=targets.ttft_p99_s) if math.isinf(c.ttft_p99_s) else c for c in self.classes)
        )


REFERENCE_CLASSES = (
    RequestClass("A", 327, 120, 800.0, 0.850),
    RequestClass("B", 4_218, 160, 120.0, 2.200),
    RequestClass("C", 12_842, 200, 15.0, 5.500),
)
"""The benchmark's scenarios: short, long, very long, with their rates and P99 limits."""

_REFERENCE_SHARES = (0.65, 0.30, 0.05)


def reference_demand(rps: float | None = None) -> TrafficDemand:
    """The three scenarios at their own rates, or mixed 65/30/5 % at ``rps`` requests per second in total."""
    if rps is None:
        return TrafficDemand(REFERENCE_CLASSES)
    return TrafficDemand(
        tuple(replace(c, rate_s=rps * share) for c, share in zip(REFERENCE_CLASSES, _REFERENCE_SHARES, strict=True))
    )


def block_for_length(prompt_tokens: int) -> int:
    """KV block size for a pool of prompts of this length: 16 below 512 tokens, 32 up to 4,096, 64 above."""
    return 16 if prompt_tokens < 512 else 32 if prompt_tokens <= 4096 else 64
