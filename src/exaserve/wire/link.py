"""One connection of the inside of a cluster, without I/O: bytes in, frames out. Between an agent and a gateway, and
between two gateways.

Theory. Both sides say HELLO at once: version, role, name, instance and a fresh random number (nonce). With a shared
token each then proves that it knows it by PROOF, an HMAC over both hellos in the order of prover and verifier; roles
come in pairs of two different ones, so a proof cannot be sent back to its sender, nor be replayed, since the other's
nonce is in it. From the token and both hellos follows a key for this connection alone, and every further frame carries
a MAC over its number, direction, kind and payload: a frame that was altered, dropped, repeated or injected ends the
connection. Without a token (loopback only, or under mutual TLS) frames carry no MAC.

::

    frame   := length u32 | kind u8 | payload | MAC (16 bytes, once established with a token)

The length counts payload and MAC. Everything is bounded: a frame by ``FRAME_BYTES_MAX``, and before the proof by
``HELLO_BYTES_MAX``, so that a stranger cannot make us hold memory.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Literal

import msgspec

from exaserve.domain.errors import ExaServeError

__all__ = ["FRAME_BYTES_MAX", "FrameKind", "Hello", "Role", "WireError", "WireLink"]

Role = Literal["agent", "gateway", "dialer", "listener"]
"""An agent speaks to a gateway; of two gateways the dialer to the listener."""
_OTHER: dict[Role, Role] = {"agent": "gateway", "gateway": "agent", "dialer": "listener", "listener": "dialer"}
VERSION = 4
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""A report of 1,024 replicas is about 300 kB, the last lines of a log at most 1 MB; peers' events are cut to it."""
HELLO_BYTES_MAX = 4096
NONCE_BYTES = 16
INSTANCE_BYTES = 8
_NAME_CHARS_MAX = 256
_MAC_BYTES = 16
_HEAD = struct.Struct("<IB")
_COUNT = struct.Struct("<QB")


class FrameKind(IntEnum):
    """What a frame holds."""

    HELLO = 1
    PROOF = 2
    REFUSED = 3
    """Why the connection ends, as text for the operator."""
    REPORT = 4
    """Agent: replicas with their states; the first one is complete."""
    BATCH = 5
    """Agent: one interval's telemetry of the node."""
    VERB = 6
    """Gateway: a life-cycle verb for the agent."""
    RESULT = 7
    """Agent: what became of a verb."""
    BYE = 8
    """Agent: leaves on purpose; its replicas are gone, not lost."""
    HEARD = 9
    """Gateway: a sign of life."""
    FIGURES = 10
    """Agent: accelerators, network, what its watches find; about once a second, where something is different."""
    EVENTS = 11
    """Peer: what it placed and what became of it (:mod:`exaserve.gateway.peers.events`); may be cut anywhere."""
    CONTROL = 12
    """Peer: what operators have decided (:mod:`exaserve.gateway.peers.control_sync`)."""
    LIMITS = 13
    """Peer: what it charged to limits (:mod:`exaserve.gateway.peers.limit_sync`)."""


_KINDS = {int(kind): kind for kind in FrameKind}


class WireError(ExaServeError):
    """The other side broke the protocol, has another token or version. The connection ends."""

    code = "wire_error"


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """First words of a side.

    Attributes:
        name: the node's, or the gateway's.
        secured: it has a token and will ask for a proof.
        instance: ``INSTANCE_BYTES`` random bytes, new at each start of its process.
    """

    version: int
    role: Role
    name: str
    nonce: bytes
    secured: bool
    instance: bytes = b""


class WireLink:
    """State of one connection on one side.

    Args:
        role: ours.
        name: the node's, or the gateway's.
        nonce: ``NONCE_BYTES`` fresh random bytes.
        token: the shared secret, None where none is asked for.
        instance: of this process, the same on all of its connections.

    Attributes:
        peer: the other side's hello, None until it has come.
        established: whether frames may flow in both directions.
    """

    def __init__(
        self, role: Role, name: str, nonce: bytes, token: bytes | None, instance: bytes = bytes(INSTANCE_BYTES)
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        assert len(instance) == INSTANCE_BYTES
        self.peer: Hello | None = None
        self.established = False
        self._token = token
        self._hello = Hello(VERSION, role, name[:_NAME_CHARS_MAX], nonce, token is not None, instance)
        self._buffer = bytearray()
        self._pending = bytearray()
        self._sending: hashlib.blake2b | None = None
        self._receiving: hashlib.blake2b | None = None
        """Keyed for this connection and a direction, to be copied for each frame; None where frames carry no MAC."""
        self._pads = b""
        self._sent = 0
        self._received = 0
        self._put(FrameKind.HELLO, msgspec.msgpack.encode(self._hello))

    def to_send(self) -> bytes:
        """What the handshake wants written now; once established nothing."""
        data = bytes(self._pending)
        self._pending.clear()
        return data

    def frame(self, kind: FrameKind, payload: bytes) -> bytes:
        """The bytes of one frame. AssertionError before the link is established, WireError above the limit."""
        assert self.established
        if len(payload) > FRAME_BYTES_MAX - _MAC_BYTES:
            raise WireError(f"a frame of {len(payload)} bytes is above {FRAME_BYTES_MAX}")
        if self._sending is None:
            return _HEAD.pack(len(payload), kind) + payload
        self._sent += 1
        mac = self._sending.copy()
        mac.update(_COUNT.pack(self._sent, kind) + payload)
        return _HEAD.pack(len(payload) + _MAC_BYTES, kind) + payload + mac.digest()

    def refusal(self, why: str) -> bytes:
        """A last frame that says why the connection ends; readable without a proof."""
        text = why.encode()[:1024]
        return _HEAD.pack(len(text), FrameKind.REFUSED) + text

    def receive(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Takes bytes; yields whole frames after the handshake.

        Raises:
            WireError: the other side is not to be trusted or has told us to go; nothing more is to be read.
        """
        source: bytes | bytearray = data  # most often it is one whole frame, which needs no buffer
        if self._buffer:
            source = self._buffer
            source += data
        at = 0
        size = len(source)
        try:
            while size - at >= _HEAD.size:
                length, number = _HEAD.unpack_from(source, at)
                if length > (FRAME_BYTES_MAX if self.established else HELLO_BYTES_MAX):
                    raise WireError(f"a frame of {length} bytes is above the limit")
                end = at + _HEAD.size + length
                if size < end:
                    break
                payload = bytes(source[at + _HEAD.size : end])
                at = end
                kind = _KINDS.get(number)
                if kind is None:
                    raise WireError(f"a frame of unknown kind {number}")
                if kind is FrameKind.REFUSED:
                    raise WireError("refused by the other side: " + payload.decode("utf-8", "replace"))
                if not self.established:
                    self._shake(kind, payload)
                else:
                    yield kind, self._open(number, payload)
        finally:
            if source is self._buffer:
                del self._buffer[:at]
            elif at < size:
                self._buffer += source[at:]

    def hidden(self, name: str, secret: bytes) -> bytes:
        """``secret``, at most 32 bytes, so that only the two sides can read it; hiding it again shows it.

        Frames are authenticated, not encrypted. A pad is a pseudo-random function of this connection's own key and of
        ``name``, so none covers two secrets. Without a token (loopback) nothing is hidden.
        """
        if not self._pads:
            return secret
        pad = hmac.digest(self._pads, name.encode(), "sha256")
        return bytes(a ^ b for a, b in zip(secret, pad[: len(secret)], strict=True))

    # ---- handshake ----------------------------------------------------------------------------------------------
    def _shake(self, kind: FrameKind, payload: bytes) -> None:
        if self.peer is None:
            if kind is not FrameKind.HELLO:
                raise WireError(f"{kind.name} came before HELLO")
            self._take_hello(payload)
        elif kind is FrameKind.PROOF and self._token is not None:
            expected = self._proof(self.peer, self._hello)
            if not hmac.compare_digest(payload, expected):
                raise WireError("the other side has another token")
            key = self._session_key()
            self._pads = hmac.digest(key, b"exaserve pads", "sha256")
            self._sending, self._receiving = _keyed(key, self._hello.role), _keyed(key, self.peer.role)
            self.established = True
        else:
            raise WireError(f"{kind.name} came in the handshake")

    def _take_hello(self, payload: bytes) -> None:
        try:
            peer = msgspec.msgpack.decode(payload, type=Hello)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"not a hello: {error}") from None
        if peer.version != VERSION:
            raise WireError(f"the other side speaks version {peer.version} of the protocol, this one {VERSION}")
        if peer.role != _OTHER[self._hello.role]:
            raise WireError(
                f"the other side is a {peer.role}; here speaks a {self._hello.role}, for {_OTHER[self._hello.role]}s"
            )
        if len(peer.nonce) != NONCE_BYTES or len(peer.instance) != INSTANCE_BYTES:
            raise WireError("a hello with a wrong nonce or instance")
        if not 0 < len(peer.name) <= _NAME_CHARS_MAX or not peer.name.isprintable():
            raise WireError("a hello with a wrong name")
        if peer.secured != self._hello.secured:
            raise WireError("only one side has a token; give both the same token file")
        self.peer = peer
        if self._token is None:
            self.established = True
        else:
            self._put(FrameKind.PROOF, self._proof(self._hello, peer))

    def _proof(self, prover: Hello, verifier: Hello) -> bytes:
        assert self._token is not None
        text = msgspec.msgpack.encode(("exaserve proof", prover, verifier))
        return hmac.digest(self._token, text, "sha256")

    def _session_key(self) -> bytes:
        assert self.peer is not None
        assert self._token is not None
        sides = sorted((self._hello, self.peer), key=lambda hello: hello.role)
        return hmac.digest(self._token, msgspec.msgpack.encode(("exaserve session", *sides)), "sha256")

    def _put(self, kind: FrameKind, payload: bytes) -> None:
        self._pending += _HEAD.pack(len(payload), kind) + payload

    # ---- frames -------------------------------------------------------------------------------------------------
    def _open(self, kind: int, payload: bytes) -> bytes:
        if self._receiving is None:
            return payload
        self._received += 1
        body = payload[:-_MAC_BYTES]
        mac = self._receiving.copy()
        mac.update(_COUNT.pack(self._received, kind) + body)
        if not hmac.compare_digest(payload[-_MAC_BYTES:], mac.digest()):
            raise WireError("a frame was altered or is out of order")
        return body


def _keyed(key: bytes, sender: Role) -> hashlib.blake2b:
    return hashlib.blake2b(key=key, digest_size=_MAC_BYTES, person=sender.encode())
