# compiled
"""What one key may do, prepared once so that a request costs a look-up. No I/O."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from math import inf

from exaserve.control.limits import LimitBook
from exaserve.control.meters import Meter
from exaserve.control.records import PRIORITIES, ApiKey, Tenant
from exaserve.domain.errors import Forbidden
from exaserve.gateway.http.routes import Kind, Route

__all__ = ["Grant"]

_MODELS_MAX = 1024
"""Names whose answer is remembered; a client may ask for any."""
_EMPTY_BYTES_MAX = 64
"""A longer beginning of a JSON object has a field."""
_DESTINATION = re.compile(
    rb"(?i)\r\n(?:x-gateway-destination-endpoint|x-data-parallel-rank|x-data-parallel-host-port|target-pod):[^\r\n]*"
)
"""Headers that name a place, for what stands behind this gateway."""


class Grant:
    """What its bearer may do.

    Attributes:
        key: as it is written down; tenant: whose it is.
        priority: in the admission queue.
        may_say: what else it is trusted to say (see :data:`exaserve.control.records.SETTABLE`).
        ends_at: when it ends, seconds since 1970.
        salt: of its tenant's prefix caches in engines (see :mod:`exaserve.gateway.guard.salt`); b"" has none.
        seed: the same boundary in the gateway's own prefix index.
        mark: sets sessions of its tenant apart from others' of the same name.
        spoken_for: by tenant, what it may do on behalf of others.
    """

    __slots__ = (
        "_allowed", "_epoch", "_inference", "_may_salt", "_meters", "_models", "_salted", "_tenant", "ends_at", "key",
        "mark", "may_say", "priority", "routes", "salt", "seed", "spoken_for",
        "tenant",
    )  # fmt: skip

    def __init__(self, key: ApiKey, tenant: Tenant | None, ends_at: float | None, salt: bytes = b"") -> None:
        self.key = key
        self._tenant = tenant
        self.tenant = key.tenant
        self.priority = PRIORITIES[key.priority]
        self.may_say = frozenset(key.may_say)
        self.routes = frozenset(key.routes)
        self.ends_at = inf if ends_at is None else ends_at
        self.salt = salt
        self.seed = hash(salt) if salt else 0
        self.mark = f"{len(self.tenant)}:{self.tenant}:"
        self._salted = b',"cache_salt":"%b"}' % salt
        self._may_salt = "cache_salt" in self.may_say
        self.spoken_for: dict[bytes, Grant] = {}
        self._inference = "inference" in self.routes
        self._models = (key.models, ("*",) if tenant is None else tenant.models)
        self._allowed: dict[str, bool] = {}
        self._meters: dict[str, tuple[Meter, ...]] = {}
        self._epoch = 0

    def said(self, withheld: bytes) -> bytes:
        """Those of a request's withheld header lines that it may say to replicas."""
        return b"".join(_DESTINATION.findall(withheld)) if "destination" in self.may_say else b""

    def salting(self, body: bytes) -> tuple[int, bytes]:
        """How much of ``body`` to send, and what after it, so that the salt is in it.

        ``body`` is a JSON object that :func:`~exaserve.gateway.http.inspect.inspect` has read. It is not copied here.
        """
        at = body.rfind(b"}")
        if at < 0 or (self._may_salt and b'"cache_salt"' in body):
            return len(body), b""
        if at < _EMPTY_BYTES_MAX and body[:at].strip() == b"{":
            return at, self._salted[1:]
        return at, self._salted

    def meters(self, limits: LimitBook, model: str) -> tuple[Meter, ...]:
        """Whatever bounds its use of ``model``."""
        if limits.epoch != self._epoch:
            self._epoch = limits.epoch
            self._meters.clear()
        found = self._meters.get(model)
        if found is None:
            key, tenant = self.key, self._tenant
            allowance = None if tenant is None else tenant.allowance
            found = limits.meters_for(key.id, key.allowance, key.tenant, allowance, model)
            if len(self._meters) >= _MODELS_MAX:
                self._meters.clear()
            self._meters[model] = found
        return found

    def allows(self, model: str) -> bool:
        """Whether it may use ``model``."""
        known = self._allowed.get(model)
        if known is None:
            known = all(any(fnmatchcase(model, pattern) for pattern in patterns) for patterns in self._models)
            if len(self._allowed) >= _MODELS_MAX:
                self._allowed.clear()
            self._allowed[model] = known
        return known

    def require_route(self, route: Route) -> None:
        """Raises Forbidden where the key is not for requests of that kind."""
        kind = route.kind
        if kind is Kind.JSON or kind is Kind.RESOURCE:
            if not self._inference:
                raise Forbidden("This API key is not for inference.")
        elif kind is Kind.MODELS:
            if "models" not in self.routes:
                raise Forbidden("This API key may not list models.")
        elif kind is Kind.METRICS and "metrics" not in self.routes:
            raise Forbidden("This API key may not read metrics.")

    def require_model(self, model: str) -> None:
        """Raises Forbidden, naming the model."""
        if not self.allows(model):
            raise Forbidden(f"This API key may not use the model {model[:200]!r}.", param="model")
