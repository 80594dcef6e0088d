"""What can be done with keys and tenants: from a wish to entries of the control document and a line of the audit log.

Pure: randomness and time are given. The command line and the admin API do the same by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from exaserve.control.document import Document
from exaserve.control.keybook import Keybook, digest_of
from exaserve.control.records import Allowance, ApiKey, KeyTerms, PriorityName, RouteGroup, Settable, Tenant
from exaserve.control.wish import Wish
from exaserve.domain.errors import ConfigError

__all__ = ["KeyChange", "KeyWish", "Keydesk", "TenantChange", "read_record", "shown"]

SECRET_CHARS_MIN, SECRET_CHARS_MAX = 16, 512
_NAME_CHARS_MAX = 200
_PREFIX = "sk-exa-"
_V = TypeVar("_V", ApiKey, Tenant)


class KeyWish(KeyTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one says of a new key. ``secret`` is that of a key that exists elsewhere."""

    tenant: str = "default"
    secret: str | None = None


class KeyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be different of a key; what is not given stays."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    expires_at: float | msgspec.UnsetType | None = msgspec.UNSET
    models: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    routes: tuple[RouteGroup, ...] | msgspec.UnsetType = msgspec.UNSET
    priority: PriorityName | msgspec.UnsetType = msgspec.UNSET
    may_say: tuple[Settable, ...] | msgspec.UnsetType = msgspec.UNSET
    allowance: Allowance | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class TenantChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be different of a tenant, which is made where it is missing."""

    allowance: Allowance | msgspec.UnsetType = msgspec.UNSET
    models: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    cache_group: str | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    disabled: bool | msgspec.UnsetType = msgspec.UNSET


def shown(record: ApiKey | Tenant) -> dict[str, Any]:
    """A record for people and programs: without hashes, which are nobody's business."""
    value: dict[str, Any] = msgspec.to_builtins(record)
    for hidden in ("digest", "secret_id"):
        value.pop(hidden, None)
    if isinstance(record, ApiKey) and record.previous:
        value["previous"] = [{"until": until} for _, _, until in record.previous]
    return value


def read_record(value: bytes | None, record: type[_V]) -> _V | None:
    """A key or tenant as it stands in the document; None for one of a newer version: that stays as it is, unused."""
    try:
        return None if value is None else msgspec.json.decode(value, type=record)
    except msgspec.DecodeError:
        return None


def _text(record: ApiKey | Tenant | None) -> str | None:
    return None if record is None else msgspec.json.encode(shown(record)).decode()


class Keydesk:
    """Keys and tenants of a document.

    Args:
        secrets: cluster secrets by id; new keys are hashed with the first of them.
    """

    def __init__(self, document: Document, secrets: Mapping[str, bytes]) -> None:
        self._document = document
        self._secrets = secrets
        self._made: tuple[int, Keybook] | None = None
        """A book, and of which version of the document."""

    # ---- looking ------------------------------------------------------------------------------------------------
    def all_keys(self) -> list[ApiKey]:
        """All of them, the newest last; those that are revoked too."""
        return sorted(self._all("key", ApiKey), key=lambda key: (key.created_at, key.id))

    def tenants(self) -> list[Tenant]:
        return sorted(self._all("tenant", Tenant), key=lambda tenant: tenant.name)

    def book(self) -> Keybook:
        made = self._made
        if made is None or made[0] != self._document.version:
            made = self._made = (
                self._document.version, Keybook(self.all_keys(), self.tenants(), self._secrets),
            )  # fmt: skip
        return made[1]

    def _all(self, kind: Literal["key", "tenant"], record: type[_V]) -> Iterable[_V]:
        found = (read_record(value, record) for _, value in self._document.of_kind(kind))
        return (each for each in found if each is not None)

    def key(self, named: str) -> ApiKey:
        """By its id, or by its name where just one has it.

        Raises:
            ConfigError: there is none, or there are several.
        """
        key = read_record(self._document.get("key", named), ApiKey)
        if key is not None:
            return key
        found = [key for key in self.all_keys() if key.name == named and not key.revoked]
        if len(found) != 1:
            many = f"{len(found)} keys are called that; use an id of `exaserve keys list`" if found else "there is none"
            raise ConfigError(f"key {named[:80]!a}: {many}", param="key")
        return found[0]

    # ---- doing --------------------------------------------------------------------------------------------------
    def create(self, wish: KeyWish, key_id: str, random_text: str, now: float) -> Wish:
        """A new key, whose answer has its secret, or one that exists elsewhere.

        Args:
            key_id: a new id.
            random_text: 256 random bits as text, what a new secret is made of.
            now: seconds since 1970.

        Raises:
            ConfigError: names the field that cannot be taken.
        """
        if wish.expires_at is not None and wish.expires_at <= now:
            raise ConfigError("expires_at: is in the past", param="expires_at")
        new = wish.secret is None
        text = wish.secret or f"{_PREFIX}{random_text}"
        if wish.secret is not None:
            self._check_secret(wish.secret)
        terms = {name: getattr(wish, name) for name in KeyTerms.__struct_fields__}
        key = ApiKey(id=key_id, created_at=now, **terms, **self._hashed(text, 10 if new else 4))
        return self._put(key, "key.create" if new else "key.import", None, text if new else None)

    def _hashed(self, text: str, shown_chars: int) -> dict[str, Any]:
        """The fields of a key that come of its secret."""
        secret_id = min(self._secrets)
        digest = digest_of(self._secrets[secret_id], text.encode())
        return {"digest": digest, "secret_id": secret_id, "prefix": text[:shown_chars], "last4": text[-4:]}

    def _check_secret(self, text: str) -> None:
        if not SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX or not text.isascii() or not text.isprintable():
            raise ConfigError(
                f"secret: must have {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable ASCII characters", param="secret"
            )
        if " " in text:
            raise ConfigError("secret: must not have spaces", param="secret")
        if self.book().find(text.encode(), 0.0) is not None:
            raise ConfigError(f"secret: the key that ends in {text[-4:]} is here already", param="secret")

    def change(self, named: str, change: KeyChange) -> Wish:
        """Raises ConfigError as :meth:`create`."""
        old = self.key(named)
        return self._put(msgspec.structs.replace(old, **_given(change)), "key.change", old)

    def rotate(self, named: str, random_text: str, grace_s: float, now: float) -> Wish:
        """A new secret, which the answer has; the old one is accepted for ``grace_s`` more seconds."""
        old = self.key(named)
        if old.revoked:
            raise ConfigError(f"key {old.id}: is revoked; create another one", param="key")
        if grace_s < 0 or not math.isfinite(grace_s):
            raise ConfigError("grace: must be 0 or more seconds", param="grace")
        text = f"{_PREFIX}{random_text}"
        alive = [each for each in old.previous if each[2] > now]
        if grace_s:
            alive.append((old.digest, old.secret_id, now + grace_s))
        key = msgspec.structs.replace(old, previous=tuple(alive[-4:]), **self._hashed(text, 10))
        return self._put(key, "key.rotate", old, text)

    def revoke(self, named: str) -> Wish:
        """For good; also where it is revoked already."""
        old = self.key(named)
        return self._put(msgspec.structs.replace(old, revoked=True, previous=()), "key.revoke", old)

    def set_tenant(self, name: str, change: TenantChange) -> Wish:
        """Makes or changes a tenant."""
        value = self._document.get("tenant", name)
        old = None if value is None else msgspec.json.decode(value, type=Tenant)
        tenant = msgspec.structs.replace(old or Tenant(name=name), **_given(change))
        _check_name("tenant", name)
        if not (tenant.weight > 0 and math.isfinite(tenant.weight)):
            raise ConfigError("weight: must be a finite number above 0", param="weight")
        _check_allowance(tenant.allowance)
        _check_patterns("models", tenant.models)
        changes = [("tenant", name, msgspec.json.encode(tenant))]
        return Wish(changes, "tenant.set", name, _text(old), _text(tenant), shown(tenant))

    def remove_tenant(self, name: str) -> Wish:
        """ConfigError where it is not there, or still has keys."""
        value = self._document.get("tenant", name)
        if value is None:
            raise ConfigError(f"tenant {name[:80]!a}: there is none", param="tenant")
        if alive := [key.id for key in self.all_keys() if key.tenant == name and not key.revoked]:
            raise ConfigError(
                f"tenant {name}: {len(alive)} of its keys are in use, such as {alive[0]}; revoke them first",
                param="tenant",
            )
        return Wish([("tenant", name, None)], "tenant.remove", name, value.decode(), None, {"removed": name})

    def _put(self, key: ApiKey, what: str, old: ApiKey | None, secret: str | None = None) -> Wish:
        _check_name("tenant", key.tenant)
        if len(key.name) > _NAME_CHARS_MAX or (key.name and not key.name.isprintable()):
            raise ConfigError(f"name: must have at most {_NAME_CHARS_MAX} printable characters", param="name")
        _check_allowance(key.allowance)
        _check_patterns("models", key.models)
        if not key.routes:
            raise ConfigError("routes: name at least one of inference, models and metrics", param="routes")
        answer = shown(key) if secret is None else shown(key) | {"secret": secret}
        return Wish([("key", key.id, msgspec.json.encode(key))], what, key.id, _text(old), _text(key), answer)


def _given(change: KeyChange | TenantChange) -> dict[str, Any]:
    values = {name: getattr(change, name) for name in change.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def _check_name(field: str, name: str) -> None:
    if not 0 < len(name) <= _NAME_CHARS_MAX or not name.isprintable() or name != name.strip() or "*" in name:
        raise ConfigError(
            f"{field}: must have 1 to {_NAME_CHARS_MAX} printable characters, without * and spaces around", param=field
        )


def _check_patterns(field: str, patterns: tuple[str, ...]) -> None:
    if not patterns or not all(patterns):
        raise ConfigError(f"{field}: name at least one, or * for all", param=field)


def _check_allowance(allowance: Allowance) -> None:
    for name in allowance.__struct_fields__:
        value = getattr(allowance, name)
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"{name}: must be 0 or more, not {value}", param=name)
