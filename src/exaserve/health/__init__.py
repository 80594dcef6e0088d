"""Replica health without I/O: the life cycle, the breaker, verdicts on probes, the anomaly guard."""

from exaserve.health.anomaly import AnomalyGuard
from exaserve.health.book import FailureKind, HealthBook, HealthChange, HealthView
from exaserve.health.config import HealthConfig
from exaserve.health.lifecycle import IllegalTransition, State
from exaserve.health.probe import ProbeVerdict, judge_probe

__all__ = [
    "AnomalyGuard",
    "FailureKind",
    "HealthBook",
    "HealthChange",
    "HealthConfig",
    "HealthView",
    "IllegalTransition",
    "ProbeVerdict",
    "State",
    "judge_probe",
]
