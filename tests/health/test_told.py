"""A node agent's word beside what is seen from here."""

from __future__ import annotations

from typing import Any

from exaserve.domain.replica import ReplicaId
from exaserve.health import FailureKind, HealthBook, HealthChange, HealthConfig

R = ReplicaId("node1/r0")
CONFIG = HealthConfig(slow_start_s=10.0)


class Book:
    """A book, and what an agent's word changed in it. Not a subclass: compiled classes are no bases of others."""

    def __init__(self) -> None:
        self.changes: list[tuple[bool, str, float]] = []
        self._book = HealthBook(CONFIG)
        self._book.add(R, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._book, name)

    def told(self, replica: ReplicaId, reason: str, now: float, *, ready: bool) -> HealthChange | None:
        change = self._book.told(replica, reason, now, ready=ready)
        if change is not None:
            self.changes.append((change.available, change.reason, change.share))
        return change

    def state(self, replica: ReplicaId = R) -> tuple[str, int]:
        self.validate()
        return self._book.state(replica)


def test_ready_by_word_is_used_at_once_and_rarely_probed_from_here() -> None:
    book = Book()
    book.told(R, "loading", 0.0, ready=False)
    assert book.due(100.0) == [], "what its agent says cannot serve is not probed"
    assert book.changes[-1] == (False, "loading", 0.0)
    book.told(R, "ready", 1.0, ready=True)
    assert book.state()[0] == "healthy"
    assert book.due(1.0 + 0.2 * CONFIG.probe_told_s) == []
    assert book.due(1.0 + CONFIG.probe_told_s) == [R]


def test_a_planned_restart_is_out_at_once_and_back_with_a_slow_start() -> None:
    book = Book()
    book.told(R, "ready", 0.0, ready=True)
    book.told(R, "starting", 10.0, ready=False)
    assert book.state()[0] == "ejected"
    book.tick(60.0)
    assert book.state()[0] == "ejected", "no probes from here while its agent says no"
    book.told(R, "ready", 60.0, ready=True)
    assert book.state()[0] == "ramping"
    assert book.changes[-1][2] < 0.2
    book.tick(71.0)
    assert book.state()[0] == "healthy"


def test_a_lost_agent_leaves_the_decision_to_probes_from_here() -> None:
    book = Book()
    book.told(R, "ready", 0.0, ready=True)
    book.word_lost(R, "agent lost", 5.0)
    assert book.state()[0] == "ejected"
    book.tick(6.0)
    assert book.state()[0] == "half_open"
    for at in (6.0, 6.3):
        book.probe_started(R)
        book.probe_finished(R, at, status=200, latency_s=0.01)
    assert book.state()[0] == "ramping"


def test_its_return_brings_it_back_from_any_state() -> None:
    for wait_s, waiting in ((5.1, "ejected"), (6.0, "half_open")):
        book = Book()
        book.told(R, "ready", 0.0, ready=True)
        book.word_lost(R, "agent lost", 5.0)
        book.tick(wait_s)
        assert book.state()[0] == waiting
        book.told(R, "ready", wait_s + 0.1, ready=True)
        assert book.state()[0] == "ramping"
        assert book.changes[-1][0], "it may take requests again"


def test_failures_seen_from_here_are_not_talked_away() -> None:
    """The engine is well on its node, but the way to it is broken."""
    book = Book()
    book.told(R, "ready", 0.0, ready=True)
    for _ in range(CONFIG.failures_max):
        book.failed(R, FailureKind.CONNECT, 1.0)
    assert book.state()[0] == "ejected"
    book.told(R, "ready", 1.1, ready=True)
    assert book.state()[0] == "ejected"
    book.tick(2.0)
    assert book.due(2.0) == [R]


def test_strangers_are_ignored() -> None:
    book = Book()
    stranger = ReplicaId("x")
    assert book.told(stranger, "ready", 0.0, ready=True) is None
    book.word_lost(stranger, "gone", 0.0)
    book.tick(100.0)
    assert stranger not in book._book
    assert stranger not in book.due(100.0)
    assert book.state(R)[0] == "unknown"
