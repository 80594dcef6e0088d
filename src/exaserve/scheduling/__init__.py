"""Who serves what: filters, entropy, the ledger, policies, and the admission queue. Pure: no I/O, no clock."""

from __future__ import annotations

from exaserve.scheduling.admission import Admission, Ticket
from exaserve.scheduling.config import AdmissionConfig, SchedulerConfig
from exaserve.scheduling.explanation import Candidate, Explanation
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.placement import Placement, Refusal, RefusalReason
from exaserve.scheduling.policies import POLICIES, Pick, PolicyContext, PolicyFactory
from exaserve.scheduling.pool import ModelPool
from exaserve.scheduling.prefix import BLOCK_BYTES, block_hashes
from exaserve.scheduling.scheduler import Scheduler

__all__ = [
    "BLOCK_BYTES",
    "POLICIES",
    "Admission",
    "AdmissionConfig",
    "Candidate",
    "Explanation",
    "ModelPool",
    "Pick",
    "Placement",
    "PolicyContext",
    "PolicyFactory",
    "Refusal",
    "RefusalReason",
    "ReplicaLedger",
    "Scheduler",
    "SchedulerConfig",
    "Ticket",
    "block_hashes",
]
