"""Where replicas come from: a stream of changes to the set of replicas."""

from __future__ import annotations

from exaserve.discovery.changes import Added, Change, Discovery, Removed, Updated, changes_between
from exaserve.discovery.static import StaticDiscovery

__all__ = ["Added", "Change", "Discovery", "Removed", "StaticDiscovery", "Updated", "changes_between"]
