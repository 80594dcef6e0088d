"""Who serves what: filters, entropy, the ledger, policies, and the admission queue. Pure: no I/O, no clock."""

from __future__ import annotations

from exaserve.scheduling.admission import Admission, Ticket
from exaserve.scheduling.config import AdmissionConfig, SchedulerConfig
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.placement import Candidate, Explanation, Placement, Refusal, RefusalReason
from exaserve.scheduling.policies import POLICIES, Choice, PolicyContext, PolicyFactory
from exaserve.scheduling.pool import Pool
from exaserve.scheduling.prefix import BLOCK_BYTES, block_hashes
from exaserve.scheduling.scheduler import Scheduler

__all__ = [
    "BLOCK_BYTES",
    "POLICIES",
    "Admission",
    "AdmissionConfig",
    "Candidate",
    "Choice",
    "Explanation",
    "Placement",
    "PolicyContext",
    "PolicyFactory",
    "Pool",
    "Refusal",
    "RefusalReason",
    "ReplicaState",
    "Scheduler",
    "SchedulerConfig",
    "Ticket",
    "block_hashes",
]
