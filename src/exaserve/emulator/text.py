"""Text and tokens of the emulated model: a token is four bytes, and an answer is a window into a fixed ring of words.

So token counts are exact and cheap, an answer costs one slice, the same request gets the same answer, and an answer
sent back as a later turn's history has the same tokens, which lets the prefix cache hit as a real one does.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Sequence
from statistics import NormalDist

__all__ = ["TOKEN_BYTES", "Prompt", "chain", "count", "detokenize", "natural_length", "output", "pad", "tokenize"]

TOKEN_BYTES = 4
IMAGE_TOKENS = 576
"""Prompt tokens of one picture, as common vision encoders give for 336 x 336 pixels."""

_WORDS = (
    "theandforarebutnotyouallanycanhadherwasoneouroutdaygethashimhishowmannewnowoldseetwowaywhoboydid"
    "itsletputsayshetoouseairaskbedbigbitboxbusbuycarcatcutdogdryeateggendeyefarfewflyfogfungasgodgot"
    "gunhathoticeinkjobjoykeykidlablawledleglieliploglotlowmapmaymenmixmudnetnornutoakoilownpanpaypen"
    "petpinpoppotproranrawredribridrimrowrunsadsatseasetskysonsumsuntaxteatentietiptoetontoptoytryvia"
    "warwebwetwinwonyesyet"
)
"""Words of three letters, one after the other: with a space, each is one token."""

_RING_TOKENS = 8192
_SIGMA = 0.6


def _ring() -> bytes:
    rng = random.Random(4)
    starts = [3 * rng.randrange(len(_WORDS) // 3) for _ in range(_RING_TOKENS)]
    return b"".join(b" " + _WORDS[at : at + 3].encode() for at in starts)


_RING = _ring()
_RING_TWICE = _RING * 2


def count(text: str | bytes) -> int:
    """Tokens of a text on its own."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // TOKEN_BYTES)


def pad(data: bytes) -> bytes:
    """Data filled up to whole tokens with zero bytes."""
    rest = len(data) % TOKEN_BYTES
    return data + b"\0" * (TOKEN_BYTES - rest) if rest else data


def tokenize(data: bytes) -> list[int]:
    """Token ids of a text: each is its four bytes, little-endian."""
    return [int.from_bytes(data[i : i + TOKEN_BYTES], "little") for i in range(0, len(data), TOKEN_BYTES)]


def detokenize(tokens: Iterable[int]) -> bytes:
    """Inverse of :func:`tokenize`."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little") for token in tokens).replace(b"\0", b"")


def output(seed: int, tokens: int) -> bytes:
    """The answer that a seed stands for: ASCII words, no character that JSON escapes, exactly four bytes a token."""
    start = seed % _RING_TOKENS * TOKEN_BYTES
    size = tokens * TOKEN_BYTES
    if size <= len(_RING):
        return _RING_TWICE[start : start + size]
    return (_RING * (size // len(_RING) + 2))[start : start + size]


def natural_length(seed: int, mean: float) -> int:
    """Where the emulated model would end its answer: log-normal with the given mean, tokens, at least 1."""
    share = ((seed * 2654435761) % 1_000_003 + 0.5) / 1_000_003
    median = mean * math.exp(-0.5 * _SIGMA * _SIGMA)
    return max(1, round(median * math.exp(_SIGMA * NormalDist().inv_cdf(share))))


def chain(data: bytes, block_tokens: int, salt: str = "") -> list[int]:
    """Chained hashes of the full blocks of some tokens: equal up to the first block that differs. For one process
    only.
    """
    size = block_tokens * TOKEN_BYTES
    hashes: list[int] = []
    last = hash(salt) if salt else 0
    for i in range(0, len(data) - size + 1, size):
        last = hash((last, data[i : i + size]))
        hashes.append(last)
    return hashes


class Prompt:
    """A prompt being put together, segment by segment; every segment begins at a token boundary."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def header(self, role: str) -> None:
        """The mark before a message."""
        self._parts.append(pad(b"<|" + role.encode("utf-8", "surrogatepass") + b"|>\n"))

    def text(self, text: str) -> None:
        self._parts.append(pad(text.encode("utf-8", "surrogatepass")))

    def tokens(self, ids: Sequence[int]) -> None:
        self._parts.append(b"".join((i & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little") for i in ids))

    def image(self, reference: str) -> None:
        """A picture: so many tokens, equal for equal references."""
        mark = zlib.crc32(reference.encode("utf-8", "surrogatepass")).to_bytes(TOKEN_BYTES, "little")
        self._parts.append(mark * IMAGE_TOKENS)

    def data(self) -> bytes:
        """All tokens; at least one, since an engine puts a beginning-of-text token before an empty prompt."""
        return b"".join(self._parts) or pad(b"\1")
