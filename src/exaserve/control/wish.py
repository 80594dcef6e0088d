"""What somebody wants written into the control document, and the line of the audit log about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["AuditRow", "Wish"]


class AuditRow(NamedTuple):
    """One administrative action. ``before`` and ``after`` are JSON without secrets, None where there was nothing."""

    at: float
    who: str
    what: str
    target: str
    before: str | None
    after: str | None


class Wish(NamedTuple):
    """Checked, and ready to be written.

    Attributes:
        changes: entries: kind, id, value.
        what / target / before / after: for the audit log.
        answer: what whoever asked is shown once it is written; of a new key its secret, which is nowhere else.
    """

    changes: Sequence[tuple[str, str, bytes | None]]
    what: str
    target: str
    before: str | None
    after: str | None
    answer: dict[str, Any]

    def row(self, at: float, who: str) -> AuditRow:
        return AuditRow(at, who, self.what, self.target, self.before, self.after)
