"""From an engine's exposition to the fields of a :class:`~exaserve.domain.replica.Report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exaserve.domain.replica import ReplicaId, Report
from exaserve.engines.base import first_value
from exaserve.engines.exposition import Families
from exaserve.engines.registry import ENGINES

__all__ = ["Signals", "detect", "parse"]

_COUNTS = frozenset({"running", "waiting", "kv_tokens_max"})
_KV_USE_MAX = 1.05
"""Rounding and blocks in flight may pass 1 a little; more is garbage (a percentage, say)."""
_UNKNOWN_EXPECTED = ("running", "waiting", "kv_use")


@dataclass(frozen=True, slots=True)
class Signals:
    """What one exposition says.

    Attributes:
        engine: key of :data:`exaserve.engines.ENGINES`, "" where no engine's metrics were found.
        values: signal → value, named and typed as in ``Report``. An unknown signal has no key.
        missing: signals that this engine should have and did not give, sorted.
    """

    engine: str
    values: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def report(self, replica: ReplicaId, seq: int, taken_at: float) -> Report:
        return Report(replica=replica, seq=seq, taken_at=taken_at, missing=self.missing, **self.values)


def detect(exposition: bytes) -> str:
    """Key of the engine whose metric names occur, "" if none does."""
    for engine in ENGINES.values():
        for prefix in engine.prefixes + engine.re_exported:
            if b"\n" + prefix in exposition or exposition.startswith(prefix) or b"# TYPE " + prefix in exposition:
                return engine.name
    return ""


def parse(exposition: bytes, engine: str = "auto") -> Signals:
    """Reads the signals of ``engine`` out of ``exposition``. Never raises, whatever the bytes.

    A broken line loses its own signal only. A signal with one bad series among several is unknown: the sum of the rest
    would say "less load", which draws traffic.

    Args:
        engine: key of :data:`exaserve.engines.ENGINES`, or "auto" to find out (an unknown name counts as "auto").
    """
    name = _ALIASES.get(engine, engine)
    if name not in ENGINES:
        name = detect(exposition)
    if not name:
        return Signals("", {}, _UNKNOWN_EXPECTED)
    spec = ENGINES[name]
    for prefix in spec.re_exported:
        if prefix in exposition:
            exposition = exposition.replace(prefix, spec.prefixes[0])
    families = Families(exposition, _WANTED[name])
    values: dict[str, Any] = {}
    for signal, sources in spec.sources.items():
        required = signal in spec.expected
        value = first_value(families, sources, spec.copied_over, required=required)
        if signal == "kv_use":
            value = min(value, 1.0) if value is not None and value <= _KV_USE_MAX else None
        if value is not None:
            values[signal] = int(value) if signal in _COUNTS else value
    values = spec.extras(families) | values
    missing = tuple(sorted(signal for signal in spec.expected if signal not in values))
    return Signals(name, values, missing)


_ALIASES = {alias: engine.name for engine in ENGINES.values() for alias in engine.aliases}
_WANTED: dict[str, frozenset[bytes]] = {
    name: frozenset((*engine.info, *(source.name for sources in engine.sources.values() for source in sources)))
    for name, engine in ENGINES.items()
}
