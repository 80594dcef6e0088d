"""The approximate prefix index: what two prompts share is found, bounds hold, and it is the same as a simple model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exaserve.scheduling import BLOCK_BYTES, block_hashes
from exaserve.scheduling.prefix import BLOCK_ENDS, PrefixIndex


def test_shared_text_shares_exactly_its_whole_blocks() -> None:
    common = bytes(range(256)) * 8
    a, b = block_hashes(common + b"a" * 600), block_hashes(common + b"b" * 600)
    shared = len(common) // BLOCK_BYTES
    assert a[:shared] == b[:shared]
    assert a[shared] != b[shared]
    assert block_hashes(b"x" * (BLOCK_BYTES - 1)) == ()
    assert len(block_hashes(b"x" * (BLOCK_BYTES * 1000))) == len(BLOCK_ENDS)
    assert list(BLOCK_ENDS) == sorted(set(BLOCK_ENDS))


def test_equal_blocks_at_other_depths_differ() -> None:
    hashes = block_hashes(b"x" * BLOCK_BYTES * 4)
    assert len(set(hashes)) == 4


def test_deepest_match_first() -> None:
    index = PrefixIndex(1000)
    index.insert((1, 2, 3, 4), 1 << 0)
    index.insert((1, 2), 1 << 1)
    assert index.match((1, 2, 3, 9)) == [(BLOCK_ENDS[2], 0b01), (BLOCK_ENDS[1], 0b11)]
    assert index.match((9,)) == []
    assert index.match(()) == []


def test_bounded_by_two_generations_and_recent_blocks_survive() -> None:
    index = PrefixIndex(100)
    for k in range(10_000):
        index.insert((k,), 1)
        index.insert((-1,), 2)
        assert len(index) <= 200
    assert index.match((-1,)) == [(BLOCK_BYTES, 2)]
    assert index.match((0,)) == []
    index.validate()


prompts = st.lists(st.integers(0, 2), max_size=5).map(
    lambda path: tuple(hash(("p", *path[: k + 1])) for k in range(len(path)))
)


@given(st.lists(st.tuples(prompts, st.integers(0, 5)), max_size=30), prompts)
def test_agrees_with_a_simple_model(inserted: list[tuple[tuple[int, ...], int]], asked: tuple[int, ...]) -> None:
    index = PrefixIndex(10_000)
    depth: dict[int, int] = {}
    for prompt, replica in inserted:
        index.insert(prompt, 1 << replica)
        shared = 0
        while shared < min(len(prompt), len(asked)) and prompt[shared] == asked[shared]:
            shared += 1
        depth[replica] = max(depth.get(replica, 0), shared)
    levels = index.match(asked)
    for replica in range(6):
        found = next((size for size, bits in levels if bits >> replica & 1), 0)
        assert found == (0, *BLOCK_ENDS)[depth.get(replica, 0)]
