"""The control document: merged in any order it is the same, the later change wins, and nothing outside its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.control.document import BUCKETS, DRIFT_MAX_MS, TOMBSTONE_S, VALUE_BYTES_MAX, Document, Entry, Stamp
from exaserve.domain.errors import ConfigError

ENTRIES = st.builds(
    Entry,
    st.sampled_from(["key", "drain"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([None, b"1", b"2"]),
    st.builds(Stamp, st.integers(0, 3), st.integers(0, 2), st.sampled_from(["g1", "g2"])),
)


def contents(document: Document) -> dict[tuple[str, str], bytes | None]:
    return {(e.kind, e.id): e.value for e in document.differing([])}


@given(st.lists(ENTRIES, max_size=12), st.randoms(use_true_random=False))
def test_merging_is_the_same_in_any_order_and_however_often(entries, random):
    # One stamp names one change: what has the same is the same.
    entries = list({(e.kind, e.id, e.stamp): e for e in entries}.values())
    one, two = Document("one"), Document("two")
    one.merge(entries, 10)
    shuffled = entries * 2
    random.shuffle(shuffled)
    for entry in shuffled:
        two.merge([entry], 10)
    assert contents(one) == contents(two)
    assert one.sums() == two.sums()
    one.validate()
    two.validate()


@given(st.lists(ENTRIES, max_size=8), st.lists(ENTRIES, max_size=8))
def test_two_that_tell_each_other_the_differing_buckets_agree(left, right):
    every = {(e.kind, e.id, e.stamp): e for e in left + right}
    one, two = Document("one"), Document("two")
    one.merge([every[e.kind, e.id, e.stamp] for e in left], 10)
    two.merge([every[e.kind, e.id, e.stamp] for e in right], 10)
    from_one, from_two = one.differing(two.sums()), two.differing(one.sums())
    one.merge(from_two, 10)
    two.merge(from_one, 10)
    assert contents(one) == contents(two)
    assert one.differing(two.sums()) == []


def test_a_change_here_wins_over_what_was_heard_before_though_the_clock_is_behind():
    document = Document("here")
    document.merge([Entry("drain", "r1", b"true", Stamp(5_000, 0, "there"))], 5_000)
    document.put("drain", "r1", None, 1_000)
    assert document.get("drain", "r1") is None
    assert document.differing([])[0].stamp > Stamp(5_000, 0, "there")


def test_what_comes_from_too_far_in_the_future_is_not_taken():
    document = Document("here")
    late = Entry("key", "k", b"{}", Stamp(1_000 + DRIFT_MAX_MS + 1, 0, "there"))
    assert document.merge([late], 1_000) == []
    assert (len(document), document.refused) == (0, 1)
    assert document.merge([late], 2_000) == [late]


def test_tombstones_are_forgotten_after_their_time():
    document = Document("here")
    document.put("drain", "r1", b"true", 1_000)
    document.put("drain", "r1", None, 2_000)
    later = int(2_001 + TOMBSTONE_S * 1000)
    assert document.purge(later - 2) == []
    assert [e.id for e in document.purge(later)] == ["r1"]
    assert document.sums() == [0] * BUCKETS


def test_too_large_a_value_is_refused_and_changes_nothing():
    document = Document("here")
    with pytest.raises(ConfigError, match=f"at most {VALUE_BYTES_MAX}"):
        document.put("key", "k", b"x" * (VALUE_BYTES_MAX + 1), 1)
    assert len(document) == 0
