"""Which key a secret is: a look-up by keyed hash. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping

from exaserve.control.records import ApiKey, Tenant

__all__ = ["Keybook", "digest_of"]


def digest_of(cluster_secret: bytes, text: bytes) -> str:
    """What is stored of a secret ``text``: it does not give the text away, nor lets one try texts without the key."""
    return hmac.digest(cluster_secret, b"exaserve key\n" + text, "sha256").hex()


class Keybook:
    """All keys and tenants as they are now.

    Args:
        keys: revoked and expired ones may be among them.
        tenants: a key's tenant need not be among them: it then has no bounds of its own.
        secrets: cluster secrets by id.
    """

    def __init__(self, keys: Iterable[ApiKey], tenants: Iterable[Tenant], secrets: Mapping[str, bytes]) -> None:
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.keys: dict[str, ApiKey] = {}
        self._secrets = dict(secrets)
        self.salting_secret = secrets[min(secrets)] if secrets else b""
        self._by_digest: dict[str, tuple[ApiKey, float | None]] = {}
        for key in keys:
            self.put_key(key.id, key)

    def put_key(self, name: str, key: ApiKey | None) -> None:
        """A key is new, another one now, or with None gone."""
        old = self.keys.pop(name, None)
        if old is not None:
            for digest in (old.digest, *(each[0] for each in old.previous)):
                self._by_digest.pop(digest, None)
        if key is None:
            return
        self.keys[name] = key
        if not key.revoked:
            for digest, _, until in key.previous:
                self._by_digest[digest] = (key, until)
            self._by_digest[key.digest] = (key, None)

    def put_tenant(self, name: str, tenant: Tenant | None) -> None:
        """A tenant is new, another one now, or with None gone."""
        self.tenants.pop(name, None)
        if tenant is not None:
            self.tenants[name] = tenant

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, text: bytes, wall_s: float) -> tuple[ApiKey, float | None] | None:
        """The key whose secret is ``text``, and when it ends (seconds since 1970); None where it is not accepted."""
        for secret in self._secrets.values():
            found = self._by_digest.get(digest_of(secret, text))
            if found is None:
                continue
            key, until = found
            ends = min((at for at in (key.expires_at, until) if at is not None), default=None)
            tenant = self.tenants.get(key.tenant)
            if (ends is not None and ends <= wall_s) or (tenant is not None and tenant.disabled):
                return None
            return key, ends
        return None
