"""The demonstration's load: the prompt lengths and shares of a usual mix, with answers short enough for any machine."""

from __future__ import annotations

from dataclasses import dataclass

from exaserve.bench import REFERENCE_MIX, Mix, OutputLengths, Scenario

__all__ = ["KINDS", "MIX", "DemoParameters"]

_ANSWER = OutputLengths(mean=32.0, tokens_min=8, tokens_max=128)
"""Reading prompts is what makes replicas unequal; a longer answer costs this machine more processor time, since
emulator, gateway and client share it."""

MIX = Mix(tuple((Scenario(s.name, s.prompt_tokens, _ANSWER), share) for s, share in REFERENCE_MIX.parts))
KINDS = ("short", "long", "very long")
"""Names of its scenarios for people."""


@dataclass(frozen=True, slots=True)
class DemoParameters:
    """What is run, as it stands in the JSON.

    Attributes:
        rate_per_s: requests per second over the whole cluster.
        load: that rate as a share of what the cluster can do at most.
    """

    policies: tuple[str, ...]
    seconds: float
    rate_per_s: float
    load: float
    seed: int
    model: str
    replicas: int
