"""Mutual TLS between agents and gateways, with certificates made here: who is let in, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.discovery.certificates import Certificates
from tests.gateway.running import until

from exaserve.agent.uplink import Uplink
from exaserve.config import AgentSettings, Cluster, GatewaySettings
from exaserve.domain.errors import ConfigError
from exaserve.gateway.app import Gateway
from exaserve.gateway.fleet.agent_port import agents_of
from exaserve.observe import EventLog
from exaserve.wire import AgentReport, VerbResult, encode, encode_batch
from exaserve.wire.tls import mutual_tls

pytestmark = pytest.mark.may_block
TOKEN = "t" * 32


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, whose certificates have the same names."""
    return Certificates(tmp_path_factory.mktemp("stranger"))


class Source:
    """An agent's other half."""

    node = "node1"
    instance = bytes(8)

    def report(self) -> bytes:
        return encode(AgentReport(full=True, replicas=()))

    def whole_batch(self, seq: int) -> bytes:
        return encode_batch(seq, 0, (), (), 0.0)

    def figures(self) -> bytes:
        return b"\x90"

    async def obey(self, verb: object) -> VerbResult:
        raise AssertionError


class Inside:
    """A gateway with a port for agents, and agents' uplinks to it."""

    def __init__(self, made: Certificates, token: str | None) -> None:
        self.lines: list[str] = []
        self.said: list[str] = []
        settings = AgentSettings(
            enabled=True,
            host="127.0.0.1",
            port=0,
            tls_cert=str(made.folder / "server.pem"),
            tls_key=str(made.folder / "server.key"),
            tls_ca=str(made.ca),
        )
        cluster = Cluster(agents=settings, gateway=GatewaySettings(port=0, admin_port=0, drain_s=0.0))
        self.gateway = Gateway(
            cluster, log=EventLog(self.lines.append, burst_max=10_000), rng=Random(0), agent_token=token
        )
        self.uplinks: list[Uplink] = []

    @property
    def port(self) -> int:
        assert self.gateway.agents is not None
        return int(self.gateway.agents.address.rpartition(":")[2])

    def connected(self) -> int:
        assert self.gateway.agents is not None
        return len(self.gateway.agents.nodes)

    def uplink(self, tls: ssl.SSLContext | None, token: str | None) -> Uplink:
        loop = asyncio.get_running_loop()
        made = Uplink(
            Source(),
            "127.0.0.1",
            self.port,
            token=None if token is None else token.encode(),
            tls=tls,
            log=EventLog(self.said.append, burst_max=10_000),
            rng=Random(1),
            clock=loop.time,
        )
        self.uplinks.append(made)
        made.start()
        return made


@contextlib.asynccontextmanager
async def inside(made: Certificates, token: str | None = TOKEN) -> AsyncIterator[Inside]:
    world = Inside(made, token)
    await world.gateway.start()
    try:
        yield world
    finally:
        await asyncio.gather(*(each.close() for each in world.uplinks))
        await world.gateway.stop(0.0)


def client(made: Certificates, trusts: Certificates | None = None) -> ssl.SSLContext:
    context = mutual_tls("client", str(made.client_cert), str(made.client_key), str((trusts or made).ca))
    assert context is not None
    return context


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_certificates_of_one_authority_let_an_agent_in(authority: Certificates, token: str | None) -> None:
    async with inside(authority, token) as world:
        uplink = world.uplink(client(authority), token)
        await until(lambda: uplink.up and world.connected() == 1)
        assert uplink.transport is not None
        assert uplink.transport.get_extra_info("ssl_object") is not None


async def test_a_token_is_still_asked_for(authority: Certificates) -> None:
    async with inside(authority) as world:
        world.uplink(client(authority), "x" * 32)
        world.uplink(client(authority), None)
        await until(lambda: any("another token" in line for line in world.lines + world.said))
        await until(lambda: any("only one side has a token" in line for line in world.lines + world.said))
        assert world.connected() == 0


async def test_an_agent_of_another_authority_is_refused(authority: Certificates, stranger: Certificates) -> None:
    async with inside(authority) as world:
        uplink = world.uplink(client(stranger, trusts=authority), TOKEN)
        await until(lambda: any("gateway_lost" in line and "certificate" in line for line in world.said))
        await until(lambda: any("agent_refused" in line and "TLS handshake" in line for line in world.lines))
        assert any("127.0.0.1" in line and "issuer" in line for line in world.lines if "agent_refused" in line)
        agents = world.gateway.agents
        assert agents is not None
        await until(lambda: agents.refused >= 3)
        assert sum("agent_refused" in line for line in world.lines) == 1, "told once, however often it tries"
        assert world.connected() == 0
        assert not uplink.up


async def test_a_gateway_of_another_authority_is_not_believed(authority: Certificates, stranger: Certificates) -> None:
    async with inside(stranger) as world:
        uplink = world.uplink(client(stranger, trusts=authority), TOKEN)
        await until(lambda: any("certificate" in line.lower() for line in world.said))
        assert world.connected() == 0
        assert not uplink.up


async def test_without_a_certificate_nobody_gets_in(authority: Certificates) -> None:
    async with inside(authority) as world:
        anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anonymous.load_verify_locations(authority.ca)
        secure = world.uplink(anonymous, TOKEN)
        plain = world.uplink(None, TOKEN)
        await until(lambda: sum("gateway_lost" in line for line in world.said) >= 2)
        await asyncio.sleep(0.3)
        assert world.connected() == 0
        assert not secure.up
        assert not plain.up


async def test_a_certificate_for_another_address_is_not_believed(authority: Certificates) -> None:
    """The gateway's certificate names 127.0.0.1; asked for by another name it proves nothing."""
    async with inside(authority) as world:
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await asyncio.open_connection(
                "127.0.0.1", world.port, ssl=client(authority), server_hostname="elsewhere.test"
            )


async def test_frames_go_through_tls_both_ways(authority: Certificates) -> None:
    async with inside(authority) as world:
        uplink = world.uplink(client(authority), TOKEN)
        await until(lambda: world.connected() == 1)
        agents = world.gateway.agents
        assert agents is not None
        before = agents.batches
        uplink.push(lambda seq: encode_batch(seq, 0, (), (), 0.0))
        await until(lambda: agents.batches > before)
        heard = uplink.heard_at
        await until(lambda: uplink.heard_at > heard)


@pytest.mark.parametrize("left_out", ["tls_cert", "tls_key", "tls_ca"])
def test_half_of_mutual_tls_is_a_mistake(authority: Certificates, left_out: str) -> None:
    files = {
        "tls_cert": str(authority.client_cert),
        "tls_key": str(authority.client_key),
        "tls_ca": str(authority.ca),
        left_out: "",
    }
    with pytest.raises(ConfigError, match=left_out):
        mutual_tls("client", files["tls_cert"], files["tls_key"], files["tls_ca"])


def test_files_that_are_no_certificates_are_named(authority: Certificates, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(ConfigError, match="tls_cert"):
        mutual_tls("server", str(wrong), str(authority.client_key), str(authority.ca))
    with pytest.raises(ConfigError, match="tls_c"):
        mutual_tls("server", str(tmp_path / "none"), str(authority.client_key), str(authority.ca))


async def test_beyond_loopback_mutual_tls_alone_is_enough(authority: Certificates) -> None:
    async with inside(authority, None) as world:
        settings = world.gateway.cluster.agents
        gateway = world.gateway
        parts = (gateway.members, gateway.fleet, gateway.telemetry, gateway.log, gateway.data_plane.wake, gateway.clock)
        everywhere = msgspec.structs.replace(settings, host="0.0.0.0")
        assert agents_of(everywhere, "g", None, *parts).token is None
        open_to_all = AgentSettings(enabled=True, host="0.0.0.0", port=0)
        with pytest.raises(ConfigError, match="mutual TLS"):
            agents_of(open_to_all, "g", None, *parts)
