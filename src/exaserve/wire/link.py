"""One connection between an agent and a gateway, without I/O: bytes in, frames out.

Theory. Both sides say HELLO at once: version, role, name and a fresh random number (nonce). With a shared token each
then proves that it knows it by PROOF, an HMAC over its role and both hellos; a proof cannot be sent back to its sender,
since the role is in it, nor be replayed, since the other's nonce is. From the token and both nonces follows a key for
this connection alone, and every further frame carries a MAC over its number, direction, kind and payload: a frame that
was altered, dropped, repeated or injected ends the connection. Without a token (loopback only, or under mTLS) frames
carry no MAC.

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

__all__ = ["FRAME_BYTES_MAX", "Hello", "Kind", "Link", "Role", "WireError"]

Role = Literal["agent", "gateway"]
VERSION = 2
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""A picture of 1,024 replicas is about 300 kB, the last lines of a log at most 1 MB."""
HELLO_BYTES_MAX = 4096
NONCE_BYTES = 16
_MAC_BYTES = 16
_HEAD = struct.Struct("<IB")
_COUNT = struct.Struct("<QB")


class Kind(IntEnum):
    """What a frame holds."""

    HELLO = 1
    PROOF = 2
    REFUSED = 3
    """Why the connection ends, as text for the operator."""
    PICTURE = 4
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
    """Gateway: a sign of life, with the number of the last batch."""
    FIGURES = 10
    """Agent: accelerators, network, what its watches find; about once a second, where something is different."""


_KINDS = {int(kind): kind for kind in Kind}


class WireError(ExaServeError):
    """The other side broke the protocol, has another token or version. The connection ends."""

    code = "wire_error"


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """First words of a side. ``secured``: it has a token and will ask for a proof."""

    version: int
    role: Role
    name: str
    nonce: bytes
    secured: bool


class Link:
    """State of one connection on one side.

    Args:
        role: ours.
        name: the node's, or the gateway's.
        nonce: ``NONCE_BYTES`` fresh random bytes.
        token: the shared secret, None where none is asked for.

    Attributes:
        peer: the other side's hello, None until it has come.
        established: whether frames may flow in both directions.
    """

    def __init__(self, role: Role, name: str, nonce: bytes, token: bytes | None) -> None:
        assert len(nonce) == NONCE_BYTES
        self.peer: Hello | None = None
        self.established = False
        self._token = token
        self._hello = Hello(VERSION, role, name, nonce, token is not None)
        self._buffer = bytearray()
        self._pending = bytearray()
        self._key = b""
        self._sent = 0
        self._received = 0
        self._put(Kind.HELLO, msgspec.msgpack.encode(self._hello))

    def to_send(self) -> bytes:
        """What the handshake wants written now; once established nothing."""
        data = bytes(self._pending)
        self._pending.clear()
        return data

    def frame(self, kind: Kind, payload: bytes) -> bytes:
        """The bytes of one frame. AssertionError before the link is established, WireError above the limit."""
        assert self.established
        if len(payload) > FRAME_BYTES_MAX - _MAC_BYTES:
            raise WireError(f"a frame of {len(payload)} bytes is above {FRAME_BYTES_MAX}")
        if not self._key:
            return _HEAD.pack(len(payload), kind) + payload
        self._sent += 1
        mac = self._mac(self._hello.role, self._sent, kind, payload)
        return _HEAD.pack(len(payload) + _MAC_BYTES, kind) + payload + mac

    def refusal(self, why: str) -> bytes:
        """A last frame that says why the connection ends; readable without a proof."""
        text = why.encode()[:1024]
        return _HEAD.pack(len(text), Kind.REFUSED) + text

    def receive(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
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
                if kind is Kind.REFUSED:
                    raise WireError("refused by the other side: " + payload.decode("utf-8", "replace"))
                if not self.established:
                    self._shake(kind, payload)
                else:
                    yield kind, self._open(kind, payload)
        finally:
            if source is self._buffer:
                del self._buffer[:at]
            elif at < size:
                self._buffer += source[at:]

    # ---- handshake ----------------------------------------------------------------------------------------------
    def _shake(self, kind: Kind, payload: bytes) -> None:
        if self.peer is None:
            if kind is not Kind.HELLO:
                raise WireError(f"{kind.name} came before HELLO")
            self._take_hello(payload)
        elif kind is Kind.PROOF and self._token is not None:
            expected = self._proof(self.peer, self._hello)
            if not hmac.compare_digest(payload, expected):
                raise WireError("the other side has another token")
            self._key = self._session_key()
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
        if peer.role == self._hello.role:
            raise WireError(f"both sides are {peer.role}s")
        if len(peer.nonce) != NONCE_BYTES or not 0 < len(peer.name) <= 256:
            raise WireError("a hello with a wrong nonce or name")
        if peer.secured != self._hello.secured:
            raise WireError("only one side has a token; give both the same token file")
        self.peer = peer
        if self._token is None:
            self.established = True
        else:
            self._put(Kind.PROOF, self._proof(self._hello, peer))

    def _proof(self, prover: Hello, verifier: Hello) -> bytes:
        assert self._token is not None
        text = msgspec.msgpack.encode(("exaserve proof", prover, verifier))
        return hmac.digest(self._token, text, "sha256")

    def _session_key(self) -> bytes:
        assert self.peer is not None
        assert self._token is not None
        sides = sorted((self._hello, self.peer), key=lambda hello: hello.role)
        return hmac.digest(self._token, msgspec.msgpack.encode(("exaserve session", *sides)), "sha256")

    def _put(self, kind: Kind, payload: bytes) -> None:
        self._pending += _HEAD.pack(len(payload), kind) + payload

    # ---- frames -------------------------------------------------------------------------------------------------
    def _mac(self, sender: Role, count: int, kind: int, payload: bytes) -> bytes:
        person = b"agent" if sender == "agent" else b"gateway"
        text = _COUNT.pack(count, kind) + payload
        return hashlib.blake2b(text, key=self._key, digest_size=_MAC_BYTES, person=person).digest()

    def _open(self, kind: Kind, payload: bytes) -> bytes:
        if not self._key:
            return payload
        assert self.peer is not None
        self._received += 1
        body, mac = payload[:-_MAC_BYTES], payload[-_MAC_BYTES:]
        if len(payload) < _MAC_BYTES or not hmac.compare_digest(
            mac, self._mac(self.peer.role, self._received, kind, body)
        ):
            raise WireError("a frame was altered or is out of order")
        return body
