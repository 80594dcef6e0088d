"""The salt of a tenant's prefix caches: requests of others cannot find out, by their speed, what is in them. Pure."""

from __future__ import annotations

import hmac

from exaserve.control.records import Tenant

__all__ = ["cache_salt"]


def cache_salt(secret: bytes, name: str, tenant: Tenant | None) -> bytes:
    """Salt of the tenant ``name``, 44 characters that stand in JSON as they are; the same in every gateway.

    The kind of the name is part of it, so that no tenant is called as another's group, and its length, so that no two
    names run together. Nobody without the cluster secret can tell it.
    """
    group = "" if tenant is None else tenant.cache_group
    kind, text = (b"group", group.encode()) if group else (b"tenant", name.encode())
    message = b"exaserve cache salt\n%b\n%d\n%b" % (kind, len(text), text)
    return b"exa-" + hmac.digest(secret, message, "sha256").hex()[:40].encode()
