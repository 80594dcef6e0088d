"""Mutual TLS for the inside of a cluster: both sides show a certificate of the same authority."""

from __future__ import annotations

import ssl
from typing import Literal

from exaserve.domain.errors import ConfigError

__all__ = ["mutual_tls"]


def mutual_tls(side: Literal["client", "server"], cert: str, key: str, authority: str) -> ssl.SSLContext | None:
    """A context that accepts only certificates of ``authority``; None where no file is named.

    Raises:
        ConfigError: one or two of the three are missing, or a file cannot be read.
    """
    files = {"tls_cert": cert, "tls_key": key, "tls_ca": authority}
    if not any(files.values()):
        return None
    missing = [name for name, path in files.items() if not path]
    if missing:
        raise ConfigError(
            f"agents.{missing[0]} is missing: mutual TLS needs tls_cert, tls_key and tls_ca",
            param=f"agents.{missing[0]}",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if side == "client" else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(cert, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"agents.tls_cert, tls_key or tls_ca: {error}", param="agents.tls_cert") from None
    return context
