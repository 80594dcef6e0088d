"""The same script of events through the live data plane and the simulator: the same decisions, entry by entry."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.gateway.dataplane import EVENTS, MODEL, STREAM_HEAD, UNMOVED, Bench, MockTransport, body, chunk, plain, post
from tests.simulate.small import PROFILE

from exaserve.config import Cluster, GatewaySettings
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.scheduling import POLICIES, AdmissionConfig, SchedulerConfig
from exaserve.serving import transitions as table
from exaserve.serving.config import RetrySettings
from exaserve.simulate.call import Call
from exaserve.simulate.gateway import SimGateway
from exaserve.simulate.recorder import Recorder
from exaserve.simulate.replica import SimReplica
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.units import SimUnit
from exaserve.simulate.world import World

REPLICAS = 3
STEP_S = 0.25
OUTPUT = 8
TIMES: dict[str, Any] = {"first_byte_s": 6.0, "between_bytes_s": 3.0, "total_s": 15.0}
RETRY: dict[str, Any] = {"budget_min_per_s": 0.2, "budget_ratio": 0.3}
QUEUE = AdmissionConfig(queue_max=4, wait_max_s=2.0, tenant_share=1.0)
Entry = tuple[float, int, str, str]


class Live:
    """The data plane over mock transports and a clock that is told."""

    def __init__(self, scheduling: dict[str, Any]) -> None:
        self.bench = Bench(REPLICAS, timeouts=TIMES, retry=RETRY, admission=QUEUE, scheduler=scheduling)
        self.began = self.bench.clock.now
        self.clients: list[MockTransport] = []
        self.numbers: dict[Any, int] = {}

    def at(self, now: float) -> None:
        bench = self.bench
        bench.clock.now = self.began + now
        for index in range(REPLICAS):
            endpoint = bench.core.pool.endpoint(f"r{index}", f"http://127.0.0.1:{9000 + index}")
            while len(endpoint.idle) < 4:
                bench.open(f"r{index}")
            for upstream in endpoint.idle:
                upstream.idle_since = bench.clock.now

    def ask(self) -> None:
        client = self.bench.client()
        self.clients.append(client)
        client.protocol.data_received(post(body(stream=True, max_tokens=OUTPUT)))
        exchange = client.protocol.exchange
        journey = exchange if exchange is not None else self.bench.health.trace[-1][1]
        self.numbers[journey] = len(self.clients) - 1

    def facts(self) -> Any:
        return next(iter(self.numbers)).facts

    def open(self) -> dict[int, int]:
        """State of each request under way, by number."""
        return {self.numbers[journey]: journey.state for journey in self.bench.core.dispatcher.open}

    def _upstream(self, number: int) -> MockTransport:
        journey = next(each for each, n in self.numbers.items() if n == number)
        return next(t for t in self.bench.upstreams if t.protocol.relay is journey)

    def answer(self, number: int, status: int) -> None:
        self._upstream(number).protocol.data_received(plain(b"{}", f"{status} Said"))

    def first(self, number: int) -> None:
        self._upstream(number).protocol.data_received(STREAM_HEAD + chunk(EVENTS[0]))

    def end(self, number: int) -> None:
        usage = b'data: {"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (
            self.facts().prompt_tokens,
            OUTPUT,
        )
        self._upstream(number).protocol.data_received(chunk(usage) + chunk(EVENTS[-1]) + b"0\r\n\r\n")

    def reset(self, number: int) -> None:
        transport = self._upstream(number)
        transport.protocol.reused = False  # never stale: this is about the requests
        transport.lose(ConnectionResetError())

    def leave(self, number: int) -> None:
        self.clients[number].lose()

    def evacuate(self, replica: str) -> None:
        self.bench.plane.evacuate(ReplicaId(replica))

    def tick(self) -> None:
        self.bench.core.dispatcher.tick(self.bench.clock.now)

    def trace(self) -> list[Entry]:
        return [
            (round(now - self.began, 6), self.numbers[journey], what, replica)
            for now, journey, what, replica in self.bench.health.trace
        ]


class Simulated:
    """A simulated gateway whose replicas take requests and answer only what the script says."""

    def __init__(self, scheduling: dict[str, Any]) -> None:
        cluster = Cluster(
            scheduling=SchedulerConfig(**scheduling),
            admission=QUEUE,
            health=UNMOVED,
            gateway=GatewaySettings(
                timeouts=GatewaySettings().timeouts.__class__(**TIMES), retry=RetrySettings(**RETRY)
            ),
        )
        self.world = World(cluster, SimSettings(probes=False), Recorder(1_000), 1_000.0)
        self.gateway = SimGateway(self.world, "g0", dict(POLICIES), scheduling["policy"], "seed")
        self.trace_: list[tuple[float, Any, str, str]] = []
        self.gateway.dispatcher.trace = self.trace_
        for index in range(REPLICAS):
            spec = ReplicaSpec(ReplicaId(f"r{index}"), f"http://127.0.0.1:{9000 + index}", (MODEL,))
            replica = self.world.replicas[spec.id] = SimReplica(self.world, SimUnit(spec, PROFILE))
            replica.set_usable(0.0)
            self.gateway.add(replica, 0.0, known=True)
            replica.freeze(0.0)
        self.now = 0.0
        self.asked = 0
        self.heard: set[int] = set()
        """Requests whose first byte a tick has seen: the gateway takes time by its ticks."""

    def at(self, now: float) -> None:
        self.world.run_until(now)
        self.now = self.world.now = now

    def ask(self, prompt_tokens: int) -> None:
        self.world.open += 1
        self.gateway.arrive(self.now, self.asked, MODEL, prompt_tokens, OUTPUT)
        self.asked += 1

    def _call(self, number: int) -> Call:
        found = next(each for each in self.gateway.dispatcher.open if each.index == number)
        assert isinstance(found, Call)
        return found

    def open(self) -> dict[int, int]:
        return {call.index: call.state for call in self.gateway.dispatcher.open}

    def answer(self, number: int, status: int) -> None:
        call = self._call(number)
        assert call.attempt is not None
        call.answered(call.attempt, self.now, status)

    def first(self, number: int) -> None:
        call = self._call(number)
        assert call.attempt is not None
        self.heard.discard(number)
        call.attempt.on_first(self.now)

    def end(self, number: int) -> None:
        call = self._call(number)
        assert call.attempt is not None
        call.attempt.on_done(self.now)

    def reset(self, number: int) -> None:
        call = self._call(number)
        assert call.attempt is not None
        call.attempt.on_lost(self.now, "reset")

    def leave(self, number: int) -> None:
        call = self._call(number)
        call.perform(call.left(self.now), self.now)

    def evacuate(self, replica: str) -> None:
        self.gateway.dispatcher.evacuate(ReplicaId(replica), self.now)

    def tick(self) -> None:
        dispatcher = self.gateway.dispatcher
        for call in list(dispatcher.open):
            if call.attempt is not None:
                silent_since = call.deadline - TIMES["between_bytes_s"] if call.index in self.heard else self.now
                call.check_deadline(call.attempt, self.now, silent_since)
                if call.state == table.RELAYING:
                    self.heard.add(call.index)
            elif call.deadline <= self.now and call.state == table.QUEUED:
                call.perform(call.expired(self.now), self.now)
        dispatcher.expire_queue(self.now)
        dispatcher.wake(self.now)
        dispatcher.budget.count(self.now)

    def trace(self) -> list[Entry]:
        return [(round(now, 6), call.index, what, replica) for now, call, what, replica in self.trace_]


def choose(rng: Random, states: dict[int, int]) -> tuple[str, tuple[Any, ...]]:
    """The next event of the script: something that can happen to a request in its state."""
    if not states or rng.random() < 0.3:
        return "ask", ()
    if rng.random() < 0.05:
        return "evacuate", (f"r{rng.randrange(REPLICAS)}",)
    number = rng.choice(sorted(states))  # the test's own generator
    state = states[number]
    if state == table.WAITING:
        kind = rng.choices(("first", "answer", "reset", "leave"), (4, 4, 3, 1))[0]
        return kind, (number, rng.choice((200, 400, 429, 500, 502, 503))) if kind == "answer" else (number,)
    if state == table.RELAYING:
        return rng.choices(("end", "reset", "leave"), (6, 2, 1))[0], (number,)
    return ("leave", (number,)) if rng.random() < 0.2 else ("nothing", ())


@pytest.mark.parametrize("policy", ["round_robin", "least_connections", "least_tokens", "entropy"])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_script_makes_the_same_decisions(policy: str, seed: int) -> None:
    scheduling = {"policy": policy, "queue_depth_max": 2}
    live, simulated = Live(scheduling), Simulated(scheduling)
    rng = Random(seed)
    kinds = set()
    for step in range(240):
        now = step * STEP_S
        live.at(now)
        simulated.at(now)
        live.tick()
        simulated.tick()
        for _ in range(rng.randrange(1, 4)):
            live.at(now)
            states = live.open()
            assert simulated.open() == states
            kind, arguments = choose(rng, states)
            if kind == "ask":
                live.ask()
                simulated.ask(live.facts().prompt_tokens)
            elif kind != "nothing":
                getattr(live, kind)(*arguments)
                getattr(simulated, kind)(*arguments)
            assert simulated.trace() == live.trace()
        kinds |= {what for _, _, what, _ in live.trace()}
    assert kinds >= {
        "placed",
        "retried",
        "reset",
        "status_5xx",
        "completed",
        "rejected",
        "replica_failed",
        "client_gone",
    }
    live.bench.core.dispatcher.validate()
    simulated.gateway.dispatcher.validate()
