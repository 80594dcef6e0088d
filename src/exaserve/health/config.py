"""Settings of health checking: what each bound costs and buys."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HealthConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """All times in seconds.

    Attributes:
        probe_interval_s: between probes of a healthy replica.
        probe_limit_s: a probe answered later than this counts as failed, unless the replica made progress meanwhile.
        probe_timeout_s: a probe is given up after this. A replica that stops answering is out of rotation after at most
            12.25 s (an interval, this, ``probe_fast_s`` and ``probe_limit_s``), and gets nothing new after
            ``silent_s``.
        probe_fast_s: first interval between probes while a replica is unknown, half open or under suspicion.
        probe_told_s: between own probes of a replica whose node agent probes it and tells us: these only show that the
            way from here is open, which requests show too.
        probe_backoff: factor from one probe of an unknown replica to the next, up to ``probe_interval_s``.
        strikes_max: strikes in a row that eject. A failed probe is one. One that timed out with no sign of life is two,
            for it has missed the limit and the time-out; the probe that confirms it is given up at the limit.
        failures_max: clients' requests in a row that fail before the replica is ejected.
        failure_rate_max: share of failures within ``window_s`` that ejects, once it holds ``window_min`` answers.
        window_s: length of that window; it is kept as ``window_s`` one-second sums, whatever the traffic.
        recoveries_min: successful probes in a row that end an ejection.
        open_s: first time an ejected replica is left alone; doubles with each ejection that follows, up to
        ``open_max_s``.
        open_max_s: longest time it is left alone. Short, since probing costs one token and a restart should show at
        once.
        forgive_s: healthy for this long, a replica starts again with ``open_s``.
        slow_start_s: from ``slow_start_share`` to the full share, linearly. 0 turns slow start off.
        slow_start_share: share of its normal traffic right after recovery, in (0, 1].
        probes_max: probes under way at once. Each is one connection; hung ones hold theirs until they are given up.
        models_every_s: between two questions for the models of a replica whose models nobody has configured: adapters
            come and go. A restarted engine is asked at once.
        silent_s: a replica whose figures are older than this, and than five intervals of telemetry, gets nothing new
            until they come again or a probe goes well. Not while most replicas are silent: then it is not they.
        hang_s: requests wait in an engine, none runs, and none of its figures moves for this long: it gets nothing new
            until they move.
        suspicion: factor on the cost of a replica whose figures look too good to be true (the anomaly guard). 1 turns
            the guard off.
    """

    probe_interval_s: float = 5.0
    probe_limit_s: float = 2.0
    probe_timeout_s: float = 5.0
    probe_fast_s: float = 0.25
    probe_told_s: float = 60.0
    probe_backoff: float = 1.5
    strikes_max: int = 3
    failures_max: int = 3
    failure_rate_max: float = 0.5
    window_s: int = 10
    window_min: int = 10
    recoveries_min: int = 2
    open_s: float = 0.5
    open_max_s: float = 5.0
    forgive_s: float = 60.0
    slow_start_s: float = 10.0
    slow_start_share: float = 0.1
    probes_max: int = 128
    models_every_s: float = 10.0
    silent_s: float = 3.0
    hang_s: float = 10.0
    suspicion: float = 3.0

    def __post_init__(self) -> None:
        for name in (
            "probe_interval_s",
            "probe_told_s",
            "probe_limit_s",
            "probe_timeout_s",
            "probe_fast_s",
            "open_s",
            "open_max_s",
            "models_every_s",
            "silent_s",
            "hang_s",
        ):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("strikes_max", "failures_max", "window_s", "window_min", "recoveries_min", "probes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0.0 < self.slow_start_share <= 1.0:
            raise ValueError(f"slow_start_share must be in (0, 1], not {self.slow_start_share}")
        if not 0.0 < self.failure_rate_max <= 1.0:
            raise ValueError(f"failure_rate_max must be in (0, 1], not {self.failure_rate_max}")
        if self.probe_limit_s > self.probe_timeout_s:
            raise ValueError("probe_limit_s must not be above probe_timeout_s")
        if self.open_s > self.open_max_s:
            raise ValueError("open_s must not be above open_max_s")
        for name in ("probe_backoff", "suspicion"):
            if getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
