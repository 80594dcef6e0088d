# compiled
"""What is kept of one replica, and what somebody has to do when that changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from exaserve.domain.replica import ModelCard, ReplicaId, ReplicaSpec, Report
from exaserve.scheduling import ReplicaLedger

__all__ = ["ChangeKind", "FleetChange", "Member"]


class ChangeKind(Enum):
    """What the shell has to do about it, beside writing it down under this name."""

    UP = "replica_up"
    """Look at the queue: it may take requests."""
    DOWN = "replica_down"
    """Drop idle connections to it."""
    LEAVE = "replica_left_alone"
    """Move requests that wait there for their first byte: it shows no work, so what it has computed is lost anyway."""
    RESTARTED = "replica_restarted"
    """Another process answers there: find out again which engine it is. (The next probe asks for its models.)"""
    WITHHELD = "replica_withheld"
    """Its probes are well, but it gets nothing new."""
    GIVEN_BACK = "replica_given_back"
    """Look at the queue: what withheld it is over."""
    SUSPECT = "replica_suspect"
    TRUSTED = "replica_trusted"


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Something that the shell must act on. ``share`` is of its normal traffic, ``inflight`` what is placed there."""

    kind: ChangeKind
    replica: ReplicaId
    why: str
    share: float = 1.0
    inflight: int = 0


class Member:
    """What is kept of one replica beside its ledger and its health.

    Attributes:
        ledger: its ledger in the scheduler.
        given: its description as configured; what it lists of itself is added to that in ``ledger.spec``.
        cards: what it last listed; models_at: when it was asked, minus infinity where it has to be (again).
        dialect: index of the probe's dialect that worked last, None where it is to be found out.
        up / share / reason: what its health says.
        withheld: why it gets nothing although its health is good, "" if nothing is wrong.
        suspect: whether the anomaly guard distrusts it.
    """

    __slots__ = (
        "cards", "counted_at", "dialect", "given", "id", "last", "ledger", "missed_from", "models_at", "reason",
        "refused", "share", "silent", "stuck_since", "suspect", "up", "withheld",
    )  # fmt: skip

    def __init__(self, ledger: ReplicaLedger, given: ReplicaSpec) -> None:
        self.id = given.id
        self.ledger = ledger
        self.given = given
        self.cards: tuple[ModelCard, ...] = ()
        self.models_at = -math.inf
        self.dialect: int | None = None
        self.up = False
        self.share = 0.0
        self.reason = "not probed yet"
        self.withheld = ""
        self.suspect = False
        self.last: Report | None = None
        """The newest report, by which the next one is judged."""
        self.counted_at = -math.inf
        """When its figures were true."""
        self.missed_from = 0.0
        """Figures newer than this are missed when no more come: since it came up, or since a probe made up for them."""
        self.silent = False
        """Whether that is what withholds it."""
        self.stuck_since = math.inf
        """Since when requests wait in it and none runs, with no figure moving."""
        self.refused = False
        """Its address has refused connections since the last report: that process is gone."""

    @property
    def learns_models(self) -> bool:
        """Whether what it lists decides what it serves: nobody has configured that."""
        return not self.given.models
