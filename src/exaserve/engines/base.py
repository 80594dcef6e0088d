"""How engines are described: as data, so that a new one is a table and not a branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Engine", "Source"]

Combine = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Source:
    """One metric that carries a signal.

    Attributes:
        name: of the samples, as bytes of the exposition.
        combine: how the series of data-parallel ranks make one figure: requests add up, the fullest cache counts.
        label: ``(name, value)`` that a sample must carry to count, or None.
    """

    name: bytes
    combine: Combine = "sum"
    label: tuple[bytes, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What differs between engines, as far as serving needs to know.

    Attributes:
        name: key of :data:`exaserve.engines.ENGINES`.
        prefixes: beginnings of its metric names, by which "auto" knows it.
        metrics_paths: where its exposition may be, the likeliest first.
        health_path: answers 200 while the process lives (which does not say that it can generate).
        sources: signal (a field of :class:`~exaserve.domain.Report`) → metrics that carry it, the best first.
        expected: signals that every release with metrics gives; absent, they are listed in ``Report.missing``.
        copied_over: labels of ranks that repeat the same figure (tensor, pipeline parallel): the largest counts once.
        quirks: what surprises, for the reader and for ``--help``.
    """

    name: str
    prefixes: tuple[bytes, ...]
    metrics_paths: tuple[str, ...] = ("/metrics",)
    health_path: str = "/health"
    sources: Mapping[str, tuple[Source, ...]]
    expected: tuple[str, ...]
    copied_over: tuple[bytes, ...] = ()
    quirks: tuple[str, ...] = field(default=())
