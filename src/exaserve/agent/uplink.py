"""One connection to one gateway, kept up for ever: report first, then a batch for each interval.

Bounded: what the gateway does not take in time is not queued but dropped, and the next batch that goes out is complete
again. A batch is worth nothing once the next one exists.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from exaserve.agent.tasks import where_failed
from exaserve.observe import EventLog
from exaserve.wire import FrameKind, Verb, VerbResult, WireError, WireLink, decode, encode
from exaserve.wire.protocol import LinkProtocol

__all__ = ["Uplink", "UplinkSource", "UplinkTimes"]

_BACKOFF_MIN_S = 0.05
_CONNECT_FIRST_S = 10.0
"""Of the first connection: this machine starts its engines meanwhile, and is busy."""
_HANDSHAKE_S = 2.0
_BUFFER_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class UplinkTimes:
    """When an uplink gives a connection up, tries again, and tells of it.

    Attributes:
        silence_s: a connection on which nothing comes for so long is given up. A gateway says twice a second that it
            lives; TCP alone would notice a network that swallows packets in minutes.
        silence_max_s: bound of that time. A gateway that takes connections and then is silent again and again has more
            to do than it can: hundreds of agents that begin anew every two seconds would keep it so, so each waits
            twice as long as the time before.
        settled_s: age of a connection from which on its end says nothing about the next one.
        connect_s: bound of one try, which a way that is open again may answer at once; the first connection of all is
            given more.
        backoff_max_s: longest pause between two tries, spread by half. A gateway that is back should have every node's
            report within two seconds: a try that has just begun, its pause of at most 1.5 times this, and a handshake.
            And 256 agents must not come at once.
        tell_after_s: a gateway that takes no connection for so long is told of.
    """

    silence_s: float = 2.0
    silence_max_s: float = 16.0
    settled_s: float = 60.0
    connect_s: float = 1.0
    backoff_max_s: float = 0.3
    tell_after_s: float = 5.0


class UplinkSource(Protocol):
    """What an uplink sends and obeys (:class:`exaserve.agent.node.NodeAgent`)."""

    node: str
    instance: bytes
    """Of this process, so that a gateway knows its own agent again."""

    def report(self) -> bytes:
        """All replicas with their states, encoded."""
        ...

    def whole_batch(self, seq: int) -> bytes:
        """A batch with every figure that is known."""
        ...

    def figures(self) -> bytes:
        """The machine's own figures, encoded."""
        ...

    async def obey(self, verb: Verb) -> VerbResult: ...


class Uplink(LinkProtocol):
    """Reconnects with jitter until :meth:`close`.

    Args:
        address: ``host:port`` of the gateway's agent port.
        token: the shared secret, None for none.
        tls: for mutual TLS, None for plain TCP.
        times: when it gives up, tries again and tells.
    """

    def __init__(
        self,
        source: UplinkSource,
        host: str,
        port: int,
        *,
        token: bytes | None,
        tls: ssl.SSLContext | None,
        log: EventLog,
        rng: Random,
        clock: Callable[[], float],
        times: UplinkTimes = UplinkTimes(),
    ) -> None:
        super().__init__(clock)
        self._source = source
        self._host = host
        self._port = port
        self._token = token
        self._tls = tls
        self._log = log
        self._rng = rng
        self._times = times
        self._silent = 0
        self._silence_s = times.silence_s
        self._whole = True
        self._taken = self._greeted = False
        self._seq = 0
        self._lost = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._why = ""
        self._told = ""
        self.connects = 0
        self.batches = 0
        self.dropped = 0

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    def start(self) -> None:
        self._loop_task = asyncio.get_running_loop().create_task(self._keep_up())

    async def close(self) -> None:
        """Says goodbye where it is connected."""
        self.send(FrameKind.BYE, b"")
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.transport is not None:
            self.transport.close()

    # ---- what the agent sends -----------------------------------------------------------------------------------
    def push(self, body: Callable[[int], bytes]) -> None:
        """Sends a batch; ``body`` makes it for a sequence number, which is this connection's own."""
        if not self.up:
            return
        if self.clock() - self.heard_at > self._silence_s:
            # Once may be our own fault: a loop that was busy for long has not read what has come. Twice is not.
            self._silent += 1
            if self._silent > 2:
                self._give_up(f"the gateway has said nothing for {self._silence_s:g} s")
                return
        self._seq += 1
        if self.buffered() > _BUFFER_BYTES_MAX:
            self.dropped += 1
            self._whole = True
            return
        payload = self._source.whole_batch(self._seq) if self._whole else body(self._seq)
        self._whole = False
        self.batches += 1
        self.send(FrameKind.BATCH, payload)

    def _give_up(self, why: str) -> None:
        """Ends a connection on which nothing comes; the next one is given more time, where this one was young."""
        self._why = why
        times = self._times
        young = self.clock() - self.opened_at < times.settled_s
        self._silence_s = min(2.0 * self._silence_s, times.silence_max_s) if young else times.silence_s
        if self.transport is not None:
            self.transport.abort()

    def figure(self, figures: bytes) -> bool:
        """Sends the machine's figures; False where they were dropped, since the gateway does not keep up."""
        if not self.up:
            return True  # they are sent when it is there
        if self.buffered() > _BUFFER_BYTES_MAX:
            return False
        self.send(FrameKind.FIGURES, figures)
        return True

    def tell(self, report: bytes) -> None:
        """Sends a change of replicas' states. Never dropped: where the buffer is full the connection begins anew."""
        if not self.up:
            return
        if self.buffered() > 4 * _BUFFER_BYTES_MAX:
            self._give_up("the gateway does not read")
            return
        self.send(FrameKind.REPORT, report)

    # ---- connection ---------------------------------------------------------------------------------------------
    async def _keep_up(self) -> None:
        pause_s = _BACKOFF_MIN_S
        failing_at = self.clock()
        loop = asyncio.get_running_loop()
        times = self._times
        while True:
            self._lost.clear()
            self._why = ""
            try:
                async with asyncio.timeout(times.connect_s if self.connects else _CONNECT_FIRST_S):
                    name = self._host if self._tls is not None else None
                    await loop.create_connection(
                        lambda: self, self._host, self._port, ssl=self._tls, server_hostname=name
                    )
            except ssl.SSLError as error:
                self._note(f"cannot connect: {error}")
            except (OSError, TimeoutError) as error:
                # Gateways and agents do not start in the same instant, and the end of a connection was told of.
                if self.clock() - failing_at >= times.tell_after_s:
                    self._note(f"cannot connect: {error.strerror or str(error) or 'timed out'}")
            except Exception as error:  # noqa: BLE001 -- such as a host name that is none: tell, and try again
                self._note(f"cannot connect: {where_failed(error)}")
            else:
                limit_s = max(_HANDSHAKE_S, self._silence_s) if self.connects else _CONNECT_FIRST_S
                guard = loop.call_later(limit_s, self._shake_timed_out, limit_s)
                began = self.clock()
                await self._lost.wait()
                guard.cancel()
                if self.clock() - began > times.backoff_max_s:
                    pause_s = _BACKOFF_MIN_S
                self._note(self._why or self._lost_how())
                failing_at = self.clock()
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
            pause_s = min(pause_s * 2.0, times.backoff_max_s)

    def _lost_how(self) -> str:
        if self._tls is not None and not self._greeted:
            return "the gateway ended the connection before it said anything: does it take this agent's certificate?"
        return "connection lost"

    def _note(self, why: str) -> None:
        """Tells of a failure once, however often it repeats."""
        if why != self._told:
            self._told = why
            self._log.warning("gateway_lost", gateway=self.name, node=self._source.node, why=why)

    def _shake_timed_out(self, limit_s: float) -> None:
        if not self.up and self.transport is not None:
            self._give_up(f"no handshake within {limit_s:g} s")

    # ---- what the gateway sends ---------------------------------------------------------------------------------
    def new_link(self) -> WireLink:
        self._silent = 0
        self._whole = True
        self._greeted = False
        self._seq = 0
        return WireLink("agent", self._source.node, secrets.token_bytes(16), self._token, self._source.instance)

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        self._greeted = True
        super().data_received(data)

    def proved(self) -> None:
        self._taken = False
        self.send(FrameKind.REPORT, self._source.report())
        self.push(self._source.whole_batch)
        self.send(FrameKind.FIGURES, self._source.figures())

    def took(self, kind: FrameKind, payload: bytes) -> None:
        if not self._taken:  # it might have refused us after the proof: another agent may speak for this node
            self._taken = True
            self.connects += 1
            self._told = ""
            peer = self.link.peer if self.link is not None else None
            self._log.info("gateway_found", gateway=self.name, name=peer.name if peer else "", node=self._source.node)
        if kind is FrameKind.VERB:
            task = asyncio.get_running_loop().create_task(self._obey(decode(payload, Verb)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif kind is not FrameKind.HEARD:
            raise WireError(f"a gateway does not send {kind.name}")

    def broke(self, why: str) -> None:
        self._why = why
        self.refuse(why)

    async def _obey(self, verb: Verb) -> None:
        try:
            result = await self._source.obey(verb)
        except Exception as error:  # noqa: BLE001 -- whoever asked is to hear of it, and the connection stays
            self._log.error("verb_failed", node=self._source.node, verb=verb.name, error=where_failed(error))
            result = VerbResult(verb.ref, ok=False, message=f"the agent's own error: {error!r}")
        self.send(FrameKind.RESULT, encode(result))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._why:
            self._why = str(exc)
        super().connection_lost(exc)
        self._lost.set()
