"""Tokens of other issuers (JSON Web Tokens) in place of keys: their public keys, and what a token's claims mean here.

The request path asks :meth:`Tokens.find`, which never waits: a token is verified once (some 100 µs) and remembered
until it ends. A task reads the public keys again at an interval, and at once when a token names one that is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
from jwt.exceptions import PyJWTError

from exaserve.config import is_loopback
from exaserve.config.guard import JwtSettings
from exaserve.control.records import ApiKey
from exaserve.domain.errors import ConfigError
from exaserve.observe import EventLog, Family, labels

__all__ = ["Tokens"]

_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Signatures by a private key that only the issuer has. Never ``none``, nor HMAC, whose key a public one could be."""
_ASKED_AGAIN_S = 10.0
"""An unknown key id asks the source at most this often: anybody can write one into a token."""
_TOKENS_MAX = 16_384
"""Verified tokens that are remembered; beyond, all are verified again."""
_TOKEN_BYTES_MAX = 16_384
_JWKS_BYTES_MAX = 1 << 20
_NAME_CHARS_MAX = 256
_FETCH_S = 5.0


class _Issuer:
    """One issuer, and the keys that are known of it."""

    def __init__(self, settings: JwtSettings, field: str) -> None:
        bad = set(settings.algorithms) - _ALGORITHMS
        if bad or not settings.algorithms:
            raise ConfigError(f"{field}.algorithms takes {', '.join(sorted(_ALGORITHMS))} only.", param=field)
        source = urlsplit(settings.jwks)
        if source.scheme == "http" and not is_loopback(source.hostname or ""):
            raise ConfigError(f"{field}.jwks: who is on the way could put keys in; use https:// or a file", param=field)
        self.settings = settings
        self.keys: dict[str | None, jwt.PyJWK] = {}
        self.listed: dict[str | None, dict[str, Any]] = {}
        """The same as the source has them."""
        self.failed = False
        self.read_at = float("-inf")

    def take(self, text: bytes) -> None:
        """Raises ValueError or PyJWTError where ``text`` is no set with a usable key: the old ones are kept then."""
        value = json.loads(text)
        listed = value.get("keys") if isinstance(value, dict) else None
        keys: dict[str | None, jwt.PyJWK] = {}
        told: dict[str | None, dict[str, Any]] = {}
        for each in listed if isinstance(listed, list) else ():
            if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
                continue
            with contextlib.suppress(PyJWTError):  # a kind of key that is newer than the library
                keys[each.get("kid")] = jwt.PyJWK(each)
                told[each.get("kid")] = each
        if not keys:
            raise ValueError("it has no usable public key")
        self.keys, self.listed = keys, told

    def claims(self, text: str, kid: object) -> dict[str, Any] | None:
        """What ``text`` says, None where it is not to be believed."""
        settings = self.settings
        key = self.keys.get(kid) if isinstance(kid, str) else None
        if kid is None and len(self.keys) == 1:
            (key,) = self.keys.values()
        if key is None:
            return None
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (PyJWTError, ValueError, TypeError):
            return None
        return claims


class Tokens:
    """See the module's text.

    Args:
        wall: seconds since 1970; clock: seconds, monotonic.

    Attributes:
        on_taken_back: is told that a key is gone, so that who remembers what tokens stand for forgets it.
    """

    def __init__(
        self,
        issuers: tuple[JwtSettings, ...],
        wall: Callable[[], float],
        clock: Callable[[], float],
        log: EventLog,
    ) -> None:
        self._issuers = [_Issuer(each, f"auth.jwt[{i}]") for i, each in enumerate(issuers)]
        self._wall = wall
        self._clock = clock
        self._log = log
        self._found: dict[bytes, tuple[ApiKey, float]] = {}
        self.on_taken_back: Callable[[], None] | None = None
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def find(self, credential: bytes) -> tuple[ApiKey, float] | None:
        """The key that a token stands for, and when it ends (seconds since 1970); None where it is not accepted."""
        if not credential.startswith(b"ey") or credential.count(b".") != 2 or len(credential) > _TOKEN_BYTES_MAX:
            return None
        found = self._found.get(credential)
        if found is not None:
            return found if found[1] > self._wall() else None
        try:
            text = credential.decode("ascii")
            kid = jwt.get_unverified_header(text).get("kid")
        except (PyJWTError, ValueError):
            return None
        for issuer in self._issuers:
            claims = issuer.claims(text, kid)
            if claims is None:
                if kid not in issuer.keys:
                    self._wanted.set()
                continue
            found = _meaning(issuer.settings, claims)
            if found is not None:
                if len(self._found) >= _TOKENS_MAX:
                    self._found.clear()
                self._found[credential] = found
            return found
        return None

    def families(self, _nodes: Mapping[str, str] | None) -> Iterator[Family]:
        """For the gateway's own metrics."""
        failing = Family("exaserve_jwks_failing", "gauge", "1 where an issuer's public keys could not be read lately.")
        for issuer in self._issuers:
            failing.add(int(issuer.failed), labels(issuer=issuer.settings.issuer))
        yield failing

    # ---- the keys -----------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Reads all sources once, and again from now on."""
        await self.refresh()
        if self._issuers:
            self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def refresh(self) -> None:
        """Reads every source now."""
        for issuer in self._issuers:
            await self._read(issuer)

    def _due_at(self, issuer: _Issuer, asked: bool) -> float:
        interval_s = issuer.settings.jwks_interval_s
        return issuer.read_at + (min(interval_s, _ASKED_AGAIN_S) if asked or issuer.failed else interval_s)

    async def _keep(self) -> None:
        asked = False
        while True:
            wait_s = min(self._due_at(each, asked) for each in self._issuers) - self._clock()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wanted.wait()
                        if not asked:
                            asked = True
                            continue
                        await asyncio.sleep(wait_s)
            now = self._clock()
            for issuer in self._issuers:
                if self._due_at(issuer, asked) <= now:
                    await self._read(issuer)
            asked = False
            self._wanted.clear()

    async def _read(self, issuer: _Issuer) -> None:
        issuer.read_at = self._clock()
        source = issuer.settings.jwks
        known = issuer.listed
        try:
            issuer.take(await _fetch(source))
        except (OSError, ValueError, PyJWTError, httpx.HTTPError) as error:
            if not issuer.failed:
                self._log.error("jwks_unreadable", issuer=issuer.settings.issuer, source=source, error=str(error))
            issuer.failed = True
            return
        if issuer.failed:
            self._log.info("jwks_read_again", issuer=issuer.settings.issuer)
        issuer.failed = False
        if any(issuer.listed.get(kid) != each for kid, each in known.items()):
            self._found.clear()  # what a key that was taken back has signed is not believed any more
            if self.on_taken_back is not None:
                self.on_taken_back()


async def _fetch(source: str) -> bytes:
    if "://" not in source:
        return await asyncio.to_thread(Path(source).read_bytes)
    text = b""
    async with httpx.AsyncClient(timeout=_FETCH_S) as client, client.stream("GET", source) as answer:
        answer.raise_for_status()
        async for piece in answer.aiter_bytes():
            text += piece
            if len(text) > _JWKS_BYTES_MAX:
                raise ValueError("it is too large")
    return text


def _claim(claims: dict[str, Any], path: str) -> str:
    """A claim by its name, or by a dotted path; "" where it is no text."""
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _meaning(settings: JwtSettings, claims: dict[str, Any]) -> tuple[ApiKey, float] | None:
    """The key that believed claims stand for; None where they name no tenant."""
    tenant = _claim(claims, settings.tenant_claim)
    tenant = settings.tenants.get(tenant, tenant)
    name = _claim(claims, settings.name_claim)
    if not tenant or max(len(tenant), len(name)) > _NAME_CHARS_MAX:
        return None
    key = ApiKey(
        id=f"jwt:{tenant}:{name}",
        tenant=tenant,
        name=name,
        digest="",
        secret_id="",
        models=settings.models,
        routes=settings.routes,
        priority=settings.priority,
    )
    return key, float(claims["exp"]) + settings.leeway_s
