"""A measured profile of one replica: what ``exaserve calibrate`` writes, and scheduler, emulator, simulator and planner
read. PURE: documents in, values out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel.fitting import Estimate, FitRefusal
from exaserve.perfmodel.profile import EngineProfile

__all__ = ["CALIBRATION_KIND", "Calibration", "calibration_document", "parse_calibration"]

CALIBRATION_KIND = "exaserve-profile"
VERSION = 1
CONSTANTS: Mapping[str, str] = {
    "prefill_tokens_per_s": "tokens/s",
    "prefill_per_pair_s": "s per pair of prompt tokens",
    "first_token_s": "s, of every first token besides its prompt",
    "decode_fixed_s": "s per step",
    "decode_per_seq_s": "s per step and sequence",
    "decode_per_kv_token_s": "s per step and token held",
    "kv_bytes_per_token": "bytes, over all ranks",
    "kv_tokens_per_token": "cache tokens per token",
}
WEIGHTS = ("kv_gb", "kv_age_s", "net_mb")
LIMITS = ("kv_tokens_max", "max_num_seqs", "max_model_len", "block_size", "token_budget")


@dataclass(frozen=True, slots=True)
class Calibration:
    """One replica, measured.

    Attributes:
        model / engine / date: what was measured and when, for people.
        constants: by name of :data:`CONSTANTS`; missing where the runs did not carry them.
        weights: seconds per unit of the literal score's three terms.
        limits: of the engine, as far as they are known: integers by name of :data:`LIMITS`.
        refused: what the runs did not carry, with the runs that are missing.
    """

    model: str = ""
    engine: str = ""
    date: str = ""
    constants: Mapping[str, Estimate] = field(default_factory=dict)
    weights: Mapping[str, Estimate] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[FitRefusal, ...] = ()

    def value(self, name: str) -> float:
        """A constant, 0 where it is not known."""
        found = self.constants.get(name)
        return found.value if found is not None else 0.0

    @property
    def decode_step_s(self) -> float:
        """One decode step of one sequence with a short context, seconds; 0 if unknown."""
        fixed = self.value("decode_fixed_s")
        return fixed + self.value("decode_per_seq_s") if fixed else 0.0

    def engine_profile(self, base: EngineProfile | None = None) -> EngineProfile:
        """The profile that emulator, simulator and planner work with.

        Args:
            base: takes the place of what was not measured; without it that costs nothing, and limits are those of an
                engine at its defaults.

        Raises:
            ConfigError: prefill rate or decode step are neither measured nor in ``base``.
        """
        if base is None:
            for name in ("prefill_tokens_per_s", "decode_fixed_s"):
                if not self.value(name):
                    raise ConfigError(f"the profile has no {name}: it was refused, or is missing", param="profile")
            length = self.limits.get("max_model_len", 8192)
            base = EngineProfile(
                prefill_tokens_per_s=1.0,
                decode_fixed_s=1.0,
                decode_per_seq_s=0.0,
                decode_per_kv_token_s=0.0,
                kv_tokens_max=max(self.limits.get("kv_tokens_max", 400_000), length),
                kv_bytes_per_token=0.0,
                max_model_len=length,
            )
        measured: dict[str, Any] = {
            name: self.constants[name].value for name in CONSTANTS if name in self.constants and name in _PROFILE_FIELDS
        }
        measured |= {name: self.limits[name] for name in LIMITS if self.limits.get(name)}
        made = dataclasses.replace(base, **measured)
        if self.value("decode_per_seq_s"):
            made = dataclasses.replace(made, overlap=0.0)  # computing beside reading is in what was measured
        overhead = min(made.overhead_s, made.decode_fixed_s)
        if self.value("first_token_s"):
            # The overhead is what a first token costs besides; it is part of the step and cannot exceed it.
            overhead = min(self.value("first_token_s"), made.decode_fixed_s)
            made = dataclasses.replace(made, first_s=0.0, prompt_s=self.value("first_token_s") - overhead)
        made = dataclasses.replace(made, overhead_s=overhead, token_budget=max(made.token_budget, made.max_num_seqs))
        try:
            made.validate()
        except AssertionError:
            raise ConfigError("the profile's figures contradict each other", param="profile") from None
        return made


_PROFILE_FIELDS = frozenset(each.name for each in dataclasses.fields(EngineProfile))


def calibration_document(calibration: Calibration, evidence: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For YAML. ``evidence`` (runs, residuals) is kept beside it and not read back."""

    def estimates(values: Mapping[str, Estimate]) -> dict[str, Any]:
        return {name: {"value": float(e.value), "error": float(e.error)} for name, e in values.items()}

    document: dict[str, Any] = {
        "kind": CALIBRATION_KIND,
        "version": VERSION,
        "model": calibration.model,
        "engine": calibration.engine,
        "date": calibration.date,
        "limits": dict(calibration.limits),
        "constants": {
            name: {**entry, "unit": CONSTANTS[name]} for name, entry in estimates(calibration.constants).items()
        },
        "weights": estimates(calibration.weights),
        "refused": [dataclasses.asdict(refusal) for refusal in calibration.refused],
    }
    if evidence:
        document["evidence"] = dict(evidence)
    return document


def parse_calibration(document: Any, name: str = "profile") -> Calibration:
    """The profile of a document.

    Raises:
        ConfigError: it is none, or a figure in it cannot be true.
    """
    if not isinstance(document, dict) or document.get("kind") != CALIBRATION_KIND:
        raise ConfigError(f"{name} is no profile of exaserve calibrate (kind: {CALIBRATION_KIND})", param="profile")
    if document.get("version") != VERSION:
        raise ConfigError(f"{name}: version {document.get('version')!r} is not {VERSION}", param="profile")
    limits = {}
    for key, value in _mapping(document, "limits", name).items():
        if key not in LIMITS or isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name}: limits.{key}: must be one of {', '.join(LIMITS)}, 0 or more", param="profile")
        limits[key] = value
    refused = tuple(
        FitRefusal(str(entry.get("what", "")), str(entry.get("why", "")), str(entry.get("missing", "")))
        for entry in document.get("refused") or ()
        if isinstance(entry, dict)
    )
    return Calibration(
        str(document.get("model", "")),
        str(document.get("engine", "")),
        str(document.get("date", "")),
        _estimates(document, "constants", tuple(CONSTANTS), name),
        _estimates(document, "weights", WEIGHTS, name),
        limits,
        refused,
    )


def _mapping(document: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    value = document.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {key}: must be a mapping", param="profile")
    return value


def _estimates(document: Mapping[str, Any], key: str, known: tuple[str, ...], name: str) -> dict[str, Estimate]:
    out = {}
    for what, entry in _mapping(document, key, name).items():
        if what not in known:
            raise ConfigError(f"{name}: {key}.{what}: unknown; valid here: {', '.join(known)}", param="profile")
        figures = entry if isinstance(entry, dict) else {"value": entry, "error": 0.0}
        try:
            value, error = float(figures["value"]), float(figures.get("error", 0.0))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{name}: {key}.{what}: needs a number as value", param="profile") from None
        if not (math.isfinite(value) and math.isfinite(error)) or value < 0.0 or error < 0.0:
            raise ConfigError(f"{name}: {key}.{what}: must be 0 or more and finite", param="profile")
        out[what] = Estimate(value, error)
    return out
