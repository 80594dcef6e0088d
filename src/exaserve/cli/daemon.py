"""What the commands that serve until they are stopped share: their cluster file, and their event log on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exaserve.domain.errors import ConfigError

if TYPE_CHECKING:
    from exaserve.observe import EventLog

__all__ = ["ConfigFile", "LogLevel", "stderr_log"]

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Cluster file; flags win over what it says.")
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


@contextlib.contextmanager
def stderr_log(level: str, remarks: Iterable[str]) -> Iterator[EventLog]:
    """The event log of this process; what the cluster file gave reason to remark comes first. Flushed at the end.

    Raises:
        ConfigError: there is no such level.
    """
    from exaserve.observe import EventLog, LineSink
    from exaserve.observe.log import LEVELS

    if level not in LEVELS:
        raise ConfigError(f"--log-level: {level!r} is none of {', '.join(LEVELS)}", param="--log-level")
    sink = LineSink(sys.stderr)
    try:
        log = EventLog(sink, level=level)
        for remark in remarks:
            log.warning("config_remark", remark=remark)
        yield log
    finally:
        sink.close()
