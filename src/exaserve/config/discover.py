"""Sources of replicas as ``--discover`` writes them: a URL, with the cluster file's own keys after ``?``."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from exaserve.config.cluster import SCHEMA
from exaserve.config.convert import Reader
from exaserve.config.document import Item, resolve_scalar
from exaserve.config.sources import SOURCE_KINDS, DiscoverySettings, discovery_problems
from exaserve.domain.errors import ConfigError

__all__ = ["merge_discovery", "source_from_url"]

_EXAMPLES = "consul://host:8500/service, kubernetes://namespace/service, dns:///_http._tcp.name, file:///path"


def source_from_url(url: str) -> DiscoverySettings:
    """One source as ``--discover`` writes it; further settings as in ``?datacenter=dc1&token_file=/path&wait=30s``.

    Raises:
        ConfigError: with what is wrong. It shows no more than the URL's scheme, host and path.
    """
    try:
        parts = urlsplit(url)
        shown = f"--discover {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        more = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigError(f"--discover: {error}; write one of {_EXAMPLES}", param="--discover") from None
    kind = {"k8s": "kubernetes", "consuls": "consul"}.get(parts.scheme, parts.scheme)
    if kind not in SOURCE_KINDS:
        raise ConfigError(
            f"{shown}: {parts.scheme!a} is no kind of source; write one of {_EXAMPLES}", param="--discover"
        )
    path = unquote(parts.path).strip("/")
    values: dict[str, list[str]] = {}
    if kind == "consul":
        scheme = "https" if parts.scheme == "consuls" else "http"
        servers = (parts.netloc or "127.0.0.1:8500").split(",")
        values = {"service": [path], "servers": [f"{scheme}://{each}" for each in servers]}
    elif kind == "kubernetes":
        values = {"namespace": [parts.netloc]} | ({"service": [path]} if path else {})
    elif kind == "dns":
        values = {"name": [path]} | ({"nameservers": parts.netloc.split(",")} if parts.netloc else {})
    else:
        values = {"path": [unquote(parts.netloc + parts.path)]}
    said: dict[str, list[str]] = {}
    for key, value in more:
        said.setdefault(key, []).append(value)
    reader = Reader(SCHEMA)
    item = Item({kind: _as_written(reader, kind, values | said)}, 0, 0)
    settings = reader.read(DiscoverySettings, item)
    problems = [(each.path, each.message) for each in reader.problems]
    if settings is not None and not problems:
        problems = discovery_problems(settings)
    for field, message in problems:
        raise ConfigError(f"{shown}: {field}: {message}", param="--discover")
    return settings or DiscoverySettings()


def _as_written(reader: Reader, kind: str, said: Mapping[str, list[str]]) -> Item:
    """A query's values as the file would write them: lists with commas or repeated, numbers as numbers."""
    record = reader.record_of(DiscoverySettings, kind)
    values: dict[str, Item] = {}
    for key, texts in said.items():
        wanted = reader.type_of(record, key)
        if wanted == tuple[str, ...]:
            parts = [part for text in texts for part in text.split(",") if part]
            values[key] = Item([Item(part, 0, 0) for part in parts], 0, 0)
        else:
            values[key] = Item(texts[-1] if wanted is str else resolve_scalar(texts[-1]), 0, 0)
    return Item(values, 0, 0)


def merge_discovery(base: DiscoverySettings, urls: list[str]) -> DiscoverySettings:
    """The file's sources and those of ``--discover``. ConfigError where one kind is named twice."""
    for url in urls:
        more = source_from_url(url)
        for kind in SOURCE_KINDS:
            value = getattr(more, kind)
            if value is not None:
                if getattr(base, kind) is not None:
                    raise ConfigError(f"--discover {kind}: there is a {kind} source already", param="--discover")
                base = msgspec.structs.replace(base, **{kind: value})
    return base
