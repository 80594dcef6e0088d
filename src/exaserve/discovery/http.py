"""Reaching registries over HTTP(S): credentials from files, TLS contexts, errors in words."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from exaserve.discovery.feed import SourceError

__all__ = ["BODY_BYTES_MAX", "Tls", "client_for", "client_with", "extensions_of", "read_text", "why"]

BODY_BYTES_MAX = 256 * 2**20
"""A registry's answer that is larger is not read: 3,072 services with their checks are about 6 MB."""
TOKEN_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust a server and be trusted by it; "" where the system's way is right.

    Attributes:
        ca_file: PEM certificates that the server's must descend from.
        cert_file / key_file: own certificate and key, for servers that ask for one.
        server_name: name in the server's certificate where it is not the one dialled.
        insecure: take any certificate. For a laboratory only.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """SourceError naming the file that is wrong."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ValueError) as error:
            raise SourceError(f"ca_file {self.ca_file}: {_reason(error)}") from None
        if self.cert_file:
            try:
                context.load_cert_chain(self.cert_file, self.key_file or None)
            except (OSError, ValueError) as error:
                raise SourceError(f"cert_file {self.cert_file}, key_file {self.key_file}: {_reason(error)}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else "") or str(error)


async def client_for(base_url: str, tls: Tls, *, connect_s: float = 3.0, read_s: float = 10.0) -> httpx.AsyncClient:
    """A client of one server. SourceError where a TLS file is wrong."""
    context = await asyncio.to_thread(tls.context) if base_url.startswith("https://") else None
    return client_with(base_url, context, connect_s=connect_s, read_s=read_s)


def client_with(
    base_url: str, context: ssl.SSLContext | None, *, connect_s: float = 3.0, read_s: float = 10.0
) -> httpx.AsyncClient:
    """A client of one server. It reads no proxy settings and no .netrc: registries are inside."""
    timeout = httpx.Timeout(read_s, connect=connect_s)
    # Without a context there is no TLS to verify; False spares httpx the reading of certificates.
    verify = context if context is not None else False
    return httpx.AsyncClient(base_url=base_url, timeout=timeout, trust_env=False, verify=verify)


def extensions_of(tls: Tls) -> dict[str, Any]:
    """For each request of a client: the name to ask the server for."""
    return {"sni_hostname": tls.server_name} if tls.server_name else {}


async def read_text(path: str, what: str) -> str:
    """A secret's file; read again at each use, since tokens are rotated. SourceError names ``what`` and the path."""

    def read() -> str:
        with Path(path).open("rb") as file:
            return file.read(TOKEN_BYTES_MAX).decode("ascii").strip()

    try:
        text = await asyncio.to_thread(read)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{what} {path}: {_reason(error)}") from None
    if not text or not text.isprintable():
        raise SourceError(f"{what} {path}: is empty or holds more than one line")
    return text


def why(error: httpx.HTTPError) -> str:
    """In words, for the log."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time" if not isinstance(error, httpx.ConnectTimeout) else "no connection in time"
    return str(error) or type(error).__name__
