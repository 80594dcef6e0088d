"""In which form this package is installed."""

from __future__ import annotations

import importlib.util

__all__ = ["form"]


def form() -> str:
    """How the request path is installed: "compiled", or "plain" where there was no compiler or none was wanted."""
    spec = importlib.util.find_spec("exaserve.gateway.core")
    return "plain" if spec is None or str(spec.origin).endswith(".py") else "compiled"
