# compiled
"""The replicas: one record for each, and one door for everything that is seen of them.

Reports, probes, clients' requests and agents' words come in here, and decide in one place what a replica may take. The
scheduler is told at once, so that the next request already goes elsewhere. What somebody has to *do* about it (move
requests, ask an engine what it serves now, write it down) comes out as :class:`FleetChange`, for the shell to carry out
when it is its turn: nothing is done in the middle of the request that found the trouble. The gateway and the simulator
are two shells of this class.

A replica may take requests when its health says so (:mod:`exaserve.health`: probes and requests, with hysteresis) and
nothing withholds it:

- its figures have stopped coming, though they came before: frozen, or cut off, until a probe tells otherwise;
- requests wait in it, none runs and no figure moves: it hangs, whatever it answers to a probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from exaserve.domain.replica import ModelCard, ReplicaId, ReplicaSpec, Report
from exaserve.health import AnomalyGuard, FailureKind, HealthBook, HealthChange, HealthConfig, HealthView
from exaserve.scheduling import Scheduler
from exaserve.scheduling.entropy import literal_score
from exaserve.serving.member import ChangeKind, FleetChange, Member

__all__ = ["TICK_S", "Fleet"]

TICK_S = 0.05
"""How often a shell calls :meth:`Fleet.tick` and looks for probes that are due."""

_LOOK_EVERY_MAX = 768
"""Replicas up to which every interval looks for silence and for odd scores; with twice as many every second one does,
and so on: it is a matter of seconds, and costs with the fleet."""
_SILENT_INTERVALS = 5.0


class Fleet:
    """Membership, health, reports and distrust of all replicas.

    Args:
        ring: called when a change waits to be taken, once until :meth:`take`. It must not call back; a shell notes that
            it has something to do.

    Attributes:
        scheduler: what places requests on these replicas; members come and go through here only.
        health: what probes and requests say; observations come through here only.
    """

    def __init__(self, scheduler: Scheduler, config: HealthConfig, ring: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.config = config
        self.health = HealthBook(config)
        self._ring = ring
        self._rung = False
        self._members: dict[ReplicaId, Member] = {}
        self._changes: list[FleetChange] = []
        self._leaving: dict[ReplicaId, float] = {}
        """Out, with requests that wait there: when to look next whether they had better leave."""
        self._stuck: set[ReplicaId] = set()
        self._suspects: set[ReplicaId] = set()
        self._guard = AnomalyGuard()
        self._looks = 0
        self._looked_at = -math.inf
        self._patient_until = -math.inf
        self._cards: dict[str, ModelCard] | None = None

    # ---- membership ---------------------------------------------------------------------------------------------
    def add(self, spec: ReplicaSpec, now: float) -> None:
        """A replica joins; it takes requests once a probe has gone well. ValueError where its id is taken."""
        self.scheduler.add(spec, now)
        self.health.add(spec.id, now)
        self._members[spec.id] = Member(self.scheduler.states()[spec.id], spec)
        self._cards = None

    def update(self, spec: ReplicaSpec) -> None:
        """Another description of the same engine at the same address. KeyError for an unknown replica."""
        member = self._members[spec.id]
        member.given = spec
        member.models_at = -math.inf
        member.dialect = None
        self._describe(member)

    def remove(self, replica: ReplicaId) -> None:
        """Forgets it, changes that wait to be taken included. Its placements can still be released. KeyError for an
        unknown replica."""
        del self._members[replica]
        self.health.remove(replica)
        self.scheduler.remove(replica)
        self._guard.forget(replica)
        self._leaving.pop(replica, None)
        self._stuck.discard(replica)
        self._suspects.discard(replica)
        self._changes = [each for each in self._changes if each.replica != replica]
        self._cards = None

    def members(self) -> Mapping[ReplicaId, Member]:
        return MappingProxyType(self._members)

    def member(self, replica: ReplicaId) -> Member | None:
        return self._members.get(replica)

    def beside(self, replica: ReplicaId) -> frozenset[ReplicaId]:
        """The replicas of the same node, itself included; empty where its node is not known."""
        member = self._members.get(replica)
        node = member.given.node if member is not None else ""
        return frozenset(each.id for each in self._members.values() if each.given.node == node) if node else frozenset()

    def __contains__(self, replica: ReplicaId) -> bool:
        return replica in self._members

    # ---- what clients' requests show. Called for each of them ----------------------------------------------------
    def succeeded(self, replica: ReplicaId, now: float) -> None:
        """A response to a client began with a status below 500."""
        self.health.succeeded(replica, now)

    def progressed(self, replica: ReplicaId, now: float) -> None:
        """The replica did some work: bytes of an answer came."""
        self.health.progressed(replica, now)

    def failed(self, replica: ReplicaId, kind: FailureKind, now: float) -> None:
        """A client's request failed at the replica. Once for each request and replica, however often it was tried."""
        change = self.health.failed(replica, kind, now)
        if change is not None:
            self._apply(change, now)

    # ---- reports ------------------------------------------------------------------------------------------------
    def report(self, report: Report, now: float) -> None:
        """A replica's figures. What they say of its work counts for its health too."""
        member = self._members.get(report.replica)
        if member is None:
            return
        if report.taken_at > member.counted_at:  # late ones say nothing of the present
            self._count(member, report, now)
        self.scheduler.report(report, now)

    def confirm(self, replicas: Iterable[ReplicaId], seq: int, taken_at: float, now: float) -> None:
        """These replicas' figures are still the same at ``taken_at``."""
        self.scheduler.confirm(replicas, seq, taken_at, now)

    def unreachable(self, replica: ReplicaId) -> None:
        """Its address refuses connections: whatever answers there next is another process."""
        member = self._members.get(replica)
        if member is not None:
            member.refused = True

    def restarted(self, replica: ReplicaId, why: str, now: float) -> None:
        """Another process answers at the replica's address. It takes requests again once it has said which models it
        serves and a probe has gone well; one that an agent watches is asked by that agent."""
        member = self._members.get(replica)
        if member is not None:
            self._restarted(member, why, now)

    def _count(self, member: Member, report: Report, now: float) -> None:
        last, member.last = member.last, report
        counted_at, member.counted_at = member.counted_at, report.taken_at
        if member.silent:
            self._give_back(member, "its figures have come again")
        if last is None:
            member.refused = False
            return
        fell = (report.prompt_tokens_total or 0.0) < (last.prompt_tokens_total or 0.0) or (
            report.generation_tokens_total or 0.0
        ) < (last.generation_tokens_total or 0.0)
        if fell or member.refused:
            why = "its token counters fell" if fell else "its address had refused connections"
            member.refused = False
            if self.health.since(member.id) <= counted_at:
                self._restarted(member, why, now)
            else:  # it has been out and come back since those figures, and was asked what it serves on the way
                self._renew(member, why)
        if fell or _moved(last, report):
            self.health.progressed(member.id, now)
        elif report.running == 0 and report.waiting:
            if member.stuck_since == math.inf:
                member.stuck_since = report.taken_at
                self._stuck.add(member.id)
            return
        self._unstick(member)

    def _restarted(self, member: Member, why: str, now: float) -> None:
        member.models_at = -math.inf
        member.dialect = None
        self._renew(member, why)
        if not self.health.told_by_agent(member.id):
            change = self.health.renewed(member.id, f"restarted: {why}", now)
            if change is not None:
                self._apply(change, now)

    def _renew(self, member: Member, why: str) -> None:
        self.scheduler.restarted(member.id)
        self._say(FleetChange(ChangeKind.RESTARTED, member.id, why))

    def _unstick(self, member: Member) -> None:
        if member.stuck_since != math.inf:
            member.stuck_since = math.inf
            self._stuck.discard(member.id)
            if member.withheld and not member.silent:
                self._give_back(member, "it works again")

    # ---- an agent's word ----------------------------------------------------------------------------------------
    def told(self, replica: ReplicaId, reason: str, now: float, *, ready: bool) -> None:
        """The agent on the replica's node says whether it may serve, and why."""
        change = self.health.told(replica, reason, now, ready=ready)
        if change is not None:
            self._apply(change, now)

    def word_lost(self, replica: ReplicaId, reason: str, now: float) -> None:
        """The agent is gone, perhaps with its node."""
        change = self.health.word_lost(replica, reason, now)
        if change is not None:
            self._apply(change, now)

    # ---- probes -------------------------------------------------------------------------------------------------
    def due(self, now: float) -> list[ReplicaId]:
        """Replicas to probe now, the longest due first."""
        return self.health.due(now)

    def models_due(self, member: Member, now: float) -> bool:
        """Whether the probe has to ask for its models first."""
        if member.models_at == -math.inf or not member.ledger.spec.models:
            return True
        return member.learns_models and now - member.models_at >= self.config.models_every_s

    def probe_started(self, replica: ReplicaId) -> float:
        """A probe is under way; returns when to give it up, seconds."""
        return self.health.probe_started(replica)

    def probe_finished(
        self, replica: ReplicaId, now: float, *, status: int | None, latency_s: float, error: str = ""
    ) -> None:
        """A probe has ended."""
        member = self._members.get(replica)
        if member is None:
            return
        change = self.health.probe_finished(replica, now, status=status, latency_s=latency_s, error=error)
        if change is not None:
            self._apply(change, now)
        if member.silent and status is not None and 200 <= status < 300:
            member.missed_from = now
            self._give_back(member, "it answers, though its figures do not come")

    def probed(self, replica: ReplicaId, ok: bool, detail: str, now: float, latency_s: float) -> None:
        """A probe that the caller judged itself."""
        change = self.health.probed(replica, ok, detail, now, latency_s)
        if change is not None:
            self._apply(change, now)

    def listed(self, replica: ReplicaId, cards: tuple[ModelCard, ...], now: float) -> bool:
        """What the replica lists in ``/v1/models``; returns whether its description changed by that."""
        member = self._members.get(replica)
        if member is None:
            return False
        member.models_at = now
        if cards != member.cards:
            member.cards = cards
            self._cards = None
        before = member.ledger.spec
        self._describe(member)
        if member.ledger.spec == before:
            return False
        member.dialect = None
        return True

    def cards(self) -> Mapping[str, ModelCard]:
        """What is known of each model that any replica serves, by name. Of several lengths the longest: requests go
        where they fit."""
        known = self._cards
        if known is None:
            known = self._cards = {}
            for member in self._members.values():
                spec = member.ledger.spec
                listed = {card.id: card for card in member.cards}
                for model in spec.models:
                    card = listed.get(model, ModelCard(model))
                    length = max(spec.max_model_len or card.max_model_len or 0, _length(known.get(model)))
                    known[model] = ModelCard(model, length or None, card.root, card.parent)
        return MappingProxyType(known)

    def _describe(self, member: Member) -> None:
        """Its description: as configured, and where that is silent as it lists itself."""
        given, known = member.given, member.ledger.spec
        models, length = given.models, given.max_model_len
        if not models:
            models = tuple(sorted({card.id for card in member.cards})) or known.models
        if not length and member.cards:
            lengths = [card.max_model_len for card in member.cards if card.max_model_len]
            length = min(lengths) if lengths else 0
        spec = replace(given, models=models, max_model_len=length)
        if spec != known:
            self.scheduler.update(spec)
            self._cards = None

    # ---- time ---------------------------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Moves what only time moves. Call some twenty times a second: it costs by what is not well."""
        for change in self.health.tick(now):
            self._apply(change, now)
        for replica in sorted(self._leaving):
            self._check_leaving(self._members[replica], now)
        for replica in sorted(self._stuck):
            member = self._members[replica]
            # Figures that are confirmed move the report's time and nothing else.
            if member.up and not member.withheld and member.ledger.seen.at - member.stuck_since >= self.config.hang_s:
                waiting = 0 if member.last is None else member.last.waiting or 0
                why = f"hangs: {waiting} wait, none runs, no figure has moved for {self.config.hang_s:g} s"
                self._withhold(member, why)
                self._leaving[replica] = now
                self._check_leaving(member, now)

    def look(self, now: float, interval_s: float) -> None:
        """Once per interval of telemetry: reports that are too old, replicas that are silent or too good to be true."""
        self.scheduler.tick(now)
        limit_s = max(self.config.silent_s, _SILENT_INTERVALS * interval_s)
        if now - self._looked_at > 0.5 * limit_s:
            # We have been away ourselves: what was reported meanwhile is still in the sockets.
            self._patient_until = now + limit_s
        self._looked_at = now
        self._looks += 1
        if self._looks % (1 + len(self._members) // _LOOK_EVERY_MAX):
            return
        if now >= self._patient_until:
            self._find_silent(now, limit_s)
        self._find_odd(now)

    def _find_silent(self, now: float, limit_s: float) -> None:
        oldest = now - limit_s
        heard = 0
        late = []
        for member in self._members.values():
            reported_at = member.ledger.seen.at
            if member.silent and reported_at >= oldest:
                self._give_back(member, "its figures have come again")
            elif member.up and not member.silent and reported_at > member.missed_from:
                heard += 1
                if reported_at < oldest:
                    late.append(member)
        if 2 * len(late) > heard > 1:
            return  # most at once: that is the way to here, not they
        for member in late:
            if not member.withheld:
                member.silent = True
                self._withhold(member, f"silent: no figures for {now - member.ledger.seen.at:.1f} s")
                self.health.probe_soon(member.id, now)

    def _find_odd(self, now: float) -> None:
        """Compares the scores of equal replicas. Full reports are compared with each other, and so are those of which
        only the KV use is known, as it is without agents."""
        if self.config.suspicion <= 1.0:
            return
        groups: dict[tuple[tuple[str, ...], bool], dict[ReplicaId, float]] = {}
        loads: dict[tuple[tuple[str, ...], bool], int] = {}
        for member in self._members.values():
            ledger = member.ledger
            report = ledger.seen.report
            if report is not None and ledger.seen.fresh and report.kv_use is not None:
                score, full = literal_score(ledger)
                key = (ledger.spec.models, full)
                groups.setdefault(key, {})[member.id] = score
                loads[key] = loads.get(key, 0) + ledger.inflight + ledger.told
        idle = set()
        for key, scores in groups.items():
            for replica in scores:
                ledger = self._members[replica].ledger
                load = ledger.inflight + ledger.told
                if load * len(scores) < loads[key] or not load:
                    idle.add(replica)
        suspects = self._guard.observe(groups.values(), now, idle)
        for replica in sorted(suspects ^ self._suspects):
            odd = replica in suspects
            self._members[replica].suspect = odd
            self.scheduler.set_suspicion(replica, self.config.suspicion if odd else 1.0)
            kind = ChangeKind.SUSPECT if odd else ChangeKind.TRUSTED
            self._say(FleetChange(kind, replica, "score far below all others" if odd else "as others again"))
        self._suspects = suspects

    # ---- for the shell ------------------------------------------------------------------------------------------
    def take(self) -> list[FleetChange]:
        """Changes since the last call, in their order."""
        self._rung = False
        changes, self._changes = self._changes, []
        return changes

    def view(self, replica: ReplicaId, now: float | None = None) -> HealthView:
        """KeyError for a replica that is not known."""
        return self.health.view(replica, now)

    @property
    def suspects(self) -> frozenset[ReplicaId]:
        return frozenset(self._suspects)

    def validate(self) -> None:
        """Asserts that all tables hold the same replicas and say the same of them."""
        self.health.validate()
        states = self.scheduler.states()
        assert states.keys() == self._members.keys()
        assert len(self.health) == len(self._members)
        for replica, member in self._members.items():
            assert replica in self.health, replica
            assert member.ledger is states[replica], replica
            assert member.up == self.health.view(replica).available, replica
            assert member.ledger.standing.available == (member.up and not member.withheld), replica
            assert not member.withheld or member.up, replica
            assert not member.silent or member.withheld, replica
            assert (replica in self._stuck) == (member.stuck_since != math.inf), replica
            assert member.suspect == (replica in self._suspects), replica
        for table in (set(self._leaving), self._stuck, self._suspects, {each.replica for each in self._changes}):
            assert table <= self._members.keys(), table
        assert self._rung or not self._changes

    # ---- inside -------------------------------------------------------------------------------------------------
    def _say(self, change: FleetChange) -> None:
        self._changes.append(change)
        if not self._rung:
            self._rung = True
            self._ring()

    def _apply(self, change: HealthChange, now: float) -> None:
        """The scheduler knows at once; the shell does its part when it takes the changes."""
        member = self._members[change.replica]
        was = member.up
        member.up, member.share, member.reason = change.available, change.share, change.reason
        if not change.available:
            member.withheld = ""
            member.silent = False
            member.models_at = -math.inf  # whoever comes back may be another
        if not member.withheld:
            share = change.share if change.available else 1.0
            self.scheduler.set_health(member.id, change.available, change.reason, share)
        if change.available:
            self._leaving.pop(member.id, None)
            if not was:
                member.missed_from = now
                self._say(FleetChange(ChangeKind.UP, member.id, change.reason, change.share))
        elif was:
            self._say(FleetChange(ChangeKind.DOWN, member.id, change.reason, 0.0, member.ledger.inflight))
            self._leaving[member.id] = now
            self._check_leaving(member, now)

    def _check_leaving(self, member: Member, now: float) -> None:
        """Lets go of a replica that shows no work, when that has lasted longer than its largest prompt may take. Said
        again while some stay, since retries are a share of requests."""
        if now < self._leaving[member.id]:
            return
        ledger = member.ledger
        if not ledger.inflight:
            self._leaving.pop(member.id, None)
            return
        # Plain answers leave the pending ones when their prefill should be over, and still wait for their first byte.
        work_s = max([0.0, *[each.work_s for each in ledger.pending if not each.foreign]])
        if now - self.health.progress_at(member.id) >= self.config.probe_limit_s + work_s:
            self._leaving[member.id] = now + self.config.probe_limit_s
            self._say(FleetChange(ChangeKind.LEAVE, member.id, member.withheld or member.reason, 0.0, ledger.inflight))

    def _withhold(self, member: Member, why: str) -> None:
        member.withheld = why
        self.scheduler.set_health(member.id, False, why)  # noqa: FBT003 -- positional in the contract
        self._say(FleetChange(ChangeKind.WITHHELD, member.id, why, 0.0, member.ledger.inflight))

    def _give_back(self, member: Member, why: str) -> None:
        member.withheld = ""
        member.silent = False
        self._leaving.pop(member.id, None)
        self.scheduler.set_health(member.id, True, member.reason, member.share)  # noqa: FBT003
        self._say(FleetChange(ChangeKind.GIVEN_BACK, member.id, why, member.share))


def _length(card: ModelCard | None) -> int:
    return 0 if card is None else card.max_model_len or 0


def _moved(last: Report, report: Report) -> bool:
    """Whether an engine has done anything between two reports. Waiting requests alone say only that it is reached."""
    return (
        report.generation_tokens_total != last.generation_tokens_total
        or report.prompt_tokens_total != last.prompt_tokens_total
        or report.kv_use != last.kv_use
        or report.running != last.running
        or report.preemptions_total != last.preemptions_total
        or report.prefix_queries_total != last.prefix_queries_total
    )
