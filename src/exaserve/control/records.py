"""What is written down of those who use the endpoint: keys, tenants, what they may use, what it costs.

These are the records of the control document and of the cluster file; JSON and YAML have the same names.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "ANONYMOUS",
    "PRIORITIES",
    "ROUTE_GROUPS",
    "SETTABLE",
    "Allowance",
    "ApiKey",
    "KeyTerms",
    "LimitRule",
    "Price",
    "PriorityName",
    "RouteGroup",
    "Settable",
    "Tenant",
]

ANONYMOUS = ""
"""The tenant of requests without a key, where they are served."""

PriorityName = Literal["low", "normal", "high"]
PRIORITIES: dict[PriorityName, int] = {"low": -10, "normal": 0, "high": 10}
"""Priority classes, and what they are in the admission queue: larger goes first."""

RouteGroup = Literal["inference", "models", "metrics"]
ROUTE_GROUPS: tuple[RouteGroup, ...] = ("inference", "models", "metrics")
"""What a key may be for: requests that a replica answers, the list of models, the gateway's metrics."""

Settable = Literal["priority", "tenant", "destination", "cache_salt"]
SETTABLE: tuple[Settable, ...] = ("priority", "tenant", "destination", "cache_salt")
"""What else a key may be trusted to say in a request, which is dropped from all others: a class of priority, on behalf
of which tenant it comes, which replica is to take it, which salt its prefix cache has."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much may be used; None is no bound.

    Attributes:
        requests_per_minute: in any 60 seconds.
        tokens_per_minute: prompt and generated tokens together, in any 60 seconds.
        input_tokens_per_minute / output_tokens_per_minute: each by itself.
        concurrent_requests: under way at one time, to the last byte of the answer.
        tokens_per_day / tokens_per_month: calendar days and months, UTC.
        money_per_month: in the currency of the prices.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_month: float | None = None


class LimitRule(Allowance, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A bound on whatever matches all that the rule names.

    What is left out is shared by all that match: ``{model: llama}`` is one bound on all use of llama. A pattern with
    ``*`` gives each value that matches a bound of its own: ``{tenant: "*"}`` is the same bound for each tenant.

    Attributes:
        key: a key's id, or a pattern.
        tenant: a tenant's name, or a pattern.
        model: a model's name, or a pattern.
    """

    key: str | None = None
    tenant: str | None = None
    model: str | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group of keys that is accounted for as one: a team, a customer, a project.

    Attributes:
        name: what it is called in keys, usage and metrics.
        allowance: over all its keys.
        models: names or patterns that its keys may use at most.
        weight: its share of a saturated cluster's seconds of work against other tenants'.
        cache_group: tenants of one group share prefix caches; "" is a group of its own.
        labels: free text for people and for reports of usage.
        disabled: none of its keys is accepted.
    """

    name: str
    allowance: Allowance = Allowance()
    models: tuple[str, ...] = ("*",)
    weight: float = 1.0
    cache_group: str = ""
    labels: dict[str, str] = {}
    disabled: bool = False


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a key is for.

    Attributes:
        tenant: whose it is.
        name: what people call it.
        expires_at: seconds since 1970; None: it stays.
        models: names or patterns that it may use.
        routes: what it may be used for.
        priority: class in the admission queue.
        may_say: what else it is trusted to say in a request.
        allowance: for this key alone.
        labels: free text for people and for reports of usage.
    """

    tenant: str
    name: str = ""
    expires_at: float | None = None
    models: tuple[str, ...] = ("*",)
    routes: tuple[RouteGroup, ...] = ("inference", "models")
    priority: PriorityName = "normal"
    may_say: tuple[Settable, ...] = ()
    allowance: Allowance = Allowance()
    labels: dict[str, str] = {}


class ApiKey(KeyTerms, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key. The secret itself is nowhere.

    Attributes:
        id: what commands call it; never shown to be a secret.
        digest: keyed hash of the secret, hexadecimal; secret_id: of which cluster secret.
        prefix / last4: the secret's first and last characters, for people.
        created_at: seconds since 1970.
        previous: digest and secret's id of the secret before the last rotation, and until when it is taken.
        revoked: it is not accepted any more.
    """

    id: str
    digest: str
    secret_id: str
    prefix: str = ""
    last4: str = ""
    created_at: float = 0.0
    previous: tuple[tuple[str, str, float], ...] = ()
    revoked: bool = False


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a million tokens of a model cost.

    Attributes:
        input / output: of prompt and generated tokens.
        cached_input: of prompt tokens that the engine had in its prefix cache; None is the price of input.
    """

    input: float = 0.0
    cached_input: float | None = None
    output: float = 0.0
