"""The only reader of the environment. Flags win over the environment, which wins over defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Environment",
    "child_environment",
    "gateway_folder",
    "hub_folder",
    "read_environment",
    "state_folder",
]


@dataclass(frozen=True, slots=True)
class Environment:
    """What ExaServe takes from the environment.

    Attributes:
        config: ``EXASERVE_CONFIG``, the cluster file of commands that are given none.
        admin_url: ``EXASERVE_ADMIN_URL``, the admin API that ``exaserve status`` asks.
        kubeconfig: ``KUBECONFIG``, for discovery outside a Kubernetes cluster.
        kubernetes_host / kubernetes_port: ``KUBERNETES_SERVICE_HOST`` and ``…_PORT``, which Kubernetes sets in a pod.
    """

    config: str | None = None
    admin_url: str | None = None
    kubeconfig: str | None = None
    kubernetes_host: str | None = None
    kubernetes_port: str | None = None


def read_environment(values: Mapping[str, str] | None = None) -> Environment:
    """The settings in ``values`` (the process's own environment unless given); empty ones count as not set."""
    values = os.environ if values is None else values
    return Environment(
        config=values.get("EXASERVE_CONFIG") or None,
        admin_url=values.get("EXASERVE_ADMIN_URL") or None,
        kubeconfig=values.get("KUBECONFIG") or None,
        kubernetes_host=values.get("KUBERNETES_SERVICE_HOST") or None,
        kubernetes_port=values.get("KUBERNETES_SERVICE_PORT") or None,
    )


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that we start: ours and ``extra``."""
    return {**os.environ, **extra}


def state_folder(values: Mapping[str, str] | None = None) -> Path:
    """Where engines' logs and caches are unless the cluster file says: the user's cache directory (XDG)."""
    values = os.environ if values is None else values
    base = values.get("XDG_CACHE_HOME") or str(Path(values.get("HOME") or "/var/tmp") / ".cache")  # noqa: S108
    return Path(base) / "exaserve"


def gateway_folder(port: int, values: Mapping[str, str] | None = None) -> Path:
    """Where the gateway on ``port`` keeps keys, decisions and use unless its file says: the user's state directory."""
    values = os.environ if values is None else values
    base = values.get("XDG_STATE_HOME") or str(Path(values.get("HOME") or "/var/lib") / ".local" / "state")
    return Path(base) / "exaserve" / f"gateway-{port}"


def hub_folder(values: Mapping[str, str] | None = None) -> Path:
    """Where the Hugging Face hub's libraries keep what they have downloaded."""
    values = os.environ if values is None else values
    if named := values.get("HF_HUB_CACHE"):
        return Path(named)
    home = values.get("HF_HOME") or str(Path(values.get("HOME") or "/var/tmp") / ".cache" / "huggingface")  # noqa: S108
    return Path(home) / "hub"
