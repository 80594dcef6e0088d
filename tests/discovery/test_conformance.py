"""What every source must do, whatever it looks at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.discovery.following import following
from tests.discovery.worlds import WORLDS, World, typed
from tests.gateway.running import until

from exaserve.discovery import Added, Belief, Removed, Updated

pytestmark = pytest.mark.may_block


@pytest_asyncio.fixture(params=sorted(WORLDS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with WORLDS[request.param](tmp_path) as opened:
        yield opened


async def test_the_first_batch_holds_all_and_says_where_from(world: World):
    await world.put("a", "10.0.0.1")
    await world.put("b", "10.0.0.2")
    async with following(typed(world.source)) as seen:
        await until(lambda: len(seen.held) == 2)
        assert len(seen.batches) == 1
        assert {spec.url for spec in seen.held.values()} == {"http://10.0.0.1:8000", "http://10.0.0.2:8000"}
        assert set(seen.held) == {world.id_of("a", "10.0.0.1"), world.id_of("b", "10.0.0.2")}
        for change in seen.changes:
            assert isinstance(change, Added)
            assert change.source == world.source.name
            assert change.reason
        status = world.source.status()
        assert (status.reached, status.error, status.replicas) == (True, "", 2)


async def test_comes_and_goes_are_told_soon_with_a_reason(world: World):
    await world.put("a", "10.0.0.1")
    async with following(world.source) as seen:
        await until(lambda: len(seen.held) == 1)
        await world.put("b", "10.0.0.2")
        await until(lambda: len(seen.held) == 2)
        await world.drop("a")
        await until(lambda: list(seen.held) == [world.id_of("b", "10.0.0.2")])
        (removed,) = [change for change in seen.changes if isinstance(change, Removed)]
        assert (removed.id, removed.source) == (world.id_of("a", "10.0.0.1"), world.source.name)
        assert removed.reason


async def test_another_weight_is_an_update_of_the_same_replica(world: World):
    await world.put("a", "10.0.0.1")
    await world.put("b", "10.0.0.2")
    async with following(world.source) as seen:
        await until(lambda: len(seen.held) == 2)
        await world.put("a", "10.0.0.1", weight=3.0)
        await until(lambda: any(isinstance(change, Updated) for change in seen.changes))
        held = seen.held
        assert held[world.id_of("a", "10.0.0.1")].weight == 3 * held[world.id_of("b", "10.0.0.2")].weight
        assert not any(isinstance(change, Removed) for change in seen.changes)


async def test_another_address_is_another_replica_under_the_old_name(world: World):
    await world.put("a", "10.0.0.1")
    async with following(world.source) as seen:
        await until(lambda: len(seen.held) == 1)
        await world.put("a", "10.0.0.7")
        await until(lambda: any(spec.url == "http://10.0.0.7:8000" for spec in seen.held.values()))
        assert [type(change) for change in seen.batches[-1]] == [Removed, Added]


async def test_while_the_registry_is_away_the_last_known_set_stays(world: World):
    if not world.can_break:
        pytest.skip("nothing stands between this source and its list")
    await world.put("a", "10.0.0.1")
    await world.put("b", "10.0.0.2")
    async with following(world.source) as seen:
        await until(lambda: len(seen.held) == 2)
        batches = len(seen.batches)
        await world.break_down()
        await until(lambda: world.source.status().error)
        assert not world.source.status().reached
        assert (len(seen.batches), len(seen.held)) == (batches, 2)
        told = [fields for event, fields in world.events if event == "discovery_unreachable"]
        assert told[0]["source"] == world.source.name
        assert told[0]["replicas_kept"] == 2
        await world.mend()
        await world.put("c", "10.0.0.3")
        await until(lambda: len(seen.held) == 3)
        assert world.source.status().error == ""
        assert not any(isinstance(change, Removed) for change in seen.changes)
        assert any(event == "discovery_back" for event, _ in world.events)


async def test_a_registry_that_is_away_at_the_start_is_waited_for(world: World):
    if not world.can_break:
        pytest.skip("nothing stands between this source and its list")
    await world.put("a", "10.0.0.1")
    await world.break_down()
    async with following(world.source) as seen:
        await until(lambda: world.source.status().failures)
        assert seen.batches == []
        await world.mend()
        await until(lambda: len(seen.held) == 1)


async def test_an_entry_that_is_of_no_use_harms_no_other(world: World):
    await world.put("a", "10.0.0.1")
    if not await world.spoil():
        pytest.skip("this registry has no such entry")
    async with following(world.source) as seen:
        await until(lambda: len(seen.held) == 1)
        await world.put("b", "10.0.0.2")
        await until(lambda: len(seen.held) == 2)
        ignored = [fields for event, fields in world.events if event == "discovery_entry_ignored"]
        assert len(ignored) == 1, "told once, not at each look"
        assert "bad" in ignored[0]["entry"]


async def test_an_answer_that_empties_the_set_is_doubted_until_probes_say_the_same(world: World):
    answering = {world.id_of(name, f"10.0.0.{k}") for k, name in enumerate("abc")}
    world.source.doubt(Belief(0.05, lambda replica: replica in answering))
    for k, name in enumerate("abc"):
        await world.put(name, f"10.0.0.{k}")
    async with following(world.source) as seen:
        await until(lambda: len(seen.held) == 3)
        for name in "abc":
            await world.drop(name)
        await until(lambda: world.source.status().replicas == 0 and world.source.status().held > 1)
        left = len(seen.held)
        assert left >= 2, "one may have left before the set was seen to shrink too far"
        gone = min(answering & seen.held.keys())
        answering.remove(gone)
        await until(lambda: gone not in seen.held)
        assert len(seen.held) == left - 1
        assert "fails its probes" in seen.changes[-1].reason
        await world.put("a", "10.0.0.0")
        await world.put("b", "10.0.0.1")
        await until(lambda: world.source.status().held == 0 and len(seen.held) == 2)


async def test_an_operator_says_that_an_empty_answer_is_right(world: World):
    world.source.doubt(Belief(60.0, lambda _replica: True))
    await world.put("a", "10.0.0.1")
    async with following(world.source) as seen:
        await until(lambda: seen.held)
        assert world.source.believe() == 0
        await world.drop("a")
        await until(lambda: world.source.status().held == 1)
        assert world.source.believe() == 1
        await until(lambda: not seen.held)
        assert "an operator" in seen.changes[-1].reason
        assert world.source.status().held == 0


async def test_close_ends_the_watch(world: World):
    await world.put("a", "10.0.0.1")
    async with following(world.source) as seen:
        await until(lambda: seen.batches)
    assert seen.ended
    await world.source.close()


async def test_a_slow_watcher_sees_only_the_newest_set(world: World):
    await world.put("a", "10.0.0.1")
    stream = world.source.watch()
    try:
        async with asyncio.timeout(30):
            await anext(stream)
            for listed, name in enumerate("bcd", 2):
                await world.put(name, f"10.0.1.{ord(name)}")
                await until(lambda listed=listed: world.source.status().replicas == listed)  # type: ignore[misc]
            await world.drop("b")
            await until(lambda: world.source.status().replicas == 3)
            batch = await anext(stream)
        added = {change.spec.url for change in batch if isinstance(change, Added)}
        assert added == {f"http://10.0.1.{ord(name)}:8000" for name in "cd"}
    finally:
        await world.source.close()
        await stream.aclose()  # type: ignore[attr-defined]
