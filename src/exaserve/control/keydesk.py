"""What can be done with keys and tenants: from a wish to entries of the control document and a line of the audit log.

Pure: randomness and time are given. The command line and the admin API do the same by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from exaserve.control.document import Document
from exaserve.control.keybook import Keybook, digest_of
from exaserve.control.records import Allowance, ApiKey, PriorityName, RouteGroup, Settable, Tenant
from exaserve.domain.errors import ConfigError

__all__ = ["KeyChange", "KeyWish", "Keydesk", "TenantChange", "Wish", "read_key", "shown"]

SECRET_CHARS_MIN, SECRET_CHARS_MAX = 16, 512
_NAME_CHARS_MAX = 200
_PREFIX = "sk-exa-"
_V = TypeVar("_V", ApiKey, Tenant)


class KeyWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one says of a new key; fields as in :class:`ApiKey`. ``secret`` is that of a key that exists elsewhere."""

    tenant: str = "default"
    name: str = ""
    expires_at: float | None = None
    models: tuple[str, ...] = ("*",)
    routes: tuple[RouteGroup, ...] = ("inference", "models")
    priority: PriorityName = "normal"
    may_say: tuple[Settable, ...] = ()
    allowance: Allowance = Allowance()
    labels: dict[str, str] = {}
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


class Wish(NamedTuple):
    """What is to be written: entries (kind, id, value); for the audit log what is done, to what, before and after."""

    changes: list[tuple[str, str, bytes | None]]
    what: str
    target: str
    before: str | None
    after: str | None


def shown(record: ApiKey | Tenant) -> dict[str, Any]:
    """A record for people and programs: without hashes, which are nobody's business."""
    value: dict[str, Any] = msgspec.to_builtins(record)
    for hidden in ("digest", "secret_id"):
        value.pop(hidden, None)
    if isinstance(record, ApiKey) and record.previous:
        value["previous"] = [{"until": until} for _, _, until in record.previous]
    return value


def read_key(value: bytes | None) -> ApiKey | None:
    """A key as it stands in the document; None for one of a newer version: it is kept as it is, and not served here."""
    try:
        return None if value is None else msgspec.json.decode(value, type=ApiKey)
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

    # ---- looking ------------------------------------------------------------------------------------------------
    def all_keys(self) -> list[ApiKey]:
        """All of them, the newest last; those that are revoked too."""
        return sorted(self._all("key", ApiKey), key=lambda key: (key.created_at, key.id))

    def tenants(self) -> list[Tenant]:
        return sorted(self._all("tenant", Tenant), key=lambda tenant: tenant.name)

    def book(self) -> Keybook:
        return Keybook(self.all_keys(), self.tenants(), self._secrets)

    def _all(self, kind: Literal["key", "tenant"], record: type[_V]) -> Iterable[_V]:
        for _, value in self._document.of_kind(kind):
            try:
                yield msgspec.json.decode(value, type=record)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue  # of a newer version: it is kept as it is, and not served here

    def key(self, named: str) -> ApiKey:
        """By its id, or by its name where just one has it.

        Raises:
            ConfigError: there is none, or there are several.
        """
        value = self._document.get("key", named)
        if value is not None:
            return msgspec.json.decode(value, type=ApiKey)
        found = [key for key in self.all_keys() if key.name == named and not key.revoked]
        if len(found) != 1:
            many = f"{len(found)} keys are called that; use an id of `exaserve keys list`" if found else "there is none"
            raise ConfigError(f"key {named[:80]!a}: {many}", param="key")
        return found[0]

    # ---- doing --------------------------------------------------------------------------------------------------
    def create(self, wish: KeyWish, key_id: str, random_text: str, now: float) -> tuple[Wish, ApiKey, str]:
        """A new key and its secret, which is nowhere else.

        Args:
            key_id: a new id.
            random_text: 256 random bits as text, what a new secret is made of.
            now: seconds since 1970.

        Raises:
            ConfigError: names the field that cannot be taken.
        """
        if wish.expires_at is not None and wish.expires_at <= now:
            raise ConfigError("expires_at: is in the past", param="expires_at")
        text = f"{_PREFIX}{random_text}" if wish.secret is None else wish.secret
        if wish.secret is not None:
            self._check_secret(text)
        secret_id = min(self._secrets)
        given = {name: getattr(wish, name) for name in wish.__struct_fields__ if name != "secret"}
        key = ApiKey(
            id=key_id,
            digest=digest_of(self._secrets[secret_id], text.encode()),
            secret_id=secret_id,
            prefix=text[:10] if wish.secret is None else text[:4],
            last4=text[-4:],
            created_at=now,
            **given,
        )
        return self._put(key, "key.import" if wish.secret is not None else "key.create", None), key, text

    def _check_secret(self, text: str) -> None:
        if not SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX or not text.isascii() or not text.isprintable():
            raise ConfigError(
                f"secret: must have {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable ASCII characters", param="secret"
            )
        if " " in text:
            raise ConfigError("secret: must not have spaces", param="secret")
        if self.book().find(text.encode(), 0.0) is not None:
            raise ConfigError(f"secret: the key that ends in {text[-4:]} is here already", param="secret")

    def change(self, named: str, change: KeyChange) -> tuple[Wish, ApiKey]:
        """Raises ConfigError as :meth:`create`."""
        old = self.key(named)
        key = msgspec.structs.replace(old, **_given(change))
        return self._put(key, "key.change", old), key

    def rotate(self, named: str, random_text: str, grace_s: float, now: float) -> tuple[Wish, ApiKey, str]:
        """A new secret; the old one is accepted for ``grace_s`` more seconds."""
        old = self.key(named)
        if old.revoked:
            raise ConfigError(f"key {old.id}: is revoked; create another one", param="key")
        if grace_s < 0 or not math.isfinite(grace_s):
            raise ConfigError("grace: must be 0 or more seconds", param="grace")
        text = f"{_PREFIX}{random_text}"
        secret_id = min(self._secrets)
        alive = [each for each in old.previous if each[2] > now]
        if grace_s:
            alive.append((old.digest, old.secret_id, now + grace_s))
        key = msgspec.structs.replace(
            old,
            digest=digest_of(self._secrets[secret_id], text.encode()),
            secret_id=secret_id,
            prefix=text[:10],
            last4=text[-4:],
            previous=tuple(alive[-4:]),
        )
        return self._put(key, "key.rotate", old), key, text

    def revoke(self, named: str) -> tuple[Wish, ApiKey]:
        """For good; also where it is revoked already."""
        old = self.key(named)
        key = msgspec.structs.replace(old, revoked=True, previous=())
        return self._put(key, "key.revoke", old), key

    def set_tenant(self, name: str, change: TenantChange) -> tuple[Wish, Tenant]:
        """Makes or changes a tenant."""
        value = self._document.get("tenant", name)
        old = None if value is None else msgspec.json.decode(value, type=Tenant)
        tenant = msgspec.structs.replace(old or Tenant(name=name), **_given(change))
        _check_name("tenant", name)
        if not (tenant.weight > 0 and math.isfinite(tenant.weight)):
            raise ConfigError("weight: must be a finite number above 0", param="weight")
        _check_allowance(tenant.allowance)
        _check_patterns("models", tenant.models)
        wish = Wish([("tenant", name, msgspec.json.encode(tenant))], "tenant.set", name, _text(old), _text(tenant))
        return wish, tenant

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
        return Wish([("tenant", name, None)], "tenant.remove", name, value.decode(), None)

    def _put(self, key: ApiKey, what: str, old: ApiKey | None) -> Wish:
        _check_name("tenant", key.tenant)
        if len(key.name) > _NAME_CHARS_MAX or (key.name and not key.name.isprintable()):
            raise ConfigError(f"name: must have at most {_NAME_CHARS_MAX} printable characters", param="name")
        _check_allowance(key.allowance)
        _check_patterns("models", key.models)
        if not key.routes:
            raise ConfigError("routes: name at least one of inference, models and metrics", param="routes")
        return Wish([("key", key.id, msgspec.json.encode(key))], what, key.id, _text(old), _text(key))


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
