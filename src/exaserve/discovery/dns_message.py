"""The part of DNS that finding services needs: one question, and SRV, A and AAAA records of the answer. Pure bytes.

Written here because it is one packet each way; a resolver library would be a dependency for four record types.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

__all__ = ["AAAA", "SRV", "A", "Address", "Answer", "DnsError", "Service", "query", "read_answer"]

A, CNAME, SOA, AAAA, SRV, OPT = 1, 5, 6, 28, 33, 41
UDP_BYTES_MAX = 1232
"""What is offered for answers over UDP: the size that passes every path unfragmented."""
RECORDS_MAX = 8192
_NAME_BYTES_MAX = 255
_JUMPS_MAX = 64
_HEAD = struct.Struct("!HHHHHH")
_RECORD = struct.Struct("!HHIH")


class DnsError(Exception):
    """The bytes are not an answer to the question."""


@dataclass(frozen=True, slots=True)
class Service:
    """An SRV record. ``ttl_s`` is how long it may be believed."""

    priority: int
    weight: int
    port: int
    target: str
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Address:
    name: str
    address: str
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said.

    Attributes:
        code: 0 is well, 2 the server failed, 3 the name does not exist, 5 refused.
        cut: the answer did not fit and must be asked for over TCP.
        services / addresses: of all sections, so that addresses sent along are used.
    """

    code: int
    cut: bool
    services: tuple[Service, ...]
    addresses: tuple[Address, ...]


def query(ident: int, name: str, kind: int) -> bytes:
    """A recursive question. ValueError for a name that is none."""
    return (
        _HEAD.pack(ident, 0x0100, 1, 0, 0, 1)
        + _written(name)
        + struct.pack("!HH", kind, 1)
        + b"\0"
        + struct.pack("!HHIH", OPT, UDP_BYTES_MAX, 0, 0)
    )


def _written(name: str) -> bytes:
    labels = name.rstrip(".").split(".")
    raw = b""
    for label in labels:
        each = label.encode("ascii", "strict") if label.isascii() else label.encode("idna")
        if not 0 < len(each) < 64:
            raise ValueError(f"{name!a} is not a domain name")
        raw += bytes([len(each)]) + each
    if len(raw) > _NAME_BYTES_MAX - 1:
        raise ValueError(f"{name!a} is too long for a domain name")
    return raw + b"\0"


def read_answer(data: bytes, ident: int, name: str, kind: int) -> Answer:
    """DnsError for bytes that do not answer this very question, so that a forged packet has more to guess."""
    try:
        return _read(data, ident, name, kind)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise DnsError(f"the answer is damaged: {error}") from None


def _read(data: bytes, ident: int, name: str, kind: int) -> Answer:
    got, flags, questions, answers, authorities, more = _HEAD.unpack_from(data)
    if got != ident or not flags & 0x8000 or questions != 1:
        raise DnsError("not an answer to this question")
    asked, at = _name(data, _HEAD.size)
    if asked != name.rstrip(".").lower() or struct.unpack_from("!HH", data, at) != (kind, 1):
        raise DnsError("not an answer to this question")
    at += 4
    services: list[Service] = []
    addresses: list[Address] = []
    if flags & 0x0200:
        return Answer(flags & 15, cut=True, services=(), addresses=())  # what did arrive may end anywhere
    for _ in range(min(answers + authorities + more, RECORDS_MAX)):
        owner, at = _name(data, at)
        type_, class_, ttl_s, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + size > len(data):
            raise DnsError("the answer is damaged: a record is cut")
        if class_ == 1 and type_ == SRV:
            priority, weight, port = struct.unpack_from("!HHH", data, at)
            services.append(Service(priority, weight, port, _name(data, at + 6)[0], _ttl(ttl_s)))
        elif class_ == 1 and type_ in (A, AAAA):
            raw = data[at : at + size]
            if len(raw) != (4 if type_ == A else 16):
                raise DnsError("the answer is damaged: an address has the wrong length")
            addresses.append(Address(owner, str(ipaddress.ip_address(raw)), _ttl(ttl_s)))
        at += size
    return Answer(flags & 15, cut=False, services=tuple(services), addresses=tuple(addresses))


def _ttl(seconds: int) -> int:
    return seconds if seconds < 2**31 else 0


def _name(data: bytes, at: int) -> tuple[str, int]:
    """The name at ``at``, lower case without its last dot, and where the next thing begins."""
    labels: list[str] = []
    end = -1
    total = 0
    for _ in range(_JUMPS_MAX + 128):
        size = data[at]
        if size & 0xC0 == 0xC0:
            if end < 0:
                end = at + 2
            at = (size & 0x3F) << 8 | data[at + 1]
        elif size & 0xC0:
            raise DnsError("the answer is damaged: a label of an unknown kind")
        elif size == 0:
            return ".".join(labels).lower(), at + 1 if end < 0 else end
        else:
            label = data[at + 1 : at + 1 + size]
            if len(label) != size or (total := total + size + 1) > _NAME_BYTES_MAX:
                raise DnsError("the answer is damaged: a name is too long")
            labels.append(label.decode("ascii"))
            at += 1 + size
    raise DnsError("the answer is damaged: a name points at itself")
