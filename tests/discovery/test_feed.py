"""What every source is made of: sets that lead to changes, and only the newest of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.discovery.worlds import feed_of

from exaserve.discovery import Added, Change, Discovery, Removed, Updated, changes_between
from exaserve.domain.replica import ReplicaId, ReplicaSpec


def spec(name: str, port: int = 1, weight: float = 1.0) -> ReplicaSpec:
    return ReplicaSpec(ReplicaId(name), f"http://127.0.0.1:{port}", weight=weight)


def apply(specs: Iterable[ReplicaSpec], changes: Iterable[Change]) -> dict[ReplicaId, ReplicaSpec]:
    held = {each.id: each for each in specs}
    for change in changes:
        if isinstance(change, Removed):
            del held[change.id]
        elif isinstance(change, Added):
            assert change.spec.id not in held
            held[change.spec.id] = change.spec
        else:
            assert held[change.spec.id].url == change.spec.url
            held[change.spec.id] = change.spec
    return held


_specs = st.lists(
    st.builds(spec, st.sampled_from("abcdef"), st.integers(1, 4), st.sampled_from([0.0, 1.0])), unique_by=lambda s: s.id
)


@given(_specs, _specs)
def test_changes_lead_from_one_set_to_the_other(old: list[ReplicaSpec], new: list[ReplicaSpec]) -> None:
    assert apply(old, changes_between(old, new)) == {each.id: each for each in new}


@given(_specs)
def test_no_change_is_no_change(specs: list[ReplicaSpec]) -> None:
    assert changes_between(specs, reversed(specs)) == ()


def test_another_weight_is_an_update_and_another_address_a_new_replica() -> None:
    old = [spec("a"), spec("b")]
    new = [replace(old[0], weight=0.0), spec("b", port=9)]
    assert changes_between(old, new) == (Removed(ReplicaId("b")), Updated(new[0]), Added(new[1]))


async def test_watch_gives_all_first_then_what_changed_then_ends() -> None:
    source = feed_of(spec("a"), spec("b"))
    typed: Discovery = source
    stream = typed.watch()
    assert await anext(stream) == (Added(spec("a")), Added(spec("b")))
    source.publish([spec("b")])
    assert await anext(stream) == (Removed(ReplicaId("a")),)
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await source.close()
    assert await waiting is None


async def test_first_batch_comes_even_if_empty() -> None:
    assert await anext(feed_of().watch()) == ()


async def test_a_slow_watcher_sees_only_the_newest_set() -> None:
    source = feed_of(spec("a"))
    stream = source.watch()
    await anext(stream)
    for name in "bcd":
        source.publish([spec(name)])
    assert await anext(stream) == (Removed(ReplicaId("a")), Added(spec("d")))


async def test_a_reload_without_change_yields_nothing() -> None:
    source = feed_of(spec("a"))
    stream = source.watch()
    await anext(stream)
    source.publish([spec("a")])
    waiting = asyncio.ensure_future(anext(stream, None))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    await source.close()
    assert await waiting is None
