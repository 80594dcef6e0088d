# compiled
"""What the requests of one gateway share: scheduler, queue, health, the retry budget, and who is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from exaserve.domain.errors import ModelNotFound
from exaserve.scheduling import Admission, Scheduler
from exaserve.serving.budget import RetryBudget
from exaserve.serving.config import RetrySettings
from exaserve.serving.fleet import Fleet

__all__ = ["Desk"]

_MODELS_SHOWN_MAX: Final = 20


class Desk:
    """See the module's text.

    Attributes:
        first_byte_s / between_bytes_s / total_s: from a request's sending to the first byte, between two bytes, and all
            of it, seconds.
        open: requests that are not over, oldest first (:class:`~exaserve.serving.journey.Journey`).
        stopping: set for a graceful stop: nothing new is queued.
        on_queue: told the number of waiting requests when it changes.
        trace: where it is a list, each decision is noted there as ``(now, request, what, replica)``.
        waiting: how many wait in the admission queue.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        admission: Admission,
        fleet: Fleet,
        retry: RetrySettings,
        *,
        first_byte_s: float,
        between_bytes_s: float,
        total_s: float,
    ) -> None:
        self.scheduler = scheduler
        self.admission = admission
        self.fleet = fleet
        self.retry = retry
        self.budget = RetryBudget(retry)
        self.first_byte_s = first_byte_s
        self.between_bytes_s = between_bytes_s
        self.total_s = total_s
        self.open: dict[Any, None] = {}
        self.stopping = False
        self.on_queue: Callable[[int], object] = int
        self.trace: list[tuple[float, Any, str, str]] | None = None
        self.waiting: Callable[[], int] = admission.__len__

    def note(self, now: float, journey: Any, what: str, replica: str) -> None:
        if self.trace is not None:
            self.trace.append((now, journey, what, replica))

    def model_unknown(self, model: str, sees: Callable[[str], bool]) -> ModelNotFound:
        """``sees`` says which models' names who asks may hear."""
        served = [name for name in self.scheduler.models() if sees(name)]
        names = ", ".join(served[:_MODELS_SHOWN_MAX]) or "none"
        more = f" and {len(served) - _MODELS_SHOWN_MAX} more" if len(served) > _MODELS_SHOWN_MAX else ""
        return ModelNotFound(
            f"The model {model[:200]!r} is not served here. Served models: {names}{more}.", param="model"
        )
