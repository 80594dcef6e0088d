"""Mixes by name and from YAML. PURE: values in, values out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.workload.plan import LONG, REFERENCE_MIX, SHORT, VERY_LONG, Mix, OutputLengths, Scenario

__all__ = ["MIXES", "parse_mix"]

MIXES: Mapping[str, Mix] = {
    "mix": REFERENCE_MIX,
    "A": Mix(((SHORT, 1.0),)),
    "B": Mix(((LONG, 1.0),)),
    "C": Mix(((VERY_LONG, 1.0),)),
}
"""The built-in workloads: three scenarios, and their mix of 65, 30 and 5 per cent."""

_LENGTH_KEYS = {"kind", "mean", "sigma", "min", "max"}
_SCENARIO_KEYS = ("share", "prompt_tokens", "output_tokens")


def parse_mix(document: Any, name: str = "the mix") -> Mix:
    """A mix from a YAML or JSON document::

        scenarios:
          chat: {share: 80, prompt_tokens: 400, output_tokens: 150}
          rag:  {share: 20, prompt_tokens: {kind: lognormal, mean: 6000, sigma: 0.4, min: 500, max: 16000},
                 output_tokens: {mean: 200, max: 800}}

    A number stands for a fixed length. Shares are relative, 1 where missing.

    Raises:
        ConfigError: anything unknown, missing or out of range, with its path.
    """
    if not isinstance(document, dict) or not isinstance(document.get("scenarios"), dict) or not document["scenarios"]:
        raise ConfigError(f"{name}: needs scenarios: with at least one name below it")
    unknown = sorted(str(key) for key in document if key != "scenarios")
    if unknown:
        raise ConfigError(f"{name}: {unknown[0]}: unknown key; valid here: scenarios")
    parts = []
    for title, entry in document["scenarios"].items():
        path = f"{name}: scenarios.{title}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: must be a mapping with prompt_tokens")
        for key in entry:
            if key not in _SCENARIO_KEYS:
                raise ConfigError(f"{path}.{key}: unknown key; valid here: {', '.join(_SCENARIO_KEYS)}")
        if "prompt_tokens" not in entry:
            raise ConfigError(f"{path}: prompt_tokens is missing")
        share = entry.get("share", 1.0)
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ConfigError(f"{path}.share: must be a number")
        prompt = _lengths(entry["prompt_tokens"], f"{path}.prompt_tokens")
        output = _lengths(entry.get("output_tokens", {}), f"{path}.output_tokens")
        try:
            scenario = Scenario(str(title), round(prompt.mean), output, None if prompt.kind == "fixed" else prompt)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
        parts.append((scenario, float(share)))
    try:
        return Mix(tuple(parts))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _lengths(value: Any, path: str) -> OutputLengths:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 1:
            raise ConfigError(f"{path}: must be 1 or more, not {value}")
        return OutputLengths("fixed", float(value), tokens_max=max(1, round(value)))
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must be a number of tokens, or a mapping with kind and mean")
    unknown = sorted(str(key) for key in value if key not in _LENGTH_KEYS)
    if unknown:
        raise ConfigError(f"{path}.{unknown[0]}: unknown key; valid here: {', '.join(sorted(_LENGTH_KEYS))}")
    kind = value.get("kind", "lognormal")
    if kind not in ("fixed", "geometric", "lognormal"):
        raise ConfigError(f"{path}.kind: {kind!r} is not one of fixed, geometric, lognormal")
    default = OutputLengths()
    mean = value.get("mean", default.mean)
    try:
        lengths = OutputLengths(kind, float(mean), float(value.get("sigma", default.sigma)), int(value.get("min", 1)))
        return dataclasses.replace(lengths, tokens_max=int(value.get("max", max(1_024, round(8 * float(mean))))))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None
