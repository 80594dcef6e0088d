"""The demonstration's load: the prompt lengths and shares of a usual mix, with answers short enough for any machine."""

from __future__ import annotations

from exaserve.bench import REFERENCE_MIX, Mix, OutputLengths, Scenario

__all__ = ["KINDS", "MIX"]

_ANSWER = OutputLengths(mean=32.0, tokens_min=8, tokens_max=128)
"""Reading prompts is what makes replicas unequal; a longer answer costs this machine more processor time, since
emulator, gateway and client share it."""

MIX = Mix(tuple((Scenario(s.name, s.prompt_tokens, _ANSWER), share) for s, share in REFERENCE_MIX.parts))
KINDS = ("short", "long", "very long")
"""Names of its scenarios for people."""
