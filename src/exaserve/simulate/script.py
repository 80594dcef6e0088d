"""What happens to a cluster during a run: a list of events in YAML.

::

    - {at: 20s, fail: node3/*}              # processes gone: connections are refused, requests in flight are lost
    - {at: 50s, recover: node3/*}           # new processes, with empty caches
    - {at: 60s, unplug: 2}                  # two replicas, drawn at random, off the network: silence
    - {at: 70s, freeze: node1/r0}           # alive but still; thaw ends it
    - {at: 80s, slow: 10%, factor: 3}       # steps take three times as long; factor 1 ends it
    - {at: 80s, errors: node1/r1, share: 1} # answers 500; share 0 ends it
    - {at: 90s, drain: node2/*}             # undrain ends it
    - {at: 90s, weight: "version:v2", share: 0.1}
    - {at: 95s, add: 12, version: v2, ready: 30s}
    - {at: 99s, remove: "version:v1"}
    - {at: 100s, rollout: v2, batch: 4, ready: 20s}
    - {at: 110s, rate: 1.5}                 # factor on the arrival rate from here on

Replicas are named by a pattern on their ids, by ``version:NAME``, by a number or a percentage (drawn at random under
the run's seed), or by ``all``.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from exaserve.domain.errors import ConfigError

__all__ = ["ACTIONS", "ScriptEvent", "load_script", "parse_script", "rate_factors", "select"]

ACTIONS: dict[str, tuple[str, ...]] = {
    "fail": (),
    "recover": (),
    "unplug": (),
    "freeze": (),
    "thaw": (),
    "slow": ("factor",),
    "errors": ("share",),
    "drain": (),
    "undrain": (),
    "weight": ("share",),
    "add": ("version", "ready", "factor"),
    "remove": (),
    "rollout": ("batch", "ready", "factor"),
    "rate": (),
}
"""Actions and the options each may have."""
_REQUIRED = {"slow": "factor", "errors": "share", "weight": "share"}
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_EVENTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ScriptEvent:
    """One entry of a script.

    Attributes:
        at_s: seconds from the start of the run.
        what: which replicas, how many, which version, or the rate's factor, as the file has it.
    """

    at_s: float
    action: str
    what: str
    version: str = ""
    factor: float = 1.0
    share: float = 1.0
    ready_s: float = 0.0
    batch: int = 1


def load_script(path: Path) -> tuple[ScriptEvent, ...]:
    """Events of a file. ConfigError where it cannot be read or says something that is not understood."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--events: {path} cannot be read: {error}", param="--events") from None
    return parse_script(text, str(path))


def parse_script(text: str, name: str = "events") -> tuple[ScriptEvent, ...]:
    """Events of a text, in order of time. ConfigError as :func:`load_script`."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {error}", param="--events") from None
    if isinstance(tree, Mapping) and set(tree) == {"events"}:
        tree = tree["events"]
    if not isinstance(tree, Sequence) or isinstance(tree, str):
        raise ConfigError(f"{name}: must be a list of events, such as - {{at: 20s, fail: node1/*}}", param="--events")
    if len(tree) > _EVENTS_MAX:
        raise ConfigError(f"{name}: {len(tree)} events are more than {_EVENTS_MAX}", param="--events")
    events = [_event(entry, f"{name}[{index}]") for index, entry in enumerate(tree)]
    return tuple(sorted(events, key=lambda event: event.at_s))


def _event(entry: Any, where: str) -> ScriptEvent:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: must be a mapping with at and an action", param=where)
    actions = [key for key in entry if key in ACTIONS]
    if len(actions) != 1 or "at" not in entry:
        raise ConfigError(f"{where}: needs at and exactly one of {', '.join(ACTIONS)}", param=where)
    action = actions[0]
    for key in entry:
        if key not in ("at", action, *ACTIONS[action]):
            allowed = ", ".join(("at", *ACTIONS[action]))
            raise ConfigError(f"{where}: {key} is no option of {action}; it has {allowed}", param=where)
    needed = _REQUIRED.get(action)
    if needed is not None and needed not in entry:
        raise ConfigError(f"{where}: {action} needs {needed}", param=where)
    what = str(entry[action]).strip()
    event = ScriptEvent(
        _seconds(entry["at"], f"{where}.at"),
        action,
        what,
        str(entry.get("version", "")),
        _number(entry.get("factor", 1.0), f"{where}.factor"),
        _number(entry.get("share", 1.0), f"{where}.share"),
        _seconds(entry.get("ready", 0.0), f"{where}.ready"),
        int(_number(entry.get("batch", 1), f"{where}.batch")),
    )
    if action in ("rate", "add"):
        _number(what, f"{where}.{action}")
    if event.factor <= 0.0 or event.batch < 1:
        raise ConfigError(f"{where}: factor must be above 0 and batch at least 1", param=where)
    if action == "errors" and event.share > 1.0:
        raise ConfigError(f"{where}: share must be from 0 to 1", param=where)
    return event


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0.0):
        raise ConfigError(f"{where}: {value!r} must be a number of at least 0", param=where)
    return number


def _seconds(value: Any, where: str) -> float:
    """A number of seconds, or one with a unit: 250ms, 20s, 5m, 1h."""
    text = str(value).strip()
    for unit in ("ms", "s", "m", "h"):
        if text.endswith(unit) and text.removesuffix(unit).strip()[-1:].isdigit():
            return _number(text.removesuffix(unit), where) * _DURATIONS[unit]
    return _number(text, where)


def rate_factors(events: Sequence[ScriptEvent]) -> tuple[tuple[float, float], ...]:
    """``(from second, factor)`` of the script's rate events."""
    return tuple((event.at_s, float(event.what)) for event in events if event.action == "rate")


def select(what: str, replicas: Sequence[tuple[str, str]], rng: Random) -> list[str]:
    """Ids that ``what`` names among ``(id, version)`` pairs.

    Raises:
        ConfigError: it names none.
    """
    ids = [replica for replica, _ in replicas]
    if what == "all":
        chosen = ids
    elif what.startswith("version:"):
        chosen = [replica for replica, version in replicas if version == what.removeprefix("version:")]
    elif what.endswith("%") and what[:-1].replace(".", "", 1).isdigit():
        chosen = rng.sample(ids, min(len(ids), max(1, round(len(ids) * float(what[:-1]) / 100.0))))
    elif what.isdigit():
        chosen = rng.sample(ids, min(len(ids), int(what)))
    else:
        chosen = [replica for replica in ids if fnmatch.fnmatchcase(replica, what)]
    if not chosen:
        raise ConfigError(f"events: {what!r} names no replica; the first is {ids[0] if ids else 'missing'}")
    return chosen
