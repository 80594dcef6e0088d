"""What ``up`` and ``demo`` share: ending on a signal, and showing how a start proceeds."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from exaserve.local.cluster import StartStep

__all__ = ["StartView", "run_until_signal"]

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_signal(work: Callable[[list[Callable[[], None]]], Coroutine[Any, Any, T]]) -> T:
    """Runs ``work`` on uvloop. The first SIGINT, SIGTERM or SIGHUP cancels it, so that it takes down what it started.

    Args:
        work: given a list to which it adds what a second signal is to call, for people in a hurry.

    Raises:
        KeyboardInterrupt: it was SIGINT.
        typer.Exit: with 143 or 129, for SIGTERM and SIGHUP.
    """
    import uvloop

    received: list[signal.Signals] = []

    async def main() -> T:
        loop = asyncio.get_running_loop()
        hurry: list[Callable[[], None]] = []
        task = asyncio.ensure_future(work(hurry))

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            if len(received) == 1:
                task.cancel()
            for call in hurry if len(received) > 1 else ():
                call()

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        return await task

    try:
        return uvloop.run(main())
    except asyncio.CancelledError:
        if not received or received[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise typer.Exit(128 + received[0]) from None


class StartView:
    """Shows the steps of a start: a bar on a terminal, else a line for each quarter."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._shown: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.add_task("starting", total=None)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, step: StartStep) -> None:
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, description=step.text, total=step.total, completed=step.done)
            return
        quarter = 4 * step.done // max(1, step.total)
        if (step.text, quarter) != self._shown:
            self._shown = (step.text, quarter)
            self._console.print(f"{step.text}: {step.done}/{step.total}", highlight=False)
