#!/usr/bin/env python3
"""Writes the table of keys in docs/cluster-file.md from the classes that read the file: ``--check`` only compares.

The classes are the schema (docs/decisions/0002), so their fields, defaults, ranges and docstrings are all there is to
say of a key. Exit code 1: with ``--check``, the page is not in step.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union

import msgspec

from exaserve.config.cluster import SCHEMA, ClusterFile, NodeEntry, Pool, ReplicaEntry
from exaserve.config.convert import fields_of, is_record, key_of
from exaserve.config.scalars import show_duration
from exaserve.domain.replica import ReplicaSpec

PAGE = Path(__file__).parent.parent / "docs" / "cluster-file.md"
BEGIN = "<!-- keys: written by scripts/config_reference.py -->"
END = "<!-- end of keys -->"
CELL_MAX = 200
"""Characters of a meaning in the table; what is longer goes on below it."""
_ENTRY = re.compile(r"(\w+(?: / \w+)*): (.*)")
_TITLES = {ClusterFile: "The file, and one entry of `pools`", NodeEntry: "An entry of `nodes`",
           ReplicaEntry: "An entry of `replicas`"}  # fmt: skip


def reference() -> str:
    """All sections, Markdown."""
    parts = [_section(kind, path) for kind, path in _records()]
    return "\n\n".join(parts)


def _records() -> Iterator[tuple[type, str]]:
    yield ClusterFile, ""
    yield NodeEntry, "nodes[]"
    yield ReplicaEntry, "replicas[]"
    yield from _nested(ClusterFile, "")


def _nested(kind: type, path: str) -> Iterator[tuple[type, str]]:
    for name, hint in fields_of(kind).items():
        if (record := _record(hint)) is not None:
            here = f"{path}.{name}" if path else name
            yield record, here
            yield from _nested(record, here)


def _record(hint: Any) -> Any:
    """The record class of a hint, also of one that may be left out; None for other hints."""
    kinds = [each for each in (typing.get_args(hint) or (hint,)) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 and is_record(kinds[0]) else None


def _section(kind: type, path: str) -> str:
    title = _TITLES.get(kind, f"`{path}`")
    lines = [f"### {title}", ""]
    if any(_record(hint) is None for hint in fields_of(kind).values()):
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    said = _said(kind)
    limits = SCHEMA.limits.get(kind, {})
    below: list[str] = []
    for name, hint in fields_of(kind).items():
        if _record(hint) is not None:
            continue
        key = key_of(kind, name, SCHEMA)
        value = _value(name, hint, limits.get(name))
        if name in SCHEMA.off.get(kind, {}):
            value += ", or `off`"
        short, more = _split(said.get(name, ""))
        lines.append(f"| `{key}` | {value} | {_default(kind, name)} | {short} |")
        if more:
            below.append(textwrap.fill(f"`{key}`: {more}", 120, initial_indent="- ", subsequent_indent="  "))
    if below:
        lines += ["", *below]
    nested = [f"[`{name}`](#{_anchor(path, name)})" for name, hint in fields_of(kind).items() if _record(hint)]
    if nested:
        lines += ["", f"Sections: {', '.join(nested)}."]
    return "\n".join(lines)


def _split(meaning: str) -> tuple[str, str]:
    """What stands in the table, and what stands below it: a cell is no place for a paragraph."""
    if len(meaning) <= CELL_MAX:
        return meaning, ""
    ends = [found.end() - 1 for found in re.finditer(r"[.:;] ", meaning)]
    cut = max((end for end in ends if end <= CELL_MAX), default=min(ends, default=len(meaning)))
    short, more = meaning[:cut].rstrip(" :;"), meaning[cut:].strip()
    return (f"{short.rstrip('.')}; see below", more) if more else (meaning, "")


def _anchor(path: str, name: str) -> str:
    return f"{path}{name}".replace(".", "").lower()


def _value(name: str, hint: Any, limits: Any) -> str:
    if name.endswith("_s") and not name.endswith(("_per_s", "_mb_s")):
        kind = "duration"
    elif name.endswith(("_bytes", "bytes_max")):
        kind = "size"
    else:
        kind = _kind(hint)
    return kind + _range(limits)


def _range(limits: Any) -> str:
    if limits is None:
        return ""
    if limits.low is not None and limits.high is not None:
        return f", {'above ' if limits.above else ''}{limits.low:,} to {limits.high:,}"
    return f", {'above' if limits.above else 'at least'} {limits.low:,}" if limits.low or limits.above else ""


def _kind(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(each) for each in args if each is not type(None))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in args)
    if origin is tuple:
        return f"list of {_kind(args[0])}"
    if origin is dict:
        return "mapping"
    if is_record(hint):
        return {Pool: "pools", NodeEntry: "nodes", ReplicaEntry: "mappings"}.get(hint, "mapping")
    return {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}.get(hint, str(hint))


def _default(kind: type, name: str) -> str:
    if issubclass(kind, msgspec.Struct):
        field = next(each for each in msgspec.structs.fields(kind) if each.name == name)
        if field.required:
            return "required"
        value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[misc]
    else:
        value = kind.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    if value is None or value in ("", (), {}):
        return ""
    if name.endswith("_s") and not name.endswith(("_per_s", "_mb_s")):
        return f"`{show_duration(value)}`"
    if name.endswith(("_bytes", "bytes_max")) and value % 1024 == 0:
        return f"`{value // 2**20}MiB`" if value % 2**20 == 0 else f"`{value // 1024}KiB`"
    shown = str(value).lower() if isinstance(value, bool) else ", ".join(value) if isinstance(value, tuple) else value
    return f"`{shown:g}`" if isinstance(shown, float) else f"`{shown}`"


def _said(kind: type) -> dict[str, str]:
    """Field to its words, from the docstrings of the class and those it is made from."""
    said: dict[str, str] = {}
    classes = (ReplicaSpec,) if kind is ReplicaEntry else ()
    for each in (*classes, *reversed(kind.__mro__[:-1])):
        if each.__module__.startswith("exaserve."):
            said |= _entries(inspect.getdoc(each) or "")
            said |= _beside(each)
    return {name: _markdown(text) for name, text in said.items()}


def _entries(doc: str) -> dict[str, str]:
    """The "Attributes:" part of a docstring."""
    _, _, listed = doc.partition("Attributes:\n")
    said: dict[str, str] = {}
    names: list[str] = []
    for line in textwrap.dedent(listed).splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry:
            names = entry[1].split(" / ")
            said |= dict.fromkeys(names, entry[2])
        elif line.strip():
            said |= {name: f"{said[name]} {line.strip()}" for name in names}
    return said


def _beside(kind: type) -> dict[str, str]:
    """Texts that stand right below a field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    said = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            said[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return said


def _markdown(text: str) -> str:
    text = re.sub(r":(?:data|class|func|mod):`([^`]*)`", r"`\1`", text)
    text = re.sub(r"``(\w+)_s``", r"``\1``", text)  # durations have their unit in the value, not in the key
    return text.replace("``", "`").replace("|", "\\|")


def main(args: list[str]) -> int:
    page = PAGE.read_text("utf-8")
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name}: no place for the keys ({BEGIN} … {END})")
    wanted = f"{head}{BEGIN}\n\n{reference()}\n\n{END}{tail}"
    if wanted == page:
        return 0
    if "--check" in args:
        sys.stderr.write("docs/cluster-file.md is not in step; run: python scripts/config_reference.py\n")
        return 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
