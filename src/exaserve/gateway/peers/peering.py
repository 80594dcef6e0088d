"""Gateways that share replicas tell each other every placement, first token and end, at once.

One TCP connection for each pair. Either side may dial; where both do, the connection that the gateway with the smaller
name dialled stays. Both prove that they hold the shared token before anything else is believed. Then each sends its
snapshot (own placements in flight) and from there on what happens, written once per turn of the event loop.

Everything told is soft state: a peer that closes, breaks the protocol, or is silent for too long is gone, and
its placements with it. A peer that reads too slowly misses what happens meanwhile and gets a snapshot again.

Times are the sender's, moved to this clock by the least delay seen lately, so that a turn that came late does not look
like a replica that was fast.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from exaserve.config import GatewaySettings, is_loopback, join_address, split_address
from exaserve.domain.errors import ConfigError
from exaserve.gateway.peers.bounds import PeeringBounds
from exaserve.gateway.peers.events import write_time
from exaserve.gateway.peers.link import PeerLink
from exaserve.gateway.peers.replication import Outbox
from exaserve.observe import EventLog, Family, labels
from exaserve.scheduling import Scheduler
from exaserve.wire import FrameKind, WireError

__all__ = ["PeerView", "Peering"]


@dataclass(frozen=True, slots=True)
class PeerView:
    """A connected peer, for the admin API.

    Attributes:
        told: its placements charged here.
        lag_s: how old its messages are when they come: half the least round trip and the mean lateness of the last
            seconds.
        slow: whether that is above ``gateway.peer_lag_max``, so that what it tells is not decided by.
        resyncs: snapshots sent to it beyond the first.
    """

    name: str
    address: str
    dialed: bool
    connected_s: float
    told: int
    received: int
    sent_bytes: int
    lag_s: float
    slow: bool
    resyncs: int


def _refuse_without_token(host: str) -> None:
    if not is_loopback(host):
        raise ConfigError(
            f"peers on {host} are beyond this machine and need a shared token; give --peer-token-file FILE",
            param="gateway.peer_token_file",
        )


class Peering:
    """All peers of one gateway.

    Args:
        settings: name, peers and where to listen.
        token: the secret that all gateways share; None for none, on loopback only.
        on_change: called after what peers told has been charged, so that queued requests are looked at again.
        bounds: how long peers are waited for, and how much is kept for them.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        token: str | None,
        scheduler: Scheduler,
        outbox: Outbox,
        log: EventLog,
        clock: Callable[[], float],
        rng: Random,
        on_change: Callable[[], None] | None = None,
        bounds: PeeringBounds = PeeringBounds(),  # noqa: B008  # frozen
    ) -> None:
        self.name = settings.name
        self.token = token.encode() if token else None
        self.scheduler = scheduler
        self.outbox = outbox
        self.clock = clock
        self.on_change = on_change
        self.bounds = bounds
        self.instance = secrets.token_bytes(8)
        self.takers: dict[FrameKind, Callable[[PeerLink, bytes], None]] = {}
        """Who takes which kind of frames, beside those of placements."""
        self.on_greeted: list[Callable[[PeerLink], None]] = []
        self.on_lost: list[Callable[[PeerLink], None]] = []
        self.losses_total = 0
        self.refused_total = 0
        self.flushes_total = 0
        self.url = ""
        self._settings = settings
        self._addresses = tuple(dict.fromkeys(split_address(peer) for peer in settings.peers))
        self._log = log
        self._rng = rng
        self._links: dict[str, PeerLink] = {}
        self._greeting: set[PeerLink] = set()
        self._known: dict[str, str] = {}
        self._own: set[str] = set()
        self._server: asyncio.Server | None = None
        self._dialers: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._homes_timer: asyncio.TimerHandle | None = None
        self._dealing: asyncio.Handle | None = None
        self._tick_due = 0.0
        self._beat_due = 0.0
        self._stopping = False
        outbox.schedule = self._schedule

    # ---- life ---------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Listens where asked and begins to dial.

        Raises:
            ConfigError: it cannot listen there, or addresses beyond loopback go without a token.
        """
        loop = asyncio.get_running_loop()
        settings = self._settings
        listen = split_address(settings.peer_listen, port_min=0) if settings.peer_listen else None
        if self.token is None:
            for host, _ in (*self._addresses, *([] if listen is None else [listen])):
                _refuse_without_token(host)
        host_name = socket.gethostname()
        self.name = self.name or f"{host_name}/{os.getpid()}"
        if listen is not None:
            try:
                self._server = await loop.create_server(lambda: PeerLink(self, None), *listen, start_serving=False)
            except OSError as error:
                raise ConfigError(
                    f"cannot listen for peers on {settings.peer_listen}: {error.strerror or error}",
                    param="gateway.peer_listen",
                ) from None
            port = self._server.sockets[0].getsockname()[1]
            self.name = settings.name or f"{host_name}:{port}"
            self.url = join_address(listen[0], port)
            await self._server.start_serving()
        self._log.info("peering", name=self.name, listen=self.url, peers=len(self._addresses))
        self.scheduler.peers.set_gateways(self.name, [self.name])
        self._dialers = [loop.create_task(self._keep(host, port)) for host, port in self._addresses]
        self._tick_due = self.clock() + self.bounds.tick_s
        self._timer = loop.call_later(self.bounds.tick_s, self._tick)

    async def stop(self) -> None:
        """Closes everything; peers forget this gateway at once."""
        self._stopping = True
        for timer in (self._timer, self._homes_timer, self._dealing):
            if timer is not None:
                timer.cancel()
        for task in self._dialers:
            task.cancel()
        await asyncio.gather(*self._dialers, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for link in [*self._links.values(), *self._greeting]:
            link.drop("this gateway stops")
        await asyncio.sleep(0)

    # ---- sending ------------------------------------------------------------------------------------------------
    def _schedule(self) -> None:
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Once per turn of the loop: the same bytes to every peer that keeps up."""
        outbox = self.outbox
        data = outbox.take()
        self.flushes_total += 1
        if outbox.renumbered:
            outbox.renumbered = False
            for link in self._links.values():
                if not link.lagging:
                    link.send_snapshot()
        elif data and self._links:
            data = write_time(self.clock()) + data
            for link in self._links.values():
                if not link.lagging:
                    link.write(data)

    def _tick(self) -> None:
        now, bounds = self.clock(), self.bounds
        late_s = max(0.0, now - self._tick_due)
        self._tick_due = now + bounds.tick_s
        self._timer = asyncio.get_running_loop().call_later(bounds.tick_s, self._tick)
        for link in [*self._links.values(), *self._greeting]:
            if late_s > bounds.tick_s:
                # This loop was held up: what peers sent meanwhile is still to be read.
                link.heard_at = min(link.heard_at + late_s, now)
            if link.established and now - link.heard_at > bounds.silence_max_s:
                link.drop(f"silent for {bounds.silence_max_s:g} s")
            elif not link.established and now - link.opened_at > bounds.handshake_s:
                link.drop("the greeting took too long")
        if now >= self._beat_due:
            self._beat_due = now + bounds.heartbeat_s - bounds.tick_s / 2
            for link in self._links.values():
                if not link.lagging:
                    link.beat(now)
        for link in self._links.values():
            if link.lag.judge(self._settings.peer_lag_max_s):
                self._slow(link, now)

    def _slow(self, link: PeerLink, now: float) -> None:
        """The peer has become slow, or is so no longer."""
        lag_ms = round(link.lag.lag_s * 1e3, 1)
        if link.lag.slow:
            link.deafen(now)
            self._log.warning("peer_slow", peer=link.peer, lag_ms=lag_ms, why="its placements come too late")
        else:
            link.listen()
            self._log.info("peer_in_time", peer=link.peer, lag_ms=lag_ms)
        self._homes_soon()

    # ---- dialling -----------------------------------------------------------------------------------------------
    async def _keep(self, host: str, port: int) -> None:
        """Keeps a connection to one address, unless that peer has one to us or the address is our own."""
        loop, bounds = asyncio.get_running_loop(), self.bounds
        failures = 0
        address = join_address(host, port)
        said = ""
        failing_at = self.clock()
        while True:
            if address in self._own:
                return
            if self._known.get(address) in self._links:
                await asyncio.sleep(bounds.tick_s)
                continue
            link = PeerLink(self, address)
            self._greeting.add(link)
            try:
                async with asyncio.timeout(bounds.connect_s):
                    await loop.create_connection(lambda link=link: link, host, port)  # type: ignore[misc]
                await link.closed
                why = link.why
            except (OSError, TimeoutError) as error:
                why = str(error) or "no answer"
            finally:
                self._greeting.discard(link)
                link.drop("given up")
            if link.hello is not None and link.hello.name != self.name:
                self._known[address] = link.hello.name
            failures = 0 if link.established or self._known.get(address) in self._links else failures + 1
            if not failures:
                failing_at, said = self.clock(), ""
            # Who answers and then refuses is no matter of time.
            due = link.hello is not None or self.clock() - failing_at >= bounds.unreachable_after_s
            if failures and due and why != said and address not in self._own:
                self._log.warning("peer_unreachable", address=address, why=why)
                said = why
            pause_s = bounds.backoff_s[min(failures, len(bounds.backoff_s) - 1)]
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))

    # ---- for links ----------------------------------------------------------------------------------------------
    def take(self, link: PeerLink) -> bool:
        """A connection came in; False above the limit."""
        if self._stopping or len(self._greeting) + len(self._links) >= self.bounds.connections_max:
            return False
        self._greeting.add(link)
        return True

    def greeted(self, link: PeerLink) -> None:
        """The peer has proved itself: takes the connection, or closes it where another one is to stay."""
        assert link.hello is not None
        if link.hello.instance == self.instance:
            raise WireError("this is the gateway itself")
        if link.peer == self.name:
            raise WireError(f"another gateway is called {self.name!r} too; give each a name of its own")
        current = self._links.get(link.peer)
        if current is not None and current.hello is not None and current.hello.instance == link.hello.instance:
            first = min(self.name, link.peer)
            if self._dialer(current) == first != self._dialer(link):
                raise WireError("there is a connection already")
        if current is not None:
            current.drop("replaced by another connection")
            self._forget(current)
        self._greeting.discard(link)
        link.established = True
        self._links[link.peer] = link
        self.outbox.listening = True
        link.send_snapshot()
        for call in self.on_greeted:
            call(link)
        self._homes_soon()
        self._log.info("peer_up", peer=link.peer, address=link.address)

    def heard(self, link: PeerLink, kind: FrameKind, payload: bytes) -> None:
        """A frame that is no placement. WireError where nobody here knows the kind."""
        take = self.takers.get(kind)
        if take is None:
            raise WireError(f"a peer does not send {kind.name}")
        take(link, payload)

    def links(self) -> list[PeerLink]:
        """Of the connected peers."""
        return list(self._links.values())

    def _dialer(self, link: PeerLink) -> str:
        return self.name if link.dialed is not None else link.peer

    def lost(self, link: PeerLink) -> None:
        """The connection is gone, whoever ended it."""
        self._greeting.discard(link)
        if link.dialed is not None and link.hello is not None and link.hello.instance == self.instance:
            self._own.add(link.dialed)
        if not link.established:
            if not self._stopping and link.hello is not None:
                self.refused_total += 1
                self._log.debug("peer_refused", address=link.address, why=link.why)
            return
        if self._links.get(link.peer) is link:
            self._forget(link)

    def _forget(self, link: PeerLink) -> None:
        del self._links[link.peer]
        for call in self.on_lost:
            call(link)
        self.outbox.listening = bool(self._links)
        if not self.outbox.listening:
            self.outbox.take()
        told = len(self.scheduler.peers)
        self.scheduler.peers.lost(link.peer, self.clock())
        self.losses_total += 1
        if not self._stopping:
            self._log.warning(
                "peer_lost", peer=link.peer, why=link.why, placements_forgotten=told - len(self.scheduler.peers)
            )
            self._homes_soon()
            if self.on_change is not None:
                self.on_change()

    def _homes_soon(self) -> None:
        if self._homes_timer is None:
            self._homes_timer = asyncio.get_running_loop().call_later(self.bounds.homes_pause_s, self._set_homes)

    def _set_homes(self) -> None:
        self._homes_timer = None
        near = [link.peer for link in self._links.values() if not link.lag.slow]
        untold = len(near) < len(self._links)
        self._deal(self.scheduler.peers.dealing(self.name, [self.name, *near], untold=untold))

    def _deal(self, dealing: Iterator[None]) -> None:
        """A piece in each turn of the loop; a new deal ends the one before, where that is not through yet."""
        if self._dealing is not None:
            self._dealing.cancel()
            self._dealing = None
        if next(dealing, self) is None:
            self._dealing = asyncio.get_running_loop().call_soon(self._deal_on, dealing)

    def _deal_on(self, dealing: Iterator[None]) -> None:
        self._dealing = None
        self._deal(dealing)

    # ---- looking ------------------------------------------------------------------------------------------------
    def peers(self) -> tuple[str, ...]:
        """Names of the connected peers, sorted."""
        return tuple(sorted(self._links))

    def expected(self) -> int:
        """Peers that the configuration names, this gateway left out, or more where more have come."""
        return max(len(self._addresses) - len(self._own), len(self._links))

    def views(self) -> list[PeerView]:
        now = self.clock()
        return [
            PeerView(
                name=link.peer,
                address=link.address,
                dialed=link.dialed is not None,
                connected_s=now - link.opened_at,
                told=self.scheduler.peers.count(link.peer),
                received=link.received,
                sent_bytes=link.bytes_sent,
                lag_s=link.lag.lag_s,
                slow=link.lag.slow,
                resyncs=link.resyncs,
            )
            for _, link in sorted(self._links.items())
        ]

    def as_dict(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            "name": self.name,
            "expected": self.expected(),
            "connected": len(self._links),
            "told_in_flight": len(self.scheduler.peers),
            "own_in_flight": len(self.outbox),
            "told_total": self.outbox.told_total,
            "losses_total": self.losses_total,
            "peers": self.views(),
        }

    def families(self) -> Iterable[Family]:
        """For the gateway's own metrics."""
        expected = Family("exaserve_peers_expected", "gauge", "Other gateways that the configuration names.")
        connected = Family("exaserve_peers_connected", "gauge", "Other gateways connected.")
        told = Family("exaserve_peer_told_inflight", "gauge", "The peer's placements charged here.")
        received = Family("exaserve_peer_received_total", "counter", "Messages from the peer on this connection.")
        sent = Family("exaserve_peer_sent_bytes_total", "counter", "Bytes to the peer on this connection.")
        lag = Family("exaserve_peer_lag_seconds", "gauge", "How old the peer's messages are when they come.")
        slow = Family("exaserve_peer_slow", "gauge", "1 where that is above gateway.peer_lag_max.")
        resyncs = Family("exaserve_peer_resyncs_total", "counter", "Whole snapshots sent because the peer was slow.")
        events = Family("exaserve_peer_events_total", "counter", "Placements, first tokens and ends told to peers.")
        losses = Family("exaserve_peer_losses_total", "counter", "Peers lost, replaced connections included.")
        expected.add(self.expected())
        connected.add(len(self._links))
        events.add(self.outbox.told_total)
        losses.add(self.losses_total)
        for view in self.views():
            head = labels(peer=view.name)
            told.add(view.told, head)
            received.add(view.received, head)
            sent.add(view.sent_bytes, head)
            lag.add(view.lag_s, head)
            slow.add(int(view.slow), head)
            resyncs.add(view.resyncs, head)
        return [expected, connected, told, received, sent, lag, slow, resyncs, events, losses]
