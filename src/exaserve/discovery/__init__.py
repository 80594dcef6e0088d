"""Where replicas come from: changes to the set of them, told by a file, agents, Consul, Kubernetes or DNS."""

from __future__ import annotations

from exaserve.discovery.belief import Belief
from exaserve.discovery.changes import Added, Change, Discovery, Removed, Updated, changes_between
from exaserve.discovery.entries import Defaults
from exaserve.discovery.feed import SourceError, SourceStatus
from exaserve.discovery.file import FileDiscovery, read_targets

__all__ = [
    "Added",
    "Belief",
    "Change",
    "Defaults",
    "Discovery",
    "FileDiscovery",
    "Removed",
    "SourceError",
    "SourceStatus",
    "Updated",
    "changes_between",
    "read_targets",
]
