"""Where an engine's figures are and which engine gives them, found out by asking. Shared by gateways and agents."""

from __future__ import annotations

from exaserve.engines.fetch import Fetched
from exaserve.engines.registry import metrics_paths
from exaserve.engines.signals import Signals, parse

__all__ = ["MetricsReader"]

_NOT_HERE = frozenset({404, 405, 501})


class MetricsReader:
    """Reads one replica's expositions, whichever engine it turns out to be, and whichever takes its place later.

    Attributes:
        engine: key of ENGINES as found out, "" if not yet.
        error: why the last answer was of no use, "" if it was well.
        missing: signals that the engine should give and does not, from the last answer that was an exposition.
    """

    __slots__ = ("_given", "_index", "_paths", "engine", "error", "missing")

    def __init__(self, engine: str) -> None:
        self._given = engine
        self._paths = metrics_paths(engine)
        self._index = 0
        self.engine = ""
        self.error = ""
        self.missing: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """What to ask for next."""
        return self._paths[self._index]

    def forget(self) -> None:
        """Another process may be another engine."""
        self.engine = ""

    def take(self, result: Fetched) -> Signals | None:
        """What an answer says; None where that is of no use, with :attr:`error` and perhaps another :attr:`path`."""
        if result.status != 200:
            self._refuse(result.error or f"status {result.status}", elsewhere=result.status in _NOT_HERE)
            return None
        signals = parse(result.body, self.engine or self._given)
        if not signals.values:
            # Another engine may have taken the address, or this path is not the one.
            self.engine = ""
            signals = parse(result.body)
        self.missing = signals.missing
        if not signals.values:
            self._refuse("no metrics of a known engine", elsewhere=True)
            return None
        self.engine = signals.engine
        self.error = ""
        return signals

    def _refuse(self, error: str, *, elsewhere: bool) -> None:
        self.error = error
        if elsewhere:
            self._index = (self._index + 1) % len(self._paths)
