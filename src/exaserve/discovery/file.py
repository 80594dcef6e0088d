"""A file that others write: watched by its time and size, read again without a restart.

Polling, because inotify sees nothing on network file systems and misses a file that is replaced by rename.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import yaml

from exaserve.discovery.entries import KEYS, Defaults, spec_of
from exaserve.discovery.feed import Source, SourceError, Tell, silent
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaSpec

__all__ = ["FILE_BYTES_MAX", "FileDiscovery", "FileStamp", "read_targets"]

FILE_BYTES_MAX = 64 * 2**20
FileStamp = tuple[int, int, int]
"""Modification time in ns, size in bytes, inode: a file that was written or replaced differs in one of them."""


def stamp_of(path: Path) -> FileStamp:
    """OSError where there is no such file."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class FileDiscovery(Source):
    """Replicas from a file.

    A file that is gone or wrong leaves the last good list as it is.

    Args:
        interval_s: between two looks.
    """

    def __init__(
        self,
        path: str | Path,
        defaults: Defaults | None = None,
        *,
        interval_s: float = 1.0,
        name: str = "",
        tell: Tell = silent,
        rng: Random | None = None,
    ) -> None:
        super().__init__(name or f"file:{path}", tell, rng)
        self._path = Path(path)
        self._defaults = defaults or Defaults()
        self._interval_s = interval_s

    async def _follow(self) -> None:
        seen: FileStamp | None = None
        while True:
            try:
                stamp = await asyncio.to_thread(stamp_of, self._path)
                if stamp != seen:
                    specs, wrong = await asyncio.to_thread(read_targets, self._path, self._defaults)
                    self._well()
                    for entry, why in wrong.items():
                        self._ignore(entry, why)
                    self.publish(specs)
                    seen = stamp
            except ConfigError as error:
                raise SourceError(error.message) from None
            except OSError as error:
                raise SourceError(f"{self._path}: cannot be read: {error.strerror or error}") from None
            await asyncio.sleep(self._interval_s)


def read_targets(path: Path, defaults: Defaults) -> tuple[list[ReplicaSpec], dict[str, str]]:
    """A list of replicas in YAML or JSON: ``host:port`` each, or a mapping with ``url`` and the keys of KEYS.

    Returns:
        The replicas, and of each entry that is none what is wrong.

    Raises:
        ConfigError: it is no list, or holds entries and none of them is a replica.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than {FILE_BYTES_MAX} bytes", param=str(path))
    try:
        listed = yaml.load(data, Loader=_Loader)  # noqa: S506 (a SafeLoader, as its base says)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ConfigError(f"{path}: cannot be read: {problem}", param=str(path)) from None
    if listed is None:
        listed = []
    if not isinstance(listed, list):
        raise ConfigError(f"{path}: must be a list of replicas, such as - host:port", param=str(path))
    specs: list[ReplicaSpec] = []
    wrong: dict[str, str] = {}
    for i, each in enumerate(listed):
        try:
            specs.append(_target(each, defaults))
        except ValueError as error:
            wrong[f"[{i}]{_name_of(each)}"] = str(error)
    if wrong and not specs:
        entry, why = next(iter(wrong.items()))
        raise ConfigError(f"{path}: none of its {len(wrong)} entries is a replica; {entry}: {why}", param=entry)
    return specs, wrong


class _Loader(yaml.SafeLoader):
    """Without aliases: a short text must not grow into a long list."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not understood here")
        return super().compose_node(parent, index)


def _name_of(each: object) -> str:
    """What the file itself calls an entry, to find it by."""
    name = each.get("id") or each.get("url") if isinstance(each, dict) else each
    return f" {name[:80]}" if name and isinstance(name, str) else ""


def _target(each: object, defaults: Defaults) -> ReplicaSpec:
    said: dict[str, str] = {}
    if isinstance(each, dict):
        wrong = [str(key) for key in each if key not in (*KEYS, "id", "url", "model")]
        if wrong:
            raise ValueError(f"{wrong[0]!a}: unknown key; valid here: id, url, {', '.join(KEYS)}")
        said = {
            key: ",".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in each.items()
        }
        url = said.pop("url", "")
    elif isinstance(each, str):
        url = each
    else:
        raise ValueError(f"must be host:port or a mapping with url, not {each!r}")  # noqa: TRY004 (of the file, not code)
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdigit() or len(port) > 5:
        raise ValueError(f"url: {url!a} is not an address; write http://host:port")
    return spec_of(said.get("id", "") or f"{host}:{port}", host.strip("[]"), int(port), said, defaults)
