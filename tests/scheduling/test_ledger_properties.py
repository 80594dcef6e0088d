"""No order of events can make the ledger leak, go negative, or release twice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.scheduling import POLICIES, Placement, Refusal, Scheduler, SchedulerConfig
from exaserve.scheduling.ledger import ReplicaLedger

REPLICAS = [ReplicaId(f"r{k}") for k in range(4)]
replicas = st.sampled_from(REPLICAS)
counts = st.one_of(st.none(), st.integers(0, 300))


class LedgerMachine(RuleBasedStateMachine):
    """Every public event of the scheduler in any order, with a shadow account of what must be in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.seq = 0
        self.scheduler = Scheduler(SchedulerConfig(queue_depth_max=6, sample_size=2, full_scan_max=2), Random(1))
        self.live: list[Placement] = []
        self.every: dict[int, ReplicaLedger] = {}
        for replica in REPLICAS:
            self.join(replica)

    def join(self, replica: ReplicaId) -> None:
        self.scheduler.add(ReplicaSpec(replica, f"http://{replica}", ("a", "b"), kv_tokens_max=20_000), self.now)
        self.scheduler.set_health(replica, True, "up")
        state = self.scheduler.states()[replica]
        self.every[id(state)] = state

    @rule(dt=st.floats(0.0, 5.0))
    def wait(self, dt: float) -> None:
        self.now += dt
        self.scheduler.tick(self.now)

    @rule(
        model=st.sampled_from(["a", "b", "nobody"]),
        prompt=st.integers(0, 15_000),
        output=st.integers(0, 3_000),
        stream=st.booleans(),
        prefix=st.lists(st.integers(0, 3), max_size=4).map(tuple),
        session=st.sampled_from([None, "s1", "s2"]),
        exclude=st.sets(replicas, max_size=4),
        route=st.sampled_from(["", "/v1/completions", "/v1/chat/completions"]),
    )
    def place(
        self,
        model: str,
        prompt: int,
        output: int,
        stream: bool,
        prefix: tuple[int, ...],
        session: str | None,
        exclude: set[ReplicaId],
        route: str,
    ) -> None:
        facts = RequestFacts(model, prompt, output, prompt + output, stream, session, prefix, route=route)
        result = self.scheduler.place(facts, self.now, exclude)
        if isinstance(result, Refusal):
            return
        assert result.replica_id not in exclude
        assert self.scheduler.states()[result.replica_id].eligible
        self.live.append(result)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        self.scheduler.first_token(data.draw(st.sampled_from(self.live)), self.now)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), usage=st.booleans())
    def release(self, data: st.DataObject, outcome: Outcome, usage: bool) -> None:
        placement = data.draw(st.sampled_from(self.live))
        self.live.remove(placement)
        self.scheduler.release(placement, self.now, outcome, Usage(100, 10, 5) if usage else None)
        with pytest.raises(AssertionError):
            self.scheduler.release(placement, self.now, outcome)

    @rule(
        replica=replicas,
        running=counts,
        waiting=counts,
        kv=st.one_of(st.none(), st.floats(0.0, 1.0)),
        age=st.floats(0.0, 3.0),
    )
    def report(
        self, replica: ReplicaId, running: int | None, waiting: int | None, kv: float | None, age: float
    ) -> None:
        self.seq += 1
        self.scheduler.report(
            Report(replica, self.seq, self.now - age, running=running, waiting=waiting, kv_use=kv), self.now
        )

    @rule(replica=replicas, up=st.booleans(), ramp=st.floats(0.1, 1.0))
    def health(self, replica: ReplicaId, up: bool, ramp: float) -> None:
        self.scheduler.set_health(replica, up, "test", ramp)

    @rule(replica=replicas, way=st.sampled_from(["drain", "returning", "undrain", "weight", "forgive"]))
    def lever(self, replica: ReplicaId, way: str) -> None:
        if way == "undrain":
            self.scheduler.undrain(replica)
        elif way == "weight":
            self.scheduler.set_weight(replica, 0.5 * (len(self.live) % 3))
        elif way == "forgive":
            self.scheduler.forgive(replica, "a", "/v1/completions")
        else:
            self.scheduler.drain(replica, returning=way == "returning")

    @rule(replica=replicas)
    def restart(self, replica: ReplicaId) -> None:
        self.scheduler.restarted(replica)

    @rule(replica=replicas)
    def leave_and_return(self, replica: ReplicaId) -> None:
        self.scheduler.remove(replica)
        self.join(replica)

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def switch(self, policy: str) -> None:
        self.scheduler.set_policy(policy)

    @rule(replica=replicas, score=st.sampled_from([None, 0.0, 1.5, float("inf")]))
    def force(self, replica: ReplicaId, score: float | None) -> None:
        self.scheduler.force_score(replica, score)

    @invariant()
    def accounts_agree(self) -> None:
        self.scheduler.validate()
        for state in self.every.values():
            mine = [p for p in self.live if p.ledger is state]
            state.validate()
            assert state.inflight == len(mine)
            assert state.kv.own == sum(p.kv_tokens for p in mine)

    def teardown(self) -> None:
        for placement in self.live:
            self.scheduler.release(placement, self.now, Outcome.CLIENT_GONE)
        for state in self.every.values():
            state.validate()
            assert (state.inflight, state.decoding, state.pending_s, state.kv.own) == (0, 0, 0, 0)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase
