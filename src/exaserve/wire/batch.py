"""One interval's telemetry of a whole node in one compact frame.

::

    batch  := sequence u32 | replicas u16 | changed u16 | age of unchanged ms f32 | unchanged bitmap | changed records
    record := index u16 | known u16 | age ms f32 | 13 figures

A replica whose figures are the same as in the batch before costs one bit. One that could not be sampled costs nothing
and its report ages. Ages are measured on the sender's monotonic clock, so clocks of different machines never meet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from exaserve.domain.replica import ReplicaId, Report
from exaserve.wire.link import WireError

__all__ = ["NO_CHANGE", "RECORD", "SIGNALS", "NodeBatch", "decode_batch", "encode_batch", "pack_record", "report_of"]

REPLICAS_MAX = 4096
_HEAD = struct.Struct("<IHHf")
RECORD = struct.Struct("<HHfHHfIdddddfff")
"""index, known, age_ms, then the figures of :data:`SIGNALS` in order."""
SIGNALS = (
    "running",
    "waiting",
    "kv_use",
    "kv_tokens_max",
    "preemptions_total",
    "prefix_hits_total",
    "prefix_queries_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "free_mem_gb",
    "kv_age_ms",
    "net_mb_s",
)
"""In the order of :class:`~exaserve.domain.replica.Report`'s fields. Bit k of ``known`` says that figure k is known;
the next two are: whether ``asleep`` is known, and its value."""
_ASLEEP_KNOWN = 1 << len(SIGNALS)
_ASLEEP = 1 << (len(SIGNALS) + 1)
_ALL = (1 << len(SIGNALS)) - 1
_COUNT_MAX = (1 << 16) - 1
NO_CHANGE = b""
"""In place of a record: the replica was sampled, and nothing is different."""

Record = tuple[int, int, float, int, int, float, int, float, float, float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """A decoded batch.

    Attributes:
        seq: number of the batch on this connection, counts up by one.
        same: indexes of replicas whose figures still hold.
        same_age_ms: how old that is.
        records: changed ones, as :data:`RECORD` unpacks them.
    """

    seq: int
    same: tuple[int, ...]
    same_age_ms: float
    records: Sequence[Record]


def pack_record(index: int, report: Report, age_ms: float) -> bytes:
    """The record of one report. Figures beyond their field's range are cut to it."""
    known = 0
    values: list[float] = []
    for bit, name in enumerate(SIGNALS):
        value = getattr(report, name)
        if value is None:
            values.append(0)
        else:
            known |= 1 << bit
            values.append(value)
    if report.asleep is not None:
        known |= _ASLEEP_KNOWN | (_ASLEEP if report.asleep else 0)
    running, waiting, kv_use, kv_max, *rest = values
    return RECORD.pack(
        index,
        known,
        age_ms,
        min(int(running), _COUNT_MAX),
        min(int(waiting), _COUNT_MAX),
        kv_use,
        min(int(kv_max), 0xFFFFFFFF),
        *rest,
    )


def encode_batch(seq: int, replicas: int, changed: Iterable[bytes], same: Iterable[int], same_age_ms: float) -> bytes:
    """A batch of a node with ``replicas`` replicas. ``changed`` are records of :func:`pack_record`."""
    bitmap = bytearray((replicas + 7) // 8)
    for index in same:
        bitmap[index >> 3] |= 1 << (index & 7)
    body = b"".join(changed)
    return _HEAD.pack(seq & 0xFFFFFFFF, replicas, len(body) // RECORD.size, same_age_ms) + bitmap + body


def decode_batch(payload: bytes) -> NodeBatch:
    """WireError where the bytes are not a batch."""
    if len(payload) < _HEAD.size:
        raise WireError("a batch is too short")
    seq, replicas, changed, same_age_ms = _HEAD.unpack_from(payload)
    if replicas > REPLICAS_MAX:
        raise WireError(f"a batch of {replicas} replicas is above {REPLICAS_MAX}")
    at = _HEAD.size + (replicas + 7) // 8
    if len(payload) != at + changed * RECORD.size:
        raise WireError("a batch has the wrong length")
    bits = int.from_bytes(payload[_HEAD.size : at], "little")
    same: tuple[int, ...] = ()
    if bits == (1 << replicas) - 1:
        same = tuple(range(replicas))
    elif bits:
        same = tuple(index for index in range(replicas) if bits >> index & 1)
    return NodeBatch(seq, same, same_age_ms, list(RECORD.iter_unpack(payload[at:])))


def report_of(record: Record, replica: ReplicaId, seq: int, taken_at: float) -> Report:
    """The report that a record stands for, dated on the receiver's clock."""
    known = record[1]
    asleep = bool(known & _ASLEEP) if known & _ASLEEP_KNOWN else None
    if known & _ALL == _ALL:
        return Report(replica, seq, taken_at, *record[3:], asleep)
    figures: list[Any] = [value if known >> bit & 1 else None for bit, value in enumerate(record[3:])]
    run, wait, use, kv_max, pre, hits, queries, prompt, made, free, age, net = figures
    return Report(
        replica, seq, taken_at, run, wait, use, kv_max, pre, hits, queries, prompt, made, free, age, net, asleep
    )
