"""A new plan for a node whose engines run: what ends, what is described anew, what is replaced, what begins.

Order. What is removed ends first, since others may want its accelerators. Replicas whose command line, environment or
place have changed are replaced one after the other, each when the one before is ready again, so that the node goes on
serving; only where they take each other's accelerators or ports do all of them end before the first one begins. A
replacement that does not become ready stops the rest: those keep running as they were. New ones begin last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from exaserve.agent.lifecycle import UnitState
from exaserve.agent.plan import UnitPlan
from exaserve.agent.unit import ReplicaUnit
from exaserve.domain.replica import ReplicaId
from exaserve.observe import EventLog

__all__ = ["Changes", "Reloader", "Units", "compare"]

_LOOK_S = 0.05
_GIVEN_UP = (UnitState.BACKOFF, UnitState.FAILED)


@dataclass(frozen=True, slots=True)
class Changes:
    """What leads from one plan of a node to another.

    Attributes:
        removed / described / replaced / added: replicas that end; that only get another description; that need a new
            process; that are new.
        together: whether all replaced ones must end before the first of them can begin again.
        lines: the same for people, one line for each replica.
    """

    removed: tuple[ReplicaId, ...]
    described: tuple[UnitPlan, ...]
    replaced: tuple[UnitPlan, ...]
    added: tuple[UnitPlan, ...]
    together: bool
    lines: tuple[str, ...]


def compare(old: Mapping[ReplicaId, UnitPlan], new: Sequence[UnitPlan]) -> Changes:
    """Pure: what a reload has to do."""
    named = {plan.spec.id: plan for plan in new}
    removed = tuple(each for each in old if each not in named)
    added = tuple(plan for plan in new if plan.spec.id not in old)
    lines = [f"replica {each}: removed" for each in removed]
    described: list[UnitPlan] = []
    replaced: list[UnitPlan] = []
    for plan in new:
        before = old.get(plan.spec.id)
        if before is None or plan == before:
            continue
        what = _process_changes(before, plan)
        (replaced if what else described).append(plan)
        lines.append(f"replica {plan.spec.id}: {what or 'described anew'}")
    lines += [f"replica {plan.spec.id}: added" for plan in added]
    held = {plan.spec.id: _claims(old[plan.spec.id]) for plan in replaced}
    together = any(
        _claims(plan) & claims for plan in replaced for other, claims in held.items() if other != plan.spec.id
    )
    return Changes(removed, tuple(described), tuple(replaced), added, together, tuple(lines))


def _claims(plan: UnitPlan) -> set[tuple[str, int]]:
    """What no two engines may have at once."""
    ports = {(plan.host, port) for port in (plan.port, *plan.ports)}
    return ports | {("accelerator", device) for device in plan.devices} | ({("side", plan.side_port)} - {("side", 0)})


def _process_changes(old: UnitPlan, new: UnitPlan) -> str:
    """Why the running process is not what the plan asks for, "" where it is. Values of variables may be secrets."""
    said = []
    if old.argv != new.argv or old.stages != new.stages:
        words = [word for word in new.argv if word not in old.argv]
        gone = [word for word in old.argv if word not in new.argv]
        said.append(f"arguments {' '.join(gone) or '-'} -> {' '.join(words) or '-'}")
    if old.env != new.env:
        names = {name for name in {*old.env, *new.env} if old.env.get(name) != new.env.get(name)}
        said.append(f"environment {', '.join(sorted(names))}")
    # A null engine has no arguments to say what it answers for.
    if old.spec.models != new.spec.models and not new.argv:
        said.append("models")
    rest = replace(new, argv=old.argv, stages=old.stages, env=old.env, spec=old.spec)
    if rest != old:
        said.append("its place: address, accelerators, CPUs, files or folders")
    return "; ".join(said)


class Units(Protocol):
    """The running units of a node, as a reload changes them."""

    @property
    def units(self) -> Mapping[ReplicaId, ReplicaUnit]: ...

    def put(self, plan: UnitPlan) -> ReplicaUnit:
        """Begins a unit, in the place of an ended one of the same name where there is one."""
        ...

    async def end(self, replica: ReplicaId) -> None:
        """Drains and ends it; it stays known."""
        ...

    def forget(self, replica: ReplicaId) -> None:
        """Tells every gateway that an ended one is gone."""
        ...


class Reloader:
    """Applies plans one after the other; of those that come while one is being applied, the newest.

    Args:
        node: for the log.
    """

    def __init__(self, node: str, agent: Units, log: EventLog) -> None:
        self._node = node
        self._agent = agent
        self._log = log
        self._wanted: Sequence[UnitPlan] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def ask(self, plans: Sequence[UnitPlan]) -> None:
        self._wanted = plans
        if not self.busy:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("reload_failed", node=self._node, error=repr(error))

    async def close(self) -> None:
        """Stops in the middle; the units are the agent's to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._wanted is not None:
            plans, self._wanted = self._wanted, None
            changes = compare({each: unit.plan for each, unit in self._agent.units.items()}, plans)
            for line in changes.lines:
                self._log.info("reload_change", node=self._node, change=line)
            await self._apply(changes)
            self._log.info("reload_done", node=self._node, changes=len(changes.lines))

    async def _apply(self, changes: Changes) -> None:
        agent = self._agent
        for plan in changes.described:
            agent.units[plan.spec.id].describe(plan)
        await asyncio.gather(*(agent.end(each) for each in changes.removed))
        for replica in changes.removed:
            agent.forget(replica)
        if changes.together:
            await asyncio.gather(*(agent.end(plan.spec.id) for plan in changes.replaced))
            for plan in changes.replaced:
                agent.put(plan)
        elif not await self._one_by_one(changes.replaced):
            return
        for plan in changes.added:
            agent.put(plan)

    async def _one_by_one(self, plans: Sequence[UnitPlan]) -> bool:
        """Whether all have been replaced; not where one fails or a newer plan has come."""
        for number, plan in enumerate(plans, 1):
            await self._agent.end(plan.spec.id)
            unit = self._agent.put(plan)
            while not unit.ready and not unit.held and number < len(plans):
                if unit.state in _GIVEN_UP:
                    kept = ", ".join(each.spec.id for each in plans[number:])
                    self._log.error(
                        "reload_stopped", node=self._node, replica=plan.spec.id, why=unit.reason, kept_as_they_were=kept
                    )
                    return False
                if self._wanted is not None:
                    return False
                await asyncio.sleep(_LOOK_S)
        return True
