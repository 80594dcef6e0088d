"""Policies by name. Each is one small class with ``pick``; add one by adding a line here."""

from __future__ import annotations

from exaserve.scheduling.policies.base import Pick, Policy, PolicyContext, PolicyFactory
from exaserve.scheduling.policies.consistent_hash import ConsistentHash, Hybrid
from exaserve.scheduling.policies.entropy import Entropy
from exaserve.scheduling.policies.least import LeastLoaded, connections, outstanding_tokens, weighted_connections
from exaserve.scheduling.policies.literal import Literal
from exaserve.scheduling.policies.power_of_two import PowerOfTwo
from exaserve.scheduling.policies.random_choice import RandomChoice
from exaserve.scheduling.policies.round_robin import RoundRobin

__all__ = ["POLICIES", "Pick", "Policy", "PolicyContext", "PolicyFactory"]

POLICIES: dict[str, PolicyFactory] = {
    "entropy": Entropy,
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_connections": lambda context: LeastLoaded(context, connections),
    "weighted_least_connections": lambda context: LeastLoaded(context, weighted_connections),
    "least_tokens": lambda context: LeastLoaded(context, outstanding_tokens),
    "power_of_two": PowerOfTwo,
    "consistent_hash": ConsistentHash,
    "hybrid": Hybrid,
    "literal": Literal,
}
