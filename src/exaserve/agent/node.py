"""The agent of one node: its units, its clock, its uplinks. Builds everything, passes it on, takes it down again."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random

from exaserve.agent.host import EngineHost
from exaserve.agent.lifecycle import UnitState
from exaserve.agent.meters import Meters
from exaserve.agent.plan import UnitPlan
from exaserve.agent.registering import Registrar
from exaserve.agent.reloading import Reloader
from exaserve.agent.sampler import Sample
from exaserve.agent.state_folder import Hold, StateFolder, hold_after
from exaserve.agent.unit import ReplicaUnit
from exaserve.agent.uplink import Uplink
from exaserve.agent.watch_runner import Watching
from exaserve.config import AgentSettings
from exaserve.domain.replica import ReplicaId, Report
from exaserve.observe import EventLog
from exaserve.wire import AgentReplicaState, AgentReport, MachineFigures, Verb, VerbResult, encode, encode_batch
from exaserve.wire.batch import pack_record

__all__ = ["NodeAgent"]

_SEND_BY = 0.5
"""Share of an interval after which a batch goes out without the samples that are still under way."""
_TELL_AFTER_S = 0.1
"""Changes of states wait so long for others, so that a node that comes up tells its replicas together and not one by
one: what a gateway hears of a node is then about the same in a cluster of any size. What takes a replica out of service
waits for nothing."""
_FIGURES_EVERY_S = 1.0
_LINES_MAX, _LOG_CHARS_MAX = 2000, 1_000_000
"""Of logs in one answer."""
_KEEP_S = 2.0
"""For a disk to take a hold; a verb is carried out without it."""


class NodeAgent:
    """Runs one node's replicas.

    Args:
        node: its name.
        plans: what to run.
        gateways: ``(host, port)`` of each gateway's agent port.
        host: where engines run.
        meters: the machine's figures; shared by agents that share a machine.
        engine_api_key: what the engines want as bearer token, "" for none.
        registrar: tells Consul of the replicas, None where nobody asks for that.
        state: its folder, which it opens at once; None keeps nothing.
        clock: monotonic seconds.

    Raises:
        ConfigError: another agent has the folder.
    """

    def __init__(
        self,
        node: str,
        plans: Sequence[UnitPlan],
        gateways: Sequence[tuple[str, int]],
        settings: AgentSettings,
        host: EngineHost,
        log: EventLog,
        *,
        meters: Meters,
        token: bytes | None = None,
        engine_api_key: str = "",
        tls: ssl.SSLContext | None = None,
        registrar: Registrar | None = None,
        state: StateFolder | None = None,
        rng: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = node
        self.instance = secrets.token_bytes(8)
        self.settings = settings
        self.log = log
        self._clock = clock
        self._rng = rng or Random()
        self._meters = meters
        self._host = host
        self._engine_api_key = engine_api_key
        self._registrar = registrar
        self._state = state
        self._holds: dict[str, Hold] = {} if state is None else state.open()
        if state is not None and state.problem:
            log.warning("holds_not_read", node=node, why=state.problem)
        self.units: dict[ReplicaId, ReplicaUnit] = {}
        self._index: dict[ReplicaId, int] = {}
        """Each replica's place in batches: stays its own while it is known, then is another's."""
        self._places = 0
        for plan in plans:
            self._add(plan)
        self._reloader = Reloader(node, self, log)
        self.uplinks = [
            Uplink(self, address, port, token=token, tls=tls, log=log, rng=self._rng, clock=clock)
            for address, port in gateways
        ]
        self.watching = Watching(log)
        self._records: dict[ReplicaId, Report] = {}
        self._fresh: set[ReplicaId] = set()
        """Those whose newest report was in no batch yet."""
        self._sent: dict[ReplicaId, Report] = {}
        self._own: dict[ReplicaId, Report] = {}
        """Newest report of engines inside this process; the same object again says that nothing has changed."""
        self._unmoved: list[int] = []
        self._changed: set[ReplicaId] = set()
        self._found: dict[ReplicaId, tuple[str, tuple[str, ...]]] = {}
        """What samples have shown of each engine that is told rarely: its kind, signals that it lacks, adapters."""
        self._serving: set[ReplicaId] = set()
        """Those that gateways were last told may take requests."""
        self._telling: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: asyncio.TimerHandle | None = None
        self._awaited = 0
        self.ticks = 0
        self._figures_at = 0.0
        self._figures_sent = b""

    # ---- life ---------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begins to start engines and to look for gateways, at once and in parallel."""
        for uplink in self.uplinks:
            uplink.start()
        for unit in self.units.values():
            unit.start()
        if self._registrar is not None:
            self._registrar.start(self.units)
        # Agents of a cluster must not all send in the same millisecond.
        self._timer = asyncio.get_running_loop().call_later(self.settings.interval_s * self._rng.random(), self._tick)

    async def stop(self, drain_s: float | None = None) -> None:
        """Drains and stops every engine, tells the gateways, ends. No process is left."""
        drain_s = self.settings.drain_s if drain_s is None else drain_s
        await self._reloader.close()
        try:
            await asyncio.gather(*(unit.close(drain_s) for unit in self.units.values()))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for timer in (self._due, self._telling):
                if timer is not None:
                    timer.cancel()
            await asyncio.gather(*(uplink.close() for uplink in self.uplinks))
            if self._registrar is not None:
                await self._registrar.close()
            if self._state is not None:
                self._state.close()

    def hurry(self) -> None:
        """Ends all draining: what is in flight is cut."""
        for unit in self.units.values():
            unit.hurry()

    def ready(self) -> int:
        """Replicas that may take requests."""
        return sum(unit.ready for unit in self.units.values())

    # ---- plans --------------------------------------------------------------------------------------------------
    def reload(self, plans: Sequence[UnitPlan]) -> None:
        """Takes a new plan for this node; returns at once, :mod:`exaserve.agent.reloading` carries it out."""
        self._reloader.ask(plans)

    @property
    def reloading(self) -> bool:
        return self._reloader.busy

    def put(self, plan: UnitPlan) -> ReplicaUnit:
        """Begins a unit, in the place of an ended one of the same name where there is one."""
        unit = self._add(plan)
        unit.start()
        return unit

    async def end(self, replica: ReplicaId) -> None:
        """Drains and ends it; it stays known."""
        await self.units[replica].close(self.settings.drain_s)

    def forget(self, replica: ReplicaId) -> None:
        """Tells every gateway that an ended one is gone."""
        del self.units[replica], self._index[replica]
        self._changed.discard(replica)
        self.watching.forget(replica)
        gone = encode(AgentReport(full=False, replicas=(), gone=(replica,)))
        for uplink in self.uplinks:
            uplink.tell(gone)

    def _add(self, plan: UnitPlan) -> ReplicaUnit:
        replica = plan.spec.id
        unit = ReplicaUnit(
            plan,
            self.settings,
            self._host,
            self.log,
            self._rng,
            self._unit_changed,
            self._clock,
            self._engine_api_key,
            self._holds.get(replica),
        )
        if replica not in self._index:
            taken = set(self._index.values())
            self._index[replica] = next(place for place in range(len(taken) + 1) if place not in taken)
            self._places = max(self._places, self._index[replica] + 1)
        self.units[replica] = unit
        return unit

    # ---- states -------------------------------------------------------------------------------------------------
    def _unit_changed(self, unit: ReplicaUnit) -> None:
        """Tells the gateways soon, so that what changes together is told together; at once where it matters."""
        replica = unit.spec.id
        if self._registrar is not None:
            self._registrar.poke()
        self._changed.add(replica)
        if not unit.serving:
            self._records.pop(replica, None)
            self._found.pop(replica, None)
            self._own.pop(replica, None)
            self._fresh.discard(replica)
            self._sent.pop(replica, None)
        urgent = replica in self._serving and (not unit.ready or unit.state is UnitState.DRAINING)
        if urgent:
            self._serving.discard(replica)
            self._hush()
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(0.0 if urgent else _TELL_AFTER_S, self._tell)

    def _hush(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    def _tell(self) -> None:
        self._telling = None
        changed, self._changed = self._changed, set()
        if any(uplink.up for uplink in self.uplinks):
            report = self._encode(changed, full=False)
            for uplink in self.uplinks:
                uplink.tell(report)

    def report(self) -> bytes:
        if sum(uplink.up for uplink in self.uplinks) == 1:
            self._hush()  # nobody else waits for what has changed
            self._changed.clear()
        return self._encode(self.units, full=True)

    def _encode(self, replicas: Iterable[ReplicaId], *, full: bool) -> bytes:
        states = tuple(self._state_of(self.units[each]) for each in replicas)
        for state in states:
            (self._serving.add if state.ready else self._serving.discard)(ReplicaId(state.id))
        return encode(AgentReport(full, states))

    def _state_of(self, unit: ReplicaUnit) -> AgentReplicaState:
        spec = unit.spec
        sample = unit.sampler.last
        return AgentReplicaState(
            index=self._index[spec.id],
            id=spec.id,
            url=spec.url,
            models=spec.models,
            version=spec.version,
            engine=sample.engine if sample is not None and sample.engine else spec.engine,
            max_model_len=spec.max_model_len,
            max_num_seqs=spec.max_num_seqs,
            kv_tokens_max=spec.kv_tokens_max,
            prefill_tokens_per_s=spec.prefill_tokens_per_s,
            decode_step_s=spec.decode_step_s,
            state=unit.state.value,
            ready=unit.ready,
            reason=unit.reason,
            restarts=unit.restarts,
            missing=sample.report.missing if sample is not None else (),
            pid=unit.engine.pid if unit.engine is not None else 0,
            exits=tuple(unit.exits.items()),
        )

    # ---- telemetry ----------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self.settings.interval_s
        self._timer = loop.call_later(interval_s, self._tick)
        self.ticks += 1
        for unit in self.units.values():
            if unit.engine is not None and unit.serving:
                own = unit.engine.sample()
                if own is not None:
                    if own is self._own.get(unit.spec.id) and not own.running:
                        self._unmoved.append(self._index[unit.spec.id])
                        continue
                    self._own[unit.spec.id] = own
                    self._took(unit, unit.sampler.take(own, unit.spec.engine))
                elif not unit.sampler.asking:
                    self._awaited += 1
                    unit.sampler.ask(max(1.0, interval_s), lambda sample, unit=unit: self._answered(unit, sample))  # type: ignore[misc]
        now = self._clock()
        self.watching.look(self.units.values(), self._meters, now)
        if now >= self._figures_at:
            self._figures_at = now + _FIGURES_EVERY_S
            self._send_figures()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._awaited:
            self._due = loop.call_later(interval_s * _SEND_BY, self._push)
        else:
            self._push()

    def _answered(self, unit: ReplicaUnit, sample: Sample | None) -> None:
        self._awaited -= 1
        if sample is not None and unit.serving:
            self._took(unit, sample)
        if not self._awaited and self._due is not None:
            self._due.cancel()
            self._push()

    def _took(self, unit: ReplicaUnit, sample: Sample) -> None:
        unit.sampled(sample)
        self._records[unit.spec.id] = self._meters.fill(sample.report, unit.plan.devices)
        self._fresh.add(unit.spec.id)
        found = (sample.engine or unit.spec.engine, sample.report.missing)
        if found != self._found.get(unit.spec.id, (unit.spec.engine, ())):
            self._found[unit.spec.id] = found
            self._unit_changed(unit)

    def _push(self) -> None:
        """One batch to every gateway: what changed since the last one, and one bit for what did not."""
        self._due = None
        now = self._clock()
        changed: list[bytes] = []
        same, self._unmoved = self._unmoved, []
        same_age_ms = 0.0
        fresh, self._fresh = self._fresh, set()
        for replica in fresh:  # the others have had no sample since the last batch: their reports age
            report = self._records[replica]
            sent = self._sent.get(replica)
            age_ms = (now - report.taken_at) * 1e3
            if sent is not None and _same(report, sent):
                same.append(self._index[replica])
                same_age_ms = max(same_age_ms, age_ms)
            else:
                self._sent[replica] = report
                changed.append(pack_record(self._index[replica], report, age_ms))
        count = self._places
        for uplink in self.uplinks:
            uplink.push(lambda seq: encode_batch(seq, count, changed, same, same_age_ms))

    def figures(self) -> bytes:
        meters = self._meters
        return encode(
            MachineFigures(meters.cards, meters.net_mb_s, meters.problem, self.watching.wrong(), self.watching.slopes())
        )

    def _send_figures(self) -> None:
        figures = self.figures()
        if figures != self._figures_sent:
            sent = [uplink.figure(figures) for uplink in self.uplinks]
            self._figures_sent = figures if all(sent) else b""

    def whole_batch(self, seq: int) -> bytes:
        now = self._clock()
        records = [
            pack_record(self._index[replica], report, (now - report.taken_at) * 1e3)
            for replica, report in self._records.items()
        ]
        return encode_batch(seq, self._places, records, (), 0.0)

    # ---- verbs --------------------------------------------------------------------------------------------------
    async def obey(self, verb: Verb) -> VerbResult:
        """A gateway's verb. Only these: nothing that it sends is ever run as a command."""
        units = list(self.units.values())
        if verb.replica:
            wanted = {verb.replica, f"{self.node}/{verb.replica}"}
            units = [unit for unit in units if unit.spec.id in wanted or unit.spec.id.endswith(f"/{verb.replica}")]
            if not units:
                return VerbResult(verb.ref, ok=False, message=f"{self.node} has no replica {verb.replica!r}")
        if verb.name == "logs":
            return VerbResult(verb.ref, ok=True, lines=self._logs(units, max(1, min(verb.lines_max, _LINES_MAX))))
        lines = tuple(unit.ask(verb.name, verb.drain_s) for unit in units)
        if why := await self._hold(verb.name, units):
            self.log.warning("hold_not_kept", node=self.node, verb=verb.name, why=why)
            lines = (*lines, f"not kept for when the agent of {self.node} is started anew: {why}")
        return VerbResult(verb.ref, ok=True, lines=lines)

    async def _hold(self, verb: str, units: Sequence[ReplicaUnit]) -> str:
        """Keeps what the verb holds or sets free; why that could not be kept on disk, "" where it could."""
        before = dict(self._holds)
        for unit in units:
            held = hold_after(verb, self._holds.pop(unit.spec.id, None))
            if held is not None:
                self._holds[unit.spec.id] = held
        if self._state is None or self._holds == before:
            return ""
        try:
            async with asyncio.timeout(_KEEP_S):
                keep = asyncio.get_running_loop().run_in_executor(None, self._state.keep, dict(self._holds))
                return await keep
        except TimeoutError:
            return f"the disk did not answer within {_KEEP_S:g} s"

    def _logs(self, units: Sequence[ReplicaUnit], lines_max: int) -> tuple[str, ...]:
        lines: list[str] = []
        for unit in units:
            tail = unit.engine.tail(lines_max) if unit.engine is not None else unit.last_words[-lines_max:]
            lines += [f"{unit.spec.id} | {line}" if len(units) > 1 else line for line in tail]
        room, kept = _LOG_CHARS_MAX, list[str]()
        for line in reversed(lines[-_LINES_MAX:]):  # the newest ones matter most
            room -= len(line)
            if room < 0:
                break
            kept.append(line)
        return tuple(reversed(kept))

    def states(self) -> dict[str, UnitState]:
        return {replica: unit.state for replica, unit in self.units.items()}


def _same(new: Report, old: Report) -> bool:
    """Whether a receiver that has ``old`` needs nothing of ``new`` but its time."""
    return (
        new.running == old.running
        and new.waiting == old.waiting
        and new.kv_use == old.kv_use
        and new.generation_tokens_total == old.generation_tokens_total
        and new.prompt_tokens_total == old.prompt_tokens_total
        and new.preemptions_total == old.preemptions_total
        and new.prefix_hits_total == old.prefix_hits_total
        and new.prefix_queries_total == old.prefix_queries_total
        and new.kv_tokens_max == old.kv_tokens_max
        and new.asleep == old.asleep
        and new.free_mem_gb == old.free_mem_gb
        and new.net_mb_s == old.net_mb_s
        and (new.kv_age_ms == old.kv_age_ms or not new.running)
    )
