"""SRV records: priorities, weights, addresses, time to live, TCP, servers that fail, damage."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.discovery.fake_dns import FakeDns
from tests.discovery.following import following
from tests.gateway.running import until

from exaserve.discovery import Belief
from exaserve.discovery.dns import DnsDiscovery, system_nameservers
from exaserve.discovery.dns_message import AAAA, SRV, A, DnsError, query, read_answer

pytestmark = pytest.mark.may_block
NAME = "_http._tcp.vllm.test"


def source_of(*servers: FakeDns, **settings: Any) -> DnsDiscovery:
    chosen: dict[str, Any] = {"ttl_min_s": 0.03, "ttl_max_s": 1.0, "rng": Random(0)} | settings
    return DnsDiscovery(NAME, nameservers=[("127.0.0.1", each.port) for each in servers], **chosen)


async def test_the_lowest_priority_counts_and_weights_are_shares_of_their_mean():
    async with FakeDns() as dns:
        dns.srv[NAME] = [(10, 30, 8000, "a.test"), (10, 10, 8001, "b.test"), (20, 50, 8000, "c.test")]
        dns.a = {"a.test": ["10.0.0.1"], "b.test": ["10.0.0.2"], "c.test": ["10.0.0.3"]}
        async with following(source_of(dns)) as seen:
            await until(lambda: len(seen.held) == 2)
            assert seen.held["a.test:8000"].weight == 1.5
            assert seen.held["b.test:8001"].weight == 0.5
            assert seen.held["b.test:8001"].url == "http://10.0.0.2:8001"


async def test_without_weights_all_are_equal_and_addresses_are_asked_for():
    async with FakeDns() as dns:
        dns.with_addresses = False
        dns.srv[NAME] = [(0, 0, 8000, "a.test"), (0, 0, 8000, "b.test")]
        dns.a = {"a.test": ["10.0.0.1"], "b.test": ["10.0.0.2", "10.0.0.3"]}
        async with following(source_of(dns)) as seen:
            await until(lambda: len(seen.held) == 3)
            assert sorted(seen.held) == ["a.test:8000", "b.test:8000/10.0.0.2", "b.test:8000/10.0.0.3"]
            assert {spec.weight for spec in seen.held.values()} == {1.0}


async def test_time_to_live_is_respected_within_its_bounds():
    async with FakeDns() as dns:
        dns.srv[NAME] = [(0, 0, 8000, "a.test")]
        dns.a = {"a.test": ["10.0.0.1"]}
        dns.ttl = 1
        async with following(source_of(dns)) as seen:
            await until(lambda: seen.held and dns.udp >= 2)
            first, second, *_ = dns.asked_at
            assert second - first > 0.7
            dns.ttl = 86_400
            await until(lambda: dns.udp >= 4)  # ttl_max_s bounds it


async def test_what_does_not_fit_is_asked_for_over_tcp():
    async with FakeDns() as dns:
        dns.truncate = True
        dns.srv[NAME] = [(0, 0, 8000 + k, f"r{k}.test") for k in range(200)]
        dns.a = {f"r{k}.test": [f"10.0.1.{k + 1}"] for k in range(200)}
        async with following(source_of(dns)) as seen:
            await until(lambda: len(seen.held) == 200)
            assert dns.tcp >= 1


async def test_the_next_name_server_answers_when_one_is_silent_or_fails():
    async with FakeDns() as one, FakeDns() as two, FakeDns() as three:
        one.silent = True
        two.code = 2
        three.srv[NAME] = [(0, 0, 8000, "a.test")]
        three.a = {"a.test": ["10.0.0.1"]}
        source = source_of(one, two, three, try_s=0.1)
        async with following(source) as seen:
            await until(lambda: seen.held)
            three.code = 5
            await until(lambda: source.status().error)
            assert "no answer in time" in source.status().error
            assert "code 2" in source.status().error
            assert len(seen.held) == 1


@pytest.mark.parametrize("records", [None, [], [(0, 0, 0, "")]])
async def test_an_empty_answer_is_doubted_as_any_other(records: list[tuple[int, int, int, str]] | None):
    events: list[str] = []
    async with FakeDns() as dns:
        dns.srv[NAME] = [(0, 0, 8000, "a.test")]
        dns.a = {"a.test": ["10.0.0.1"]}
        source = source_of(dns, tell=lambda _level, event, **_fields: events.append(event))
        answering = True
        source.doubt(Belief(0.05, lambda _replica: answering))
        async with following(source) as seen:
            await until(lambda: seen.held)
            if records is None:
                del dns.srv[NAME]
            else:
                dns.srv[NAME] = records
            await until(lambda: source.status().held == 1)
            assert source.status().replicas == 0
            assert len(seen.held) == 1
            assert events.count("discovery_empty") == 1
            answering = False
            await until(lambda: not seen.held)
            assert "fails its probes" in seen.changes[-1].reason


async def test_a_packet_with_another_number_is_not_believed():
    async with FakeDns() as dns:
        dns.wrong_ident = True
        dns.srv[NAME] = [(0, 0, 8000, "a.test")]
        dns.a = {"a.test": ["10.0.0.1"]}
        async with following(source_of(dns)) as seen:
            await until(lambda: seen.held)


def answer_of(dns: FakeDns, name: str, kind: int) -> bytes:
    return dns.answer(query(7, name, kind), cut=False)


def served() -> FakeDns:
    dns = FakeDns()
    dns.srv[NAME] = [(1, 2, 8000, "a.test"), (3, 4, 8001, "b.test")]
    dns.a = {"a.test": ["10.0.0.1"], "b.test": ["10.0.0.2"]}
    return dns


def test_an_answer_to_another_question_is_refused():
    data = answer_of(served(), NAME, SRV)
    assert len(read_answer(data, 7, NAME, SRV).services) == 2
    assert len(read_answer(data, 7, NAME.upper() + ".", SRV).services) == 2
    for ident, name, kind in ((8, NAME, SRV), (7, "other.test", SRV), (7, NAME, A)):
        with pytest.raises(DnsError, match="not an answer"):
            read_answer(data, ident, name, kind)


def test_a_name_that_points_at_itself_ends():
    data = bytearray(answer_of(served(), NAME, SRV))
    at = data.index(b"\xc0\x0c")
    data[at : at + 2] = struct.pack("!H", 0xC000 | at)
    with pytest.raises(DnsError, match="points at itself"):
        read_answer(bytes(data), 7, NAME, SRV)


@given(st.data())
def test_damage_is_refused_and_never_anything_else(data: st.DataObject):
    whole = bytearray(answer_of(served(), NAME, SRV))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(DnsError):
        read_answer(bytes(whole[:cut]), 7, NAME, SRV)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes):
    with pytest.raises(DnsError):
        read_answer(data, 7, NAME, AAAA)


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64 + ".test", ".".join(["abcdefgh"] * 40), "a b\x00c" * 30])
def test_a_name_that_is_none_is_refused(name: str):
    with pytest.raises(ValueError, match=r"domain name|label|character"):
        DnsDiscovery(name)


def test_the_systems_name_servers(tmp_path: Path):
    path = tmp_path / "resolv.conf"
    assert system_nameservers(path) == (("127.0.0.1", 53),)
    path.write_text("# x\nnameserver 10.0.0.1\noptions ndots:5\nnameserver ::1\n")
    assert system_nameservers(path) == (("10.0.0.1", 53), ("::1", 53))
