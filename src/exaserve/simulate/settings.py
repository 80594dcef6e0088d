"""What a simulated run is given beside its cluster and its demand."""

from __future__ import annotations

from dataclasses import dataclass, field

from exaserve.simulate.script import ScriptEvent

__all__ = ["SimSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Knobs of the world around the scheduler. All times in seconds.

    Attributes:
        seed: of everything that is random but the demand (which has its own).
        gateways: requests are dealt to them in turn.
        told_s: how long a gateway's message about a placement takes to the others; None: they tell each other nothing.
        homes: with several gateways, each replica is the home of one (see :mod:`exaserve.scheduling.peers`).
        hop_s: from gateway to replica, and the same back; what HTTP, gateway and client cost a request counts here too.
        report_delay_s: a report's way to the gateway; its figures are that much older.
        report_jitter_s: added to that, uniformly from 0 up to this.
        report_loss: share of reports that never arrive, 0..1.
        probes: whether gateways probe replicas (a completion of one token each, in the same engine).
        warmup_s: requests due before this are left out of the figures.
        window_s: length of the windows for the spread of P99.
        drain_s: how long answers are waited for after the last arrival; what is open then counts as unfinished.
        events: failures, drains, scaling and the like, in order of time.
    """

    seed: int = 1
    gateways: int = 1
    told_s: float | None = None
    homes: bool = True
    hop_s: float = 0.0
    report_delay_s: float = 0.0
    report_jitter_s: float = 0.0
    report_loss: float = 0.0
    probes: bool = True
    warmup_s: float = 5.0
    window_s: float = 5.0
    drain_s: float = 300.0
    events: tuple[ScriptEvent, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.gateways < 1:
            raise ValueError(f"gateways must be at least 1, not {self.gateways}")
        if not 0.0 <= self.report_loss < 1.0:
            raise ValueError(f"report_loss must be in [0, 1), not {self.report_loss}")
        for name in ("hop_s", "report_delay_s", "report_jitter_s", "warmup_s", "drain_s"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.window_s <= 0.0:
            raise ValueError(f"window_s must be above 0, not {self.window_s}")
        if self.told_s is not None and self.told_s < 0.0:
            raise ValueError(f"told_s must not be negative, not {self.told_s}")
