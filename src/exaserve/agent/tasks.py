"""Tasks that must not end silently: what goes wrong in them is told at once, with its place."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

from exaserve.observe import EventLog

__all__ = ["tell_of_errors", "where_failed"]


def where_failed(error: BaseException) -> str:
    """An unforeseen error with the line of source that raised it, for a log."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{error!r}{place}"


def tell_of_errors(loop: asyncio.AbstractEventLoop, log: EventLog) -> None:
    """Errors of callbacks and of tasks that nobody waits for become events; the loop goes on."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("internal_error", where=context.get("message"), error=None if error is None else where_failed(error))

    loop.set_exception_handler(handle)
