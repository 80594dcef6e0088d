"""Keys on the request path: who is let in, what is passed on, and what tenants cannot see of each other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.dataplane import MODEL, Bench, body, get, plain, post, read_answers

from exaserve.control.keybook import Keybook, digest_of
from exaserve.control.records import ApiKey, Tenant
from exaserve.gateway.guard.grants import Grant
from exaserve.gateway.guard.guard import Guard
from exaserve.gateway.guard.salt import cache_salt
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import resolve

SECRET = b"cluster secret of the tests"
KEY = "sk-exa-of-a"
"""Of tenant ``a``; ``sk-exa-of-b`` is of tenant ``b``."""


class Guarded:
    """A data plane whose guard knows a key of each of two tenants; further fields are of both."""

    def __init__(self, tenants: tuple[Tenant, ...] = (), **fields: Any) -> None:
        self.bench = Bench(1)
        self.now = 1000.0
        self.guard = self.bench.core.guard = Guard(lambda: self.now)
        self.tenants = tenants
        self.take(*(key(name, **fields) for name in "ab"))
        self.bench.core.engine_line = b"\r\nAuthorization: Bearer of-engine"

    def take(self, *keys: ApiKey) -> None:
        self.guard.take(Keybook(keys, self.tenants, {"1": SECRET}))

    def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        client = self.bench.client()
        client.protocol.data_received(data)
        (answer,) = read_answers(client.take(), bodyless=data.startswith(b"HEAD"))
        return answer.status, answer.headers, answer.body

    def passed(self, data: bytes) -> bytes:
        """What the replica gets."""
        client = self.bench.client()
        client.protocol.data_received(data)
        sent = bytes(self.bench.busy().take())
        self.bench.answer(plain())
        return sent


def key(tenant: str, **fields: Any) -> ApiKey:
    digest = digest_of(SECRET, b"sk-exa-of-" + tenant.encode())
    return ApiKey(id="k" + tenant, tenant=tenant, digest=digest, secret_id="1", **fields)


def bearer(tenant: str = "a") -> str:
    return f"Authorization: Bearer sk-exa-of-{tenant}"


@pytest.mark.parametrize(
    "request_data",
    [
        post(),
        post(path="/v1/nowhere"),
        post(b"not json"),
        get("/v1/models"),
        get("/metrics"),
        post(None, "/v1/chat/completions", "Authorization: Basic c2stZXhhLW9mLWE="),
        post(None, "/v1/chat/completions", "Authorization: Bearer sk-exa-wrong"),
        post(None, "/v1/chat/completions?api_key=sk-exa-of-a"),
    ],
)
def test_who_has_no_key_is_told_nothing_else(request_data: bytes) -> None:
    status, headers, content = Guarded().ask(request_data)
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    assert json.loads(content)["error"]["code"] == "invalid_api_key"
    assert b"sk-exa" not in content


def test_a_refusal_is_in_the_clients_dialect_and_can_be_read_by_browsers() -> None:
    guarded = Guarded()
    status, headers, content = guarded.ask(post(None, "/v1/messages", "Origin: http://page"))
    assert (status, json.loads(content)["error"]["type"]) == (401, "authentication_error")
    assert headers["access-control-allow-origin"] == "*"
    guarded.take(key("a", models=("other",)))
    status, _, content = guarded.ask(post(None, "/v1/messages", "x-api-key: sk-exa-of-a"))
    assert (status, json.loads(content)["error"]["type"]) == (403, "permission_error")
    assert MODEL in json.loads(content)["error"]["message"]
    assert guarded.ask(get("/v1/models", method="HEAD"))[0] == 401


@pytest.mark.parametrize(
    "line",
    ["Authorization: Bearer @", "authorization: bEARER  @ ", "X-Api-Key: @", "x-api-key: @", "API-KEY: @"],
)
@pytest.mark.parametrize("long_way", [False, True])
def test_a_key_is_taken_in_each_place_and_never_passed_on(line: str, long_way: bool) -> None:
    lines = [line.replace("@", KEY), "Cookie: s=KEY", "x_api_key: KEY", "Proxy-Authorization: Basic KEY"]
    if long_way:
        lines.append("Connection: x-unheard-of")
    sent = Guarded().passed(post(None, "/v1/chat/completions?k%65y=KEY&api_key=KEY&beta=true", *lines))
    assert sent.startswith(b"POST /v1/chat/completions?beta=true HTTP/1.1\r\n")
    assert b"KEY" not in sent
    assert KEY.encode() not in sent
    assert sent.count(b"\r\nAuthorization: Bearer of-engine\r\n") == 1


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_load_balancers_need_no_key(path: str) -> None:
    assert Guarded().ask(get(path))[0] in (200, 503)
    assert Guarded().ask(get("/v1/models", method="OPTIONS"))[0] == 204


def test_a_key_sees_its_models_and_routes_only() -> None:
    guarded = Guarded(models=("none-*",))
    assert json.loads(guarded.ask(get("/v1/models", bearer()))[2])["data"] == []
    assert guarded.ask(get(f"/v1/models/{MODEL}", bearer()))[0] == 404
    assert guarded.ask(get("/metrics", bearer()))[0] == 403
    for data in (get("/v1/models/none-1", bearer()), post(body(model="none-1"), "/v1/chat/completions", bearer())):
        status, _, content = guarded.ask(data)
        assert (status, f"models: {MODEL}".encode() in content) == (404, False)
    assert "models" not in json.loads(guarded.ask(get("/ready"))[2])
    guarded.take(key("a", routes=("metrics",)))
    assert guarded.ask(get("/metrics", bearer()))[0] == 200
    assert guarded.ask(post(None, "/v1/chat/completions", bearer()))[0] == 403


def test_an_ended_key_is_refused_at_once() -> None:
    guarded = Guarded(expires_at=2000.0)
    assert guarded.ask(get("/v1/models", bearer()))[0] == 200
    guarded.now = 2000.0
    assert guarded.ask(get("/v1/models", bearer()))[0] == 401
    old = digest_of(SECRET, b"sk-exa-old")
    guarded.take(key("a", previous=((old, "1", 2100.0),)), key("b", revoked=True))
    assert guarded.ask(get("/v1/models", "x-api-key: sk-exa-old"))[0] == 200
    assert guarded.ask(get("/v1/models", bearer("b")))[0] == 401
    guarded.now = 2100.0
    assert guarded.ask(get("/v1/models", "x-api-key: sk-exa-old"))[0] == 401
    guarded.tenants = (Tenant(name="a", disabled=True),)
    guarded.take(key("a"))
    assert guarded.ask(get("/v1/models", bearer()))[0] == 401


TRUSTED = [
    "x-priority: 9", "X_Priority: 9", "X-ExaServe-Tenant: b", "x-exaserve_replica: r", "x-tenant-id: b",
    "X-Gateway-Destination-Endpoint: 10.0.0.1:1", "x-gateway-inference-objective: o", "x-data-parallel-rank: 1",
    "X-Forwarded-For: 1.1.1.1", "Forwarded: for=1.1.1.1", "x-envoy-original-path: /", "x-vllm-x: 1",
]  # fmt: skip


@pytest.mark.parametrize("line", TRUSTED)
@pytest.mark.parametrize("long_way", [False, True])
def test_what_only_trusted_peers_may_say_is_dropped(line: str, long_way: bool) -> None:
    lines = [bearer(), line, "x-mine: 1", *(["Connection: x-unheard-of"] if long_way else [])]
    sent = Guarded().passed(post(None, "/v1/chat/completions", *lines))
    assert line.split(":", maxsplit=1)[0].lower().encode() not in sent.lower()
    assert b"\r\nx-mine: 1" in sent
    guarded = Guarded()
    guarded.bench.core.guard = None
    assert line.encode() in guarded.passed(post(None, "/v1/chat/completions", *lines))


def test_a_key_may_be_trusted_to_say_more() -> None:
    guarded = Guarded(may_say=("destination", "tenant", "cache_salt"))
    lines = [bearer(), "x-gateway-destination-endpoint: 10.0.0.1:1", "x-priority: 9", "x-exaserve-tenant: c"]
    sent = guarded.passed(post(body(cache_salt="mine", priority=3), "/v1/chat/completions", *lines))
    assert b"x-gateway-destination-endpoint: 10.0.0.1:1\r\n" in sent
    assert b"x-priority" not in sent
    assert b"x-exaserve-tenant" not in sent
    said = json.loads(sent.partition(b"\r\n\r\n")[2])
    assert said["cache_salt"] == "mine"
    assert "priority" not in said


@pytest.mark.parametrize(
    "data",
    [
        body(),
        body(cache_salt="theirs", priority=1, kv_transfer_params={"a": 1}, bootstrap_room=3),
        body()[:-1] + rb',"cache\u005fsalt":"theirs"} ',
        body()[:-1] + b',"cache_salt":"theirs","cache_salt":null}\r\n',
        b"\xef\xbb\xbf" + body(cache_salt="theirs"),
        body(cache_salt="theirs").decode().encode("utf-16"),
        b'{"cache_salt":"theirs"}',
        b"{ }",
        body(text="x" * 200_000),
    ],
)
def test_the_gateways_salt_always_wins(data: bytes) -> None:
    sent = Guarded().passed(post(data, "/v1/chat/completions", bearer()))
    head, _, content = sent.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(content) in head + b"\r\n"
    pairs = json.loads(content, object_pairs_hook=list)
    assert [value for name, value in pairs if name == "cache_salt"] == [cache_salt(SECRET, "a", None).decode()]
    assert not {"priority", "kv_transfer_params", "bootstrap_room"} & {name for name, _ in pairs}


def test_salts_cannot_be_made_equal() -> None:
    salts = {
        cache_salt(SECRET, "team", None),
        cache_salt(SECRET, "team1", None),
        cache_salt(b"another", "team", None),
        cache_salt(SECRET, "x", Tenant(name="x", cache_group="team")),
    }
    assert len(salts) == 4
    shared = Tenant(name="y", cache_group="team")
    assert cache_salt(SECRET, "y", shared) in salts


def test_routes_that_know_no_salt_get_none_and_open_ones_neither() -> None:
    guarded = Guarded()
    assert b"cache_salt" not in guarded.passed(post(body(input="x"), "/v1/embeddings", bearer()))
    guarded.bench.core.guard = None
    assert b'"theirs"' in guarded.passed(post(body(cache_salt="theirs"), "/v1/chat/completions", bearer()))


def test_a_stored_response_is_its_tenants_own() -> None:
    guarded = Guarded()
    client = guarded.bench.client()
    client.protocol.data_received(post(body(input="x"), "/v1/responses", bearer()))
    guarded.bench.answer(plain(b'{"id":"resp_1","object":"response"}'))
    assert guarded.ask(get("/v1/responses/resp_1", bearer("b")))[0] == 404
    assert guarded.ask(get("/v1/responses/resp_2", bearer()))[0] == 404
    going_on = body(input="y", previous_response_id="resp_1")
    assert guarded.ask(post(going_on, "/v1/responses", bearer("b")))[0] == 404
    assert b"GET /v1/responses/resp_1 " in guarded.passed(get("/v1/responses/resp_1", bearer()))
    assert guarded.passed(post(going_on, "/v1/responses", bearer()))


def test_the_prefix_index_and_sessions_end_at_the_same_boundary() -> None:
    book = Keybook((), (), {"1": SECRET})
    shared = [Tenant(name=name, cache_group="team") for name in "cd"]
    grants = [
        Grant(key(name), tenant, None, cache_salt(book.salting_secret, name, tenant))
        for name, tenant in (("a", None), ("b", None), ("c", shared[0]), ("d", shared[1]))
    ]
    guarded = Guarded()
    scheduler = guarded.bench.core.scheduler
    request = Request()
    request.body = body(prompt="x" * 2000, user="u")
    route = resolve(b"POST", b"/v1/completions")
    a, b, c, d = (inspect(request, route, scheduler, None, grant).prefix for grant in grants)
    assert not {*a} & {*b}
    assert not {*a} & {*c}
    assert c == d
    assert len({grant.mark for grant in grants}) == 4
