# compiled
"""What is done for all requests of one gateway at once: on waking the queue, at a tick, when a replica is lost."""

from __future__ import annotations

from exaserve.domain.replica import ReplicaId
from exaserve.serving.desk import Desk
from exaserve.serving.journey import Journey
from exaserve.serving.transitions import CONNECTING, DONE, NOTHING, RELAYING, WAITING

__all__ = ["Dispatcher"]


class Dispatcher(Desk):
    """The desk, and the work at it. Effects go to each request's own :meth:`Journey.perform`.

    Attributes:
        waking: :meth:`wake` is at work, so that what it sets off does not begin it again.
    """

    waking = False

    def wake(self, now: float) -> None:
        """Sends on what the admission queue may now place: after a release, a report, change of health or members."""
        if self.waking or not self.waiting():
            return
        self.waking = True
        scheduler = self.scheduler
        placed = self.admission.dispatch(lambda facts: scheduler.place(facts, now))
        self.waking = False
        if not placed:
            return
        self.on_queue(len(self.admission))
        for ticket, placement in placed:
            journey = ticket.waiter
            assert isinstance(journey, Journey)
            journey.perform(journey.dispatched(placement, now), now)

    def expire_queue(self, now: float) -> None:
        """Ends what has waited too long in the admission queue."""
        expired = self.admission.expired(now)
        if expired:
            self.on_queue(len(self.admission))
        for ticket in expired:
            journey = ticket.waiter
            assert isinstance(journey, Journey)
            journey.perform(journey.queue_expired(now), now)

    def evacuate(self, replica: ReplicaId, now: float) -> int:
        """Moves requests that wait for their first byte off a replica that health has just taken out of service.

        Bounded by the retry budget and each request's attempts; returns how many moved.
        """
        moved = 0
        for journey in list(self.open):
            placement = journey.placement
            if placement is not None and placement.replica_id == replica:
                effect = journey.evacuated(now)
                if effect != NOTHING:
                    moved += 1
                    journey.perform(effect, now)
        return moved

    def tick(self, now: float) -> None:
        """Acts on every deadline that has passed."""
        progressed: dict[ReplicaId, None] = {}
        for journey in list(self.open):
            activity = journey.activity()
            if activity and now < journey.total_at:
                journey.progressed(now)
                placement = journey.placement
                if activity == 2 and placement is not None:
                    progressed[placement.replica_id] = None
            elif journey.deadline <= now:
                journey.perform(journey.expired(now), now)
        for replica in progressed:
            self.fleet.progressed(replica, now)
        if self.waiting():
            self.expire_queue(now)
            self.wake(now)
        self.budget.count(now)

    def stop(self, now: float) -> None:
        """Ends everything that is under way. Every placement is released."""
        for journey in list(self.open):
            journey.perform(journey.stopped(now), now)

    def validate(self) -> None:
        """Asserts that what is under way and what is held agree."""
        self.budget.validate()
        self.admission.validate()
        self.scheduler.validate()
        for journey in self.open:
            assert journey.state != DONE
            assert journey.deadline <= journey.total_at
            assert (journey.placement is not None) == (journey.state in (CONNECTING, WAITING, RELAYING))
