"""The figures of one engine, asked for at its own ``/metrics`` on this machine (or read from it in this process)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from exaserve.agent.slow_faults import KvAge
from exaserve.domain.replica import ReplicaSpec, Report
from exaserve.engines import MetricsReader
from exaserve.engines.fetch import Fetched, Fetcher

__all__ = ["Sample", "Sampler"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A report, and what of it is told rarely."""

    report: Report
    engine: str


class Sampler:
    """Samples one engine; one request at a time.

    Args:
        api_key: what the engine wants as bearer token, "" for none.

    Attributes:
        last: the newest sample, None before the first.
        failures: samples in a row that failed.
    """

    def __init__(self, spec: ReplicaSpec, clock: Callable[[], float], api_key: str = "") -> None:
        self._spec = spec
        self._clock = clock
        self._api_key = api_key
        self._fetcher: Fetcher | None = None
        self._age = KvAge()
        self._reader = MetricsReader(spec.engine)
        self.last: Sample | None = None
        self.failures = 0

    @property
    def error(self) -> str:
        """Of the last sample, "" where it was good."""
        return self._reader.error

    @property
    def asking(self) -> bool:
        """Whether a request is under way."""
        return self._fetcher is not None and self._fetcher.busy

    def ask(self, timeout_s: float, done: Callable[[Sample | None], None]) -> None:
        """Begins a sample; ``done`` is called once, with None where it failed. Not while :attr:`asking`."""
        if self._fetcher is None:
            self._fetcher = Fetcher(self._spec.url, clock=self._clock, api_key=self._api_key)
        self._fetcher.start("GET", self._reader.path, lambda result: done(self._took(result)), timeout_s=timeout_s)

    def take(self, report: Report, engine: str) -> Sample:
        """A report that was had without asking."""
        self.last = Sample(
            msgspec.structs.replace(report, kv_age_ms=self._age.sampled(report.running, report.taken_at)), engine
        )
        return self.last

    def busy(self) -> bool | None:
        """Whether requests run or wait there, by the newest sample; None where that is unknown."""
        if self.last is None or self.failures:
            return None
        report = self.last.report
        if report.running is None:
            return None
        return bool(report.running or report.waiting)

    def close(self) -> None:
        """Forgets the engine: the next one is another process."""
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        self._age = KvAge()
        self._reader.forget()
        self.last = None
        self.failures = 0

    def _took(self, result: Fetched) -> Sample | None:
        signals = self._reader.take(result)
        if signals is None:
            self.failures += 1
            return None
        self.failures = 0
        return self.take(signals.report(self._spec.id, 0, result.sent_at), signals.engine)
