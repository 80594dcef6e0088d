"""Tokens of other issuers, really signed: which are believed, what they mean, and how their public keys are renewed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import client_of, cluster_of

from exaserve.config import parse_cluster
from exaserve.config.guard import JwtSettings
from exaserve.control.keybook import Keybook
from exaserve.control.records import Tenant
from exaserve.domain.errors import ConfigError, Unauthorized
from exaserve.gateway.app import Gateway
from exaserve.gateway.guard.guard import Guard
from exaserve.gateway.guard.jwt import Tokens
from exaserve.gateway.http.parse import Request
from exaserve.observe import EventLog

NOW = 2_000_000_000.0
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
CLAIMS = {"iss": "https://idp", "aud": "llm", "sub": "ann", "exp": NOW * 2, "org": {"team": "acme"}}


def jwks(*algorithms: str, prefix: str = "") -> bytes:
    known = get_default_algorithms()
    keys = [
        {**known[each].to_jwk(KEYS[each].public_key(), as_dict=True), "kid": prefix + each, "alg": each}
        for each in algorithms
    ]
    return json.dumps({"keys": keys}).encode()


def token(algorithm: str = "ES256", kid: str | None = None, **claims: Any) -> bytes:
    said = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(said, KEYS[algorithm], algorithm, headers={"kid": kid or algorithm}).encode()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tokens(source: str, said: list[str] | None = None, **fields: Any) -> Tokens:
    settings = JwtSettings(issuer="https://idp", audience="llm", jwks=source, **fields)
    return Tokens((settings,), lambda: NOW, Clock(), EventLog((said if said is not None else []).append))


def failing(book: Tokens) -> float:
    (family,) = book.families(None)
    ((_, _, value),) = family.samples
    return value


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(*KEYS))
    return path


@pytest.mark.parametrize("algorithm", sorted(KEYS))
async def test_a_signed_token_stands_for_a_tenant(source: Path, algorithm: str) -> None:
    book = tokens(str(source), tenant_claim="org.team", tenants={"acme": "Acme"}, priority="low")
    await book.refresh()
    found = book.find(token(algorithm))
    assert found is not None
    key, ends_at = found
    assert (key.tenant, key.name, key.priority, ends_at) == ("Acme", "ann", "low", NOW * 2 + 30)
    assert book.find(token(algorithm)) is not None


def public_pem() -> bytes:
    return bytes(KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def hs_with_public_key() -> bytes:
    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    text = part(b'{"alg":"HS256","kid":"RS256"}') + b"." + part(json.dumps(CLAIMS).encode())
    return text + b"." + part(hmac.digest(public_pem(), text, hashlib.sha256))


BAD = {
    "another audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "another issuer": lambda: token(iss="https://evil"),
    "ended": lambda: token(exp=1_000_000_000),
    "no end": lambda: token(exp=None),
    "not yet": lambda: token(nbf=NOW * 2),
    "no tenant": lambda: token(sub=None),
    "unknown key": lambda: token(kid="unknown"),
    "another's key": lambda: token("ES256", kid="RS256"),
    "an algorithm that is not wanted": lambda: jwt.encode(
        CLAIMS, KEYS["RS256"], "RS512", headers={"kid": "RS256"}
    ).encode(),
    "none": lambda: jwt.encode(CLAIMS, "", "none", headers={"kid": "RS256"}).encode(),
    "HMAC with the public key": hs_with_public_key,
    "cut": lambda: token()[:-9],
    "no token": lambda: b"ey.ey.ey",
}


@pytest.mark.parametrize("name", sorted(BAD))
async def test_what_is_not_to_be_believed_is_refused(source: Path, name: str) -> None:
    book = tokens(str(source))
    await book.refresh()
    assert book.find(BAD[name]()) is None


def test_only_public_key_signatures_can_be_configured() -> None:
    for bad in (("HS256",), ("none",), ()):
        with pytest.raises(ConfigError, match=r"auth\.jwt\[0\]\.algorithms"):
            tokens("x", algorithms=bad)
    with pytest.raises(ConfigError, match=r"auth\.jwt\[0\]\.jwks"):
        tokens("http://10.0.0.1/jwks")


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    state: dict[str, Any] = {"body": jwks("RS256"), "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(state["status"])
            self.send_header("Content-Length", str(len(state["body"])))
            self.end_headers()
            self.wfile.write(state["body"])

        def log_message(self, *_args: Any) -> None:
            """Nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listener.server_port}/jwks", state
    listener.shutdown()
    thread.join()
    listener.server_close()


async def test_keys_are_rotated_and_outlive_their_source(server: tuple[str, dict[str, Any]]) -> None:
    url, state = server
    said: list[str] = []
    book = tokens(url, said)
    await book.refresh()
    assert book.find(token("RS256")) is not None
    assert book.find(token("ES256")) is None
    state["body"] = jwks("RS256", "ES256")
    await book.refresh()
    assert book.find(token("ES256")) is not None
    state["status"] = 500
    await book.refresh()
    await book.refresh()
    assert (failing(book), len(said)) == (1, 1)
    assert book.find(token("RS256")) is not None
    state["status"], state["body"] = 200, jwks("ES256")
    await book.refresh()
    assert (failing(book), len(said)) == (0, 2)
    assert book.find(token("RS256")) is None, "a key that was taken back signs nothing any more"
    state["body"] = b'{"keys":[]}'
    await book.refresh()
    assert failing(book) == 1
    assert book.find(token("ES256")) is not None


async def test_an_unknown_key_is_asked_for_at_once_but_not_too_often(server: tuple[str, dict[str, Any]]) -> None:
    url, state = server
    clock = Clock()
    settings = JwtSettings(issuer="https://idp", audience="llm", jwks=url, jwks_interval_s=1e9)
    book = Tokens((settings,), lambda: NOW, clock, EventLog(list[str]().append))
    await book.start()
    state["body"] = jwks("RS256", "ES256")
    clock.now = 60.0
    while book.find(token("ES256")) is None:
        await asyncio.sleep(0.01)
    state["body"] = jwks("RS256", "ES256", "EdDSA")
    for _ in range(10):
        assert book.find(token("EdDSA")) is None
        await asyncio.sleep(0.01)
    await book.stop()


async def test_a_token_is_a_key_until_its_issuer_takes_back_what_signed_it(source: Path) -> None:
    book = tokens(str(source))
    await book.start()
    guard = Guard(lambda: NOW)
    guard.tokens = book.find
    book.on_taken_back = guard.forget
    request = Request()
    request.credential = token()
    assert guard.grant(request).tenant == "ann"
    assert guard.grant(request) is guard.grant(request)
    source.write_bytes(jwks("RS256"))
    await book.refresh()
    with pytest.raises(Unauthorized):
        guard.grant(request)
    request.credential = token("RS256")
    assert guard.grant(request).tenant == "ann"
    guard.take(Keybook((), (Tenant(name="ann", disabled=True),), {}))
    with pytest.raises(Unauthorized):
        guard.grant(request)
    await book.stop()


@pytest.mark.may_block
async def test_an_issuer_in_the_cluster_file_closes_the_endpoint_to_all_others(source: Path) -> None:
    issuer = f"{{issuer: 'https://idp', audience: llm, jwks: {source}, routes: [models]}}"
    text = f"model: m\nengine: 'null'\nauth:\n  jwt: [{issuer}]\n"
    async with FakeEngine() as engine:
        cluster = msgspec.structs.replace(cluster_of(engine), auth=parse_cluster(text).auth)
        gateway = Gateway(cluster, log=EventLog(list[str]().append), rng=Random(0))
        await gateway.start()
        try:
            async with client_of(gateway) as client:
                assert (await client.get("/v1/models")).status_code == 401
                headers = {"authorization": f"Bearer {token(exp=4e9).decode()}"}
                assert (await client.get("/v1/models", headers=headers)).status_code == 200
                assert (await client.get("/metrics", headers=headers)).status_code == 403
            assert any("exaserve_jwks_failing" in line for line in gateway.metrics.render().decode().splitlines())
        finally:
            await gateway.stop(0.0)
