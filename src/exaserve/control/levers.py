"""What operators have decided of replicas: entries of the control document, and how they are put into force. Pure.

=========  ==========  =========================================
kind       id          value
=========  ==========  =========================================
``drain``  replica     ``true``
``weight`` replica     a number
``score``  replica     a number, or ``"inf"``
``policy`` ``""``      a policy's name
=========  ==========  =========================================

They stand above the cluster file until they are taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from exaserve.control.document import Document, Entry
from exaserve.control.wish import Wish
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.scheduling import Scheduler

__all__ = ["LEVERS", "Levers"]

LEVERS = ("drain", "weight", "score", "policy")


class Levers:
    """Puts entries into force at one gateway's scheduler.

    Args:
        policy: what the cluster file says, for when no entry says anything.
    """

    def __init__(self, document: Document, scheduler: Scheduler, policy: str) -> None:
        self._document = document
        self._scheduler = scheduler
        self.policy = policy

    def pull(self, lever: str, target: str, value: object) -> Wish:
        """An operator wants it so; None takes it back."""
        before = self._document.get(lever, target)
        after = None if value is None else msgspec.json.encode(value)
        said, says = (None if each is None else each.decode() for each in (before, after))
        return Wish([(lever, target, after)], lever, target, said, says, {lever: value})

    def changed(self, entries: Iterable[Entry]) -> bool:
        """These have changed; whether any of them is a lever of something that is here."""
        mine = [entry for entry in entries if entry.kind in LEVERS]
        for entry in mine:
            if entry.kind == "policy":
                self.apply_policy()
            elif entry.id in self._scheduler.states():
                self._apply(entry.kind, ReplicaId(entry.id), entry.value)
        return bool(mine)

    def joined(self, replica: ReplicaId) -> None:
        """A replica has come: what was decided of it holds from its first request on."""
        for kind in ("drain", "weight", "score"):
            value = self._document.get(kind, replica)
            if value is not None:
                self._apply(kind, replica, value)

    def apply_policy(self) -> None:
        """The document's policy, or the file's where the document's is none that exists."""
        said = self._decoded(self._document.get("policy", ""))
        for name in (said, self.policy):
            if isinstance(name, str):
                try:
                    if name != self._scheduler.policy_name:
                        self._scheduler.set_policy(name)
                except ConfigError:
                    continue
                return

    def _apply(self, kind: str, replica: ReplicaId, value: bytes | None) -> None:
        scheduler = self._scheduler
        said = self._decoded(value)
        if kind == "drain":
            if said is True:
                scheduler.drain(replica)
            else:
                scheduler.undrain(replica)
        elif kind == "weight":
            usable = isinstance(said, int | float) and math.isfinite(said) and said >= 0
            written = scheduler.states()[replica].spec.weight
            scheduler.set_weight(replica, float(said) if usable else written)  # type: ignore[arg-type]
        else:
            number = math.inf if said == "inf" else said
            usable = isinstance(number, int | float) and number >= 0
            scheduler.force_score(replica, float(number) if usable else None)  # type: ignore[arg-type]

    @staticmethod
    def _decoded(value: bytes | None) -> object:
        try:
            return None if value is None else msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
