"""The cluster file's keys of the guard: who may use the endpoint."""

from __future__ import annotations

from typing import Literal

import msgspec

from exaserve.control.records import PriorityName, RouteGroup

__all__ = ["AuthMode", "AuthSettings", "JwtSettings"]

AuthMode = Literal["auto", "open", "keys"]


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of one issuer that are accepted in place of keys.

    Attributes:
        issuer: the claim ``iss`` that its tokens carry.
        audience: one of the claims ``aud`` must be this.
        jwks: file or ``https://`` URL of its public keys (JSON Web Key Set).
        jwks_interval_s: how often that is read again, seconds; an unknown key id asks at once, at most each 10 s.
        algorithms: signatures that are accepted.
        leeway_s: how far its clock may be from ours, seconds.
        tenant_claim: the claim that names the tenant; a dotted path goes into mappings.
        name_claim: the claim that names who it is.
        tenants: value of that claim to tenant, where they differ; others are taken as they are.
        models / routes / priority: as for a key.
    """

    issuer: str
    audience: str
    jwks: str
    jwks_interval_s: float = 300.0
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    leeway_s: float = 30.0
    tenant_claim: str = "sub"
    name_claim: str = "sub"
    tenants: dict[str, str] = {}
    models: tuple[str, ...] = ("*",)
    routes: tuple[RouteGroup, ...] = ("inference", "models")
    priority: PriorityName = "normal"


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use the endpoint.

    Attributes:
        mode: ``keys`` asks each request for a key; ``open`` asks for nothing; ``auto`` is ``keys`` as soon as there
            has been a key or an issuer of tokens, and until then open, on loopback only.
        jwt: issuers of signed tokens, which are taken in place of keys.
    """

    mode: AuthMode = "auto"
    jwt: tuple[JwtSettings, ...] = ()
