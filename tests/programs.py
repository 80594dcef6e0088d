"""Programs that tests run beside Python. ``scripts/setup dev`` installs them where it runs as root."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["PACKAGES", "program"]

PACKAGES = {
    "curl": "curl",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
"""Program → Debian package."""


def program(name: str) -> str:
    """Its path; the running test is skipped, and says what to install, where there is none."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed: as root, apt-get install {PACKAGES[name]} (scripts/setup does it)")
    return found
