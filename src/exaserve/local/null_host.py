"""Null engines inside an agent's process: thousands of nodes' worth of engines in one, each with its own address."""

from __future__ import annotations

import time
from collections.abc import Callable

from exaserve.agent.host import EngineHost, RunningEngine
from exaserve.agent.plan import UnitPlan
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import Report
from exaserve.emulator.null import KV_TOKENS, NullEngine

__all__ = ["MixedHost", "NullHost"]


class NullHost:
    """Starts null engines in this process."""

    async def start(self, plan: UnitPlan, on_end: Callable[[], None]) -> RunningEngine:
        del on_end  # they end with this process
        engine = NullEngine(plan.spec.models[0] if plan.spec.models else "null", plan.host, plan.port)
        try:
            await engine.open()
        except OSError as error:
            raise ConfigError(
                f"port {plan.port} of {plan.host}: {error.strerror or error}", param="base_port"
            ) from None
        return _Running(plan, engine)


class _Running:
    pid = 0
    log_bytes = 0
    log_problem = ""
    alarm = False

    def __init__(self, plan: UnitPlan, engine: NullEngine) -> None:
        self._replica = plan.spec.id
        self._engine = engine
        self._last: Report | None = None

    def ended(self) -> str:
        return ""

    def tail(self, lines_max: int) -> list[str]:
        return ["a null engine has no log"][:lines_max]

    def pids(self) -> list[int]:
        return []

    def sample(self) -> Report | None:
        engine = self._engine
        last = self._last
        if last is not None and last.prompt_tokens_total == engine.requests and last.running == engine.running:
            return last
        self._last = Report(
            self._replica,
            0,
            time.monotonic(),
            running=engine.running,
            waiting=0,
            kv_use=0.0,
            kv_tokens_max=KV_TOKENS,
            preemptions_total=0.0,
            prompt_tokens_total=float(engine.requests),
            generation_tokens_total=float(engine.tokens),
        )
        return self._last

    async def stop(self) -> None:
        self._engine.close()


class MixedHost:
    """Null engines here, all others as processes."""

    def __init__(self, processes: EngineHost, null: EngineHost) -> None:
        self._processes = processes
        self._null = null

    async def start(self, plan: UnitPlan, on_end: Callable[[], None]) -> RunningEngine:
        return await (self._null if plan.engine == "null" else self._processes).start(plan, on_end)
