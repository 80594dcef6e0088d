# compiled
"""What one probe's result means."""

from __future__ import annotations

from dataclasses import dataclass

from exaserve.health.config import HealthConfig

__all__ = ["ProbeVerdict", "judge_probe"]


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """``strikes`` is how many failed probes it counts for; 0 where it went well or says nothing."""

    strikes: int
    detail: str

    @property
    def ok(self) -> bool:
        return self.strikes == 0


def judge_probe(
    config: HealthConfig,
    *,
    status: int | None,
    latency_s: float,
    progressed: bool,
    error: str = "",
    timeout_s: float | None = None,
) -> ProbeVerdict:
    """Judges a real 1-token completion.

    Args:
        status: HTTP status, None where there was no answer.
        latency_s: from sending to the whole answer, or to giving up, seconds.
        progressed: whether the replica did other work meanwhile (an answer began, its figures moved). A full engine
            queues probes as it queues everything; ejecting it for that would push its load onto the others and eject
            them next. A frozen one makes no progress.
        error: what went wrong below HTTP, "" if nothing.
        timeout_s: when this probe was given up, ``probe_timeout_s`` unless said otherwise. One given up earlier has
            only missed the limit.
    """
    if status is None:
        timeout_s = config.probe_timeout_s if timeout_s is None else timeout_s
        timed_out = latency_s >= 0.99 * timeout_s  # timers may be a millisecond early
        if timed_out and progressed:
            return ProbeVerdict(0, f"busy: probe unanswered for {timeout_s:g} s, but working")
        detail = error or f"no answer within {timeout_s:g} s"
        return ProbeVerdict(2 if timed_out and timeout_s >= config.probe_timeout_s else 1, detail)
    if status == 429:
        return ProbeVerdict(0, "busy: 429")
    if not 200 <= status < 300:
        return ProbeVerdict(1, f"status {status}" + (f": {error}" if error else ""))
    if latency_s > config.probe_limit_s and not progressed:
        return ProbeVerdict(1, f"slow: {latency_s:.1f} s for one token, limit {config.probe_limit_s:g} s")
    return ProbeVerdict(0, "ok")
