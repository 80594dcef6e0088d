"""The cluster file and the environment: typed, strict about unknown keys, errors with the full path of the field."""

from __future__ import annotations

from exaserve.config.cluster import Cluster, EmulatorSettings, NodeEntry, Pool, ReplicaEntry
from exaserve.config.environment import (
    Environment,
    child_environment,
    gateway_folder,
    hub_folder,
    read_environment,
    state_folder,
)
from exaserve.config.load import load_cluster, parse_cluster, read_cluster
from exaserve.config.profile import load_profile, pool_engine_profile
from exaserve.config.secret import read_secret
from exaserve.config.settings import (
    AgentSettings,
    ClientLimits,
    GatewaySettings,
    RetrySettings,
    TelemetrySettings,
    Timeouts,
)
from exaserve.config.show import diff, to_yaml, without_limits
from exaserve.config.sources import ConsulRegisterSettings
from exaserve.config.start import refuse_start, state_dir_of
from exaserve.config.urls import is_loopback, join_address, replica_from_url, same_address, split_address, split_url

__all__ = [
    "AgentSettings",
    "ClientLimits",
    "Cluster",
    "ConsulRegisterSettings",
    "EmulatorSettings",
    "Environment",
    "GatewaySettings",
    "NodeEntry",
    "Pool",
    "ReplicaEntry",
    "RetrySettings",
    "TelemetrySettings",
    "Timeouts",
    "child_environment",
    "diff",
    "gateway_folder",
    "hub_folder",
    "is_loopback",
    "join_address",
    "load_cluster",
    "load_profile",
    "parse_cluster",
    "pool_engine_profile",
    "read_cluster",
    "read_environment",
    "read_secret",
    "refuse_start",
    "replica_from_url",
    "same_address",
    "split_address",
    "split_url",
    "state_dir_of",
    "state_folder",
    "to_yaml",
    "without_limits",
]
