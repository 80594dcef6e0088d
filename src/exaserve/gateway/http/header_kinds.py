# compiled
"""Which headers of clients mean something to the gateway, and what. Everything else is passed on as it is."""

from __future__ import annotations

from exaserve.gateway.http.message_head import cutter

__all__ = [
    "API_KEY",
    "BEARER",
    "CODING",
    "CONNECTION",
    "DEADLINE",
    "DROP",
    "EXPECT",
    "HEADERS",
    "HOST",
    "KINDS",
    "LENGTH",
    "ORIGIN",
    "PLAIN",
    "PRIORITY",
    "REQUEST_ID",
    "SESSION",
    "SPELLINGS",
    "TENANT",
    "UNPASSED",
    "UPGRADE",
    "WITHHELD",
]

PLAIN, HOST, LENGTH, CODING, CONNECTION, DROP, EXPECT, UPGRADE = range(8)
SESSION, REQUEST_ID, ORIGIN, DEADLINE, PRIORITY, BEARER, API_KEY, TENANT, WITHHELD = range(8, 17)
UNPASSED = frozenset({REQUEST_ID, PRIORITY, BEARER, API_KEY, TENANT, WITHHELD})
"""Noted, and said to the replica in another way or not at all."""

KINDS: dict[bytes, int] = {
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"expect": EXPECT,
    b"upgrade": UPGRADE,
    b"x-session-id": SESSION,
    b"x-request-id": REQUEST_ID,
    b"origin": ORIGIN,
    b"x-priority": PRIORITY,
    b"x-exaserve-deadline-ms": DEADLINE,
    b"authorization": BEARER,
    b"x-api-key": API_KEY,
    b"api-key": API_KEY,
    b"x-exaserve-tenant": TENANT,
    # hop by hop (RFC 9110 7.6.1): meant for us, not for the replica
    b"keep-alive": DROP,
    b"proxy-connection": DROP,
    b"proxy-authorization": DROP,
    b"proxy-authenticate": DROP,
    b"te": DROP,
    b"trailer": DROP,
    b"http2-settings": DROP,
}
SPELLINGS = KINDS | {name.title(): kind for name, kind in KINDS.items()}
"""Clients spell most headers in one of two ways; only others have to be lowered on the path."""
_TRUSTED = (
    # of this gateway
    "x~exaserve~*", "x~priority", "x~request~priority", "x~tenant*", "x~cache~salt",
    # Gateway API Inference Extension and llm-d: destination, objective, fairness, model rewrite, legs of a request
    "x~gateway~*", "x~prefiller~*", "x~encoder~*", "x~data~parallel~*", "x~llm~d~*", "x~slo~*",
    # vLLM, SGLang's gateway, Dynamo, AIBrix, Envoy
    "x~vllm~*", "x~sglang~*", "x~smg~*", "x~dynamo~*", "x~worker~*", "x~prefill~*", "x~decode~*", "x~dp~rank",
    "target~pod", "routing~strategy", "x~envoy~*",
    # who it came from and for what: only a proxy that is trusted can say
    "forwarded", "x~forwarded*", "x~real~ip", "x~original~*", "x~rewrite~*",
    # further places of credentials
    "cookie", "apikey", "x~goog~api~key", "x~auth~token", "x~access~token",
)  # fmt: skip
"""What a client may not say to a replica where keys are asked for; besides, names of ``KINDS`` with underscores."""
HEADERS = cutter((*(name.decode().replace("-", "~") for name in KINDS), *_TRUSTED))
"""Cuts all of them out of a head. With ``~`` everywhere its tree has no two branches for one letter."""
