"""A node's batch survives the wire; wrong bytes are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.domain.replica import ReplicaId, Report
from exaserve.wire import WireError, decode_batch, encode_batch
from exaserve.wire.batch import RECORD, pack_record, report_of

NAME = ReplicaId("node1/r0")
f32 = st.floats(0, 1e6, width=32)
total = st.floats(0, 1e15)
reports = st.builds(
    Report,
    replica=st.just(NAME),
    seq=st.just(7),
    taken_at=st.just(5.0),
    running=st.none() | st.integers(0, 65_535),
    waiting=st.none() | st.integers(0, 65_535),
    kv_use=st.none() | st.floats(0, 1, width=32),
    kv_tokens_max=st.none() | st.integers(0, 2**32 - 1),
    preemptions_total=st.none() | total,
    prefix_hits_total=st.none() | total,
    prefix_queries_total=st.none() | total,
    prompt_tokens_total=st.none() | total,
    generation_tokens_total=st.none() | total,
    free_mem_gb=st.none() | f32,
    kv_age_ms=st.none() | f32,
    net_mb_s=st.none() | f32,
    asleep=st.none() | st.booleans(),
)


@given(report=reports, index=st.integers(0, 4000), same=st.sets(st.integers(0, 4000)))
def test_every_figure_and_every_unknown_one_comes_back(report, index, same) -> None:
    batch = decode_batch(encode_batch(9, 4001, [pack_record(index, report, 12.5)], same, 3.0))
    assert (batch.seq, batch.same, batch.same_age_ms) == (9, tuple(sorted(same)), 3.0)
    (record,) = batch.records
    assert record[0] == index
    assert record[2] == 12.5
    assert report_of(record, NAME, 7, 5.0) == report


def test_figures_beyond_their_field_are_cut_not_refused() -> None:
    huge = Report(NAME, 1, 0.0, running=10**6, kv_tokens_max=10**12)
    record = RECORD.unpack(pack_record(0, huge, 0.0))
    assert (record[3], record[6]) == (65_535, 2**32 - 1)


def test_all_unchanged_costs_a_bit_each() -> None:
    payload = encode_batch(1, 12, (), range(12), 1.0)
    assert len(payload) == 14
    assert decode_batch(payload).same == tuple(range(12))


@given(junk=st.binary(max_size=200))
def test_wrong_bytes_are_refused(junk) -> None:
    try:
        batch = decode_batch(junk)
    except WireError:
        return
    assert len(batch.records) * RECORD.size <= len(junk)


def test_a_cut_batch_is_refused() -> None:
    payload = encode_batch(1, 3, [pack_record(0, Report(NAME, 0, 0.0, running=1), 0.0)], (), 0.0)
    with pytest.raises(WireError, match="length"):
        decode_batch(payload[:-1])


def test_reports_stay_values() -> None:
    report = Report(NAME, 1, 0.0, running=1)
    with pytest.raises(AttributeError):
        report.running = 2  # type: ignore[misc]
    assert msgspec.structs.replace(report, running=2) != report
