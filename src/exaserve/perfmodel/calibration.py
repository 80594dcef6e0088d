"""A measured profile of one replica: what ``exaserve calibrate`` writes, and scheduler, emulator, simulator and planner
read. PURE: documents in, values out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel.fitting import DecodePoint, Estimate, FitRefusal, PrefillPoint
from exaserve.perfmodel.profile import EngineProfile
from exaserve.perfmodel.shrinkage import Prior, posterior

__all__ = ["CALIBRATION_KIND", "Calibration", "calibration_document", "parse_calibration"]

CALIBRATION_KIND = "exaserve-profile"
VERSION = 2
VERSIONS_READ = (1, 2)
CONSTANTS: Mapping[str, str] = {
    "prefill_tokens_per_s": "tokens/s",
    "prefill_per_pair_s": "s per pair of prompt tokens",
    "first_token_s": "s, of every first token besides its prompt",
    "first_s": "s, of every first token besides its steps",
    "prompt_s": "s per step that computes prompts",
    "decode_fixed_s": "s per step",
    "overhead_s": "s per step, the part of decode_fixed_s that is not reading weights",
    "overlap": "share of the shorter of reading and computing that is not hidden",
    "expert_s": "s to read all routed experts",
    "expert_share": "share of them that a token takes",
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
        prefill / decode: the points that were measured, as far as the file has them.
    """

    model: str = ""
    engine: str = ""
    date: str = ""
    constants: Mapping[str, Estimate] = field(default_factory=dict)
    weights: Mapping[str, Estimate] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[FitRefusal, ...] = ()
    prefill: tuple[PrefillPoint, ...] = ()
    decode: tuple[DecodePoint, ...] = ()

    def value(self, name: str) -> float:
        """A constant, 0 where it is not known."""
        found = self.constants.get(name)
        return found.value if found is not None else 0.0

    @property
    def decode_step_s(self) -> float:
        """One decode step of one sequence with a short context, seconds; 0 if unknown."""
        fixed_s = self.value("decode_fixed_s")
        if fixed_s and self.combined:
            return self.engine_profile().step_s(0.0, 1.0, 0.0)
        return fixed_s + self.value("decode_per_seq_s") if fixed_s else 0.0

    @property
    def combined(self) -> bool:
        """Whether a prediction is in the constants already: they are those of all terms of a step then."""
        return "overlap" in self.constants

    def engine_profile(self, prior: Prior | None = None) -> EngineProfile:
        """The profile that emulator, simulator and planner work with.

        Args:
            prior: what is predicted of this replica. Measured points move all of it; a profile without points has its
                constants put in the prediction's place. Without a prior what was not measured costs nothing, and
                limits are those of an engine at its defaults.

        Raises:
            ConfigError: prefill rate or decode step are neither measured nor predicted.
        """
        if prior is None:
            for name in ("prefill_tokens_per_s", "decode_fixed_s"):
                if not self.value(name):
                    raise ConfigError(f"the profile has no {name}: it was refused, or is missing", param="profile")
        base = self._placeholder() if prior is None else prior.profile
        measured: dict[str, Any] = {
            name: self.constants[name].value for name in CONSTANTS if name in self.constants and name in _PROFILE_FIELDS
        }
        limits: dict[str, Any] = {name: self.limits[name] for name in LIMITS if self.limits.get(name)}
        if self.combined:
            made = dataclasses.replace(base, **measured)
        elif prior is not None and (self.prefill or self.decode):
            kept = {name: measured[name] for name in ("kv_bytes_per_token",) if name in measured}
            held = dataclasses.replace(base, **limits)
            known = dataclasses.replace(prior, profile=held)
            made = dataclasses.replace(posterior(known, self.prefill, self.decode).profile, **kept)
        else:
            made = dataclasses.replace(base, **{**measured, **self._not_separated(base)})
        made = dataclasses.replace(made, **limits)
        made = dataclasses.replace(made, token_budget=max(made.token_budget, made.max_num_seqs))
        try:
            made.validate()
        except AssertionError:
            raise ConfigError("the profile's figures contradict each other", param="profile") from None
        return made

    def _placeholder(self) -> EngineProfile:
        length = self.limits.get("max_model_len", 8192)
        return EngineProfile(
            prefill_tokens_per_s=1e12,
            decode_fixed_s=0.0,
            decode_per_seq_s=0.0,
            decode_per_kv_token_s=0.0,
            kv_tokens_max=max(self.limits.get("kv_tokens_max", 400_000), length),
            kv_bytes_per_token=0.0,
            max_model_len=length,
        )

    def _not_separated(self, base: EngineProfile) -> dict[str, Any]:
        """Terms that the plain fit does not tell from others: a measured step has its experts and the computing beside
        its reading in it, and a first token's cost its floor, its launches and the step's overhead."""
        out: dict[str, Any] = {}
        fixed_s = self.value("decode_fixed_s") or base.decode_fixed_s
        if self.value("decode_fixed_s"):
            out["expert_s"] = 0.0
        if self.value("decode_per_seq_s"):
            out["overlap"] = 0.0
        share = base.overhead_s / base.decode_fixed_s if base.decode_fixed_s else 0.0
        overhead_s = self.value("overhead_s") or share * fixed_s
        if "first_token_s" in self.constants:
            # Its parts as predicted, and all of it the floor where nothing is: then no step is longer than measured.
            besides_s = self.value("first_token_s")
            overhead_s = min(overhead_s, besides_s)
            parts_s = base.first_s + base.prompt_s
            first = base.first_s / parts_s if parts_s else 1.0
            out["first_s"] = first * (besides_s - overhead_s)
            out["prompt_s"] = (1.0 - first) * (besides_s - overhead_s)
        return {**out, "overhead_s": min(overhead_s, fixed_s)}


_PROFILE_FIELDS = frozenset(each.name for each in dataclasses.fields(EngineProfile))


def calibration_document(calibration: Calibration, evidence: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For YAML. Of ``evidence`` (runs, residuals, prediction) only lone prompts and batches are read back."""

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
    if document.get("version") not in VERSIONS_READ:
        known = " or ".join(map(str, VERSIONS_READ))
        raise ConfigError(f"{name}: version {document.get('version')!r} is not {known}", param="profile")
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
        *_points(document, name),
    )


def _points(document: Mapping[str, Any], name: str) -> tuple[tuple[PrefillPoint, ...], tuple[DecodePoint, ...]]:
    """Lone prompts and batches of the evidence."""
    evidence = _mapping(document, "evidence", name)
    try:
        prefill = tuple(
            PrefillPoint(int(each["tokens"]), float(each["ttft_s"])) for each in evidence.get("lone_prompts") or ()
        )
        decode = tuple(
            DecodePoint(
                int(each["sequences"]),
                float(each["kv_tokens"]),
                float(each["step_s"]),
                int(each["steps"]),
                unsteady=float(each.get("unsteady", 0.0)),
            )
            for each in evidence.get("batches") or ()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"{name}: evidence: lone_prompts or batches are damaged", param="profile") from None
    if not all(p.tokens > 0 and 0.0 < p.ttft_s < math.inf for p in prefill) or not all(
        p.sequences > 0 and 0.0 <= p.kv_tokens < math.inf and 0.0 < p.step_s < math.inf for p in decode
    ):
        raise ConfigError(f"{name}: evidence: times and sizes must be positive and finite", param="profile")
    return prefill, decode


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
