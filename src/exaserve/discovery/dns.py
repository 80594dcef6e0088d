"""DNS SRV: the replicas behind one name, asked again when the records' time to live is over.

Of the records those with the lowest priority number count; among them weights become the replicas' weights, 1 on
average. DNS cannot say "gone" and "broken" apart, and a resolver in trouble often answers "no such name": an empty
answer is no more than a set of nobody, which :mod:`exaserve.discovery.belief` doubts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom

from exaserve.discovery.dns_message import AAAA, SRV, A, Answer, DnsError, Service, query, read_answer
from exaserve.discovery.entries import Defaults, spec_of
from exaserve.discovery.feed import Source, SourceError, Tell, silent
from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["DnsDiscovery", "system_nameservers"]

TRY_S = 2.0
"""Resolvers answer what they hold within a second; a set of replicas must not wait for one that is gone."""
TARGETS_MAX = 4096
LOOKUPS_AT_ONCE = 16


def system_nameservers(path: Path = Path("/etc/resolv.conf")) -> tuple[tuple[str, int], ...]:
    """The system's resolvers; this machine's own where none is named."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    found = [fields[1] for line in lines if len(fields := line.split()) > 1 and fields[0] == "nameserver"]
    return tuple((each, 53) for each in found[:3]) or (("127.0.0.1", 53),)


class DnsDiscovery(Source):
    """Replicas named by the SRV records of ``name``, such as ``_http._tcp.vllm.example.org``.

    A target with one address is the replica ``target:port``; one with several is a replica for each.

    Args:
        name: asked as it is; search lists do not apply.
        nameservers: asked in turn; empty takes the system's.
        ttl_min_s / ttl_max_s: bounds of the time to live that records may ask for.
        try_s: how long one server is waited for, over UDP and again over TCP.
    """

    def __init__(
        self,
        name: str,
        *,
        nameservers: Sequence[tuple[str, int]] = (),
        ttl_min_s: float = 1.0,
        ttl_max_s: float = 60.0,
        try_s: float = TRY_S,
        defaults: Defaults | None = None,
        tell: Tell = silent,
        rng: Random | None = None,
    ) -> None:
        super().__init__(f"dns:{name}", tell, rng)
        self._query_name = name.rstrip(".").lower()
        query(0, self._query_name, SRV)  # ValueError for a name that is none
        self._nameservers = tuple(nameservers)
        self._ttl_s = (ttl_min_s, ttl_max_s)
        self._try_s = try_s
        self._defaults = defaults or Defaults()
        self._idents = SystemRandom()

    async def _follow(self) -> None:
        servers = self._nameservers or await asyncio.to_thread(system_nameservers)
        while True:
            answer = await self._ask(servers, self._query_name, SRV)
            if answer.code not in (0, 3):
                raise SourceError(f"the name server says code {answer.code}")
            usable = [each for each in answer.services if each.target]  # "." says: this service is not offered
            if not usable:
                self._empty("no SRV records" if answer.code == 0 else "no such name")
                await asyncio.sleep(self._ttl_s[0])
                continue
            least = min(each.priority for each in usable)
            group = [each for each in usable if each.priority == least][:TARGETS_MAX]
            specs = await self._specs(servers, group, answer)
            self._well()
            self.publish(specs, {spec.id: "SRV record" for spec in specs})
            low, high = self._ttl_s
            await asyncio.sleep(min(max(min(each.ttl_s for each in group), low), high))

    def _empty(self, why: str) -> None:
        self._well()
        self.publish((), dict.fromkeys((ReplicaId(self._query_name), *(spec.id for spec in self._wanted)), why))

    async def _specs(
        self, servers: Sequence[tuple[str, int]], group: list[Service], answer: Answer
    ) -> list[ReplicaSpec]:
        known: dict[str, list[str]] = {}
        for sent in answer.addresses:
            known.setdefault(sent.name, []).append(sent.address)
        missing = sorted({each.target for each in group} - known.keys())
        gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def look_up(target: str) -> None:
            async with gate:
                known[target] = await self._addresses(servers, target)

        await asyncio.gather(*(look_up(target) for target in missing))
        mean = sum(each.weight for each in group) / len(group)
        specs = []
        for each in group:
            addresses = sorted(set(known[each.target]))
            if not addresses:
                self._ignore(each.target, "its name has no address")
            for address in addresses:
                name = f"{each.target}:{each.port}"
                try:
                    specs.append(
                        spec_of(
                            name if len(addresses) == 1 else f"{name}/{address}",
                            address,
                            each.port,
                            {},
                            self._defaults,
                            node=each.target,
                            weight=each.weight / mean if mean else 1.0,
                        )
                    )
                except ValueError as error:
                    self._ignore(name, str(error))
        return specs

    async def _addresses(self, servers: Sequence[tuple[str, int]], target: str) -> list[str]:
        try:
            return [str(ipaddress.ip_address(target))]
        except ValueError:
            pass
        found: list[str] = []
        for kind in (A, AAAA):
            answer = await self._ask(servers, target, kind)
            found += [each.address for each in answer.addresses]
            if found:
                break  # one family is enough; both would count a replica twice
        return found

    async def _ask(self, servers: Sequence[tuple[str, int]], name: str, kind: int) -> Answer:
        """The first server's answer that is one. SourceError where all fail."""
        failures = []
        for server in servers:
            ident = self._idents.randrange(65_536)
            try:
                question = query(ident, name, kind)
                answer = read_answer(await _udp(server, question, ident, self._try_s), ident, name, kind)
                if answer.cut:
                    answer = read_answer(await _tcp(server, question, self._try_s), ident, name, kind)
                if answer.code in (0, 3):
                    return answer
                failures.append(f"{server[0]}: code {answer.code}")
            except TimeoutError:
                failures.append(f"{server[0]}: no answer in time")
            except (DnsError, OSError, ValueError, EOFError) as error:
                failures.append(f"{server[0]}: {error}")
        raise SourceError("; ".join(failures))


class _Exchange(asyncio.DatagramProtocol):
    """One question's answer; packets with another number are someone else's."""

    def __init__(self, ident: int) -> None:
        self._ident = ident.to_bytes(2, "big")
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _address: object) -> None:
        if data[:2] == self._ident and not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def _udp(server: tuple[str, int], question: bytes, ident: int, try_s: float) -> bytes:
    """A socket of its own for each question: its port is one more thing that a forger must guess."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    transport, exchange = await loop.create_datagram_endpoint(
        lambda: _Exchange(ident), remote_addr=server, family=family
    )
    try:
        async with asyncio.timeout(try_s):
            transport.sendto(question)
            return await exchange.answer
    finally:
        transport.close()


async def _tcp(server: tuple[str, int], question: bytes, try_s: float) -> bytes:
    async with asyncio.timeout(try_s):
        reader, writer = await asyncio.open_connection(*server)
        try:
            writer.write(len(question).to_bytes(2, "big") + question)
            return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        finally:
            writer.close()
