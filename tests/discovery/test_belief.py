"""When an answer that takes much away is believed: sizes, times, probes, and what needs no doubt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exaserve.discovery import Belief
from exaserve.domain.replica import ReplicaId, ReplicaSpec

HOLD_S = 30.0


def specs(names: str, host: str = "h") -> list[ReplicaSpec]:
    return [ReplicaSpec(ReplicaId(name), f"http://{host}{name}:1") for name in names]


def ids(settled: tuple[ReplicaSpec, ...]) -> str:
    return "".join(sorted(spec.id for spec in settled))


class World:
    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.dead: set[str] = set()
        self.belief = Belief(hold_s, lambda replica: replica not in self.dead)

    def says(self, names: str, now: float, leaving: str = "") -> str:
        return ids(self.belief.settle(specs(names), now, frozenset(map(ReplicaId, leaving))))


def test_half_may_go_at_once_and_more_than_half_is_doubted() -> None:
    world = World()
    assert world.says("abcdef", 0.0) == "abcdef"
    assert world.says("abc", 1.0) == "abc"
    assert world.says("abcdef", 100.0) == "abcdef"
    assert world.says("ab", 101.0) == "abcdef"
    assert set(world.belief.held) == set("cdef")


def test_both_the_time_and_the_probes_must_agree() -> None:
    world = World()
    world.says("ab", 0.0)
    world.dead = {"a"}
    assert world.says("", 10.0) == "ab"
    assert world.says("", 39.9) == "ab", "dead, but not missing for long enough"
    assert world.says("", 40.0) == "b", "missing for long enough, and dead"
    assert world.belief.given_up == {"a": "not listed for 30 s, and it fails its probes"}
    assert world.says("", 1e6) == "b", "alive, however long it is missing"


def test_an_answer_that_recovers_ends_the_doubt_and_starts_the_time_again() -> None:
    world = World()
    world.says("abcd", 0.0)
    world.dead = set("abcd")
    assert world.says("", 1.0) == "abcd"
    assert world.says("abc", 30.0) == "abc", "what is still missing is a small change now"
    assert not world.belief.held
    assert world.says("", 31.0) == "abc"
    assert world.says("", 60.9) == "abc"
    assert world.says("", 61.0) == ""


def test_several_steps_do_not_empty_what_one_step_may_not() -> None:
    world = World()
    world.says("abcdefgh", 0.0)
    assert world.says("abcd", 1.0) == "abcd"
    assert world.says("ab", 2.0) == "abcd", "a quarter of what it was a moment ago"
    slowly = World()
    slowly.says("abcdefgh", 0.0)
    assert slowly.says("abcd", 40.0) == "abcd"
    assert slowly.says("ab", 80.0) == "ab"


def test_who_leaves_by_name_or_goes_on_under_another_id_is_not_doubted() -> None:
    world = World()
    world.says("ab", 0.0)
    assert world.says("", 1.0, leaving="ab") == ""
    world.says("ab", 100.0)
    renamed = [ReplicaSpec(ReplicaId(spec.id.upper()), spec.url) for spec in specs("ab")]
    assert ids(world.belief.settle(renamed[:1], 101.0)) == "A", "b is one of two; a is there as A"


def test_a_set_that_is_replaced_by_one_as_large_is_believed() -> None:
    world = World()
    world.says("ab", 0.0)
    assert world.says("xy", 1.0) == "xy"


def test_an_operator_is_believed_at_once_and_for_this_answer_only() -> None:
    world = World()
    world.says("abcd", 0.0)
    world.says("", 1.0)
    world.belief.force()
    assert world.says("", 2.0) == ""
    assert set(world.belief.given_up) == set("abcd")
    world.says("abcd", 3.0)
    assert world.says("", 4.0) == "abcd"


def test_without_a_time_every_answer_is_believed() -> None:
    world = World(hold_s=0.0)
    world.says("abcd", 0.0)
    assert world.says("", 0.0) == ""


_answers = st.lists(
    st.tuples(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.floats(0.0, 40.0)), max_size=20
)


@given(_answers)
def test_no_answer_takes_out_who_is_alive_and_was_not_missing_long(
    answers: list[tuple[set[str], set[str], float]],
) -> None:
    world = World()
    now, before = 0.0, ""
    for listed, dead, pause_s in answers:
        now += pause_s
        world.dead = dead
        after = world.says("".join(sorted(listed)), now)
        assert set(after) >= listed, "what is listed is in"
        assert set(after) <= set(before) | listed, "nobody comes whom nobody lists"
        if set(after) < set(before) and 2 * len(listed) < len(before):
            assert set(before) - set(after) <= dead | listed
        before = after
