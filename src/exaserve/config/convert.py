"""A tree of items into frozen dataclasses and msgspec structs, by their annotations; every problem is collected.

The classes are the schema: there is no second description of the keys. Three rules tie a field to its key in the file:

- the key is the field's name, or the spelling that :class:`Schema` gives it (``strategy`` for ``policy``);
- a field ``name_s`` is a duration: its key is ``name`` with a value such as ``200ms`` (a number means seconds);
  ``name_s`` and ``name_ms`` with a plain number are understood too;
- a field ``…_bytes`` or ``…bytes_max`` is a size: ``64MiB`` or a number of bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union

import msgspec

from exaserve.config.document import Item, Problem
from exaserve.config.scalars import duration_s, show_duration, size_bytes

__all__ = ["OFF", "Limits", "Reader", "Schema", "fields_of", "is_record", "key_of", "names_of", "unknown_choice"]

OFF = "off"
_INT_MAX = 2**53
_INVALID = object()
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Limits:
    """Range of a number, both ends allowed unless ``above``; ``None`` is no bound."""

    low: float | None = 0
    high: float | None = None
    above: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """What annotations cannot say.

    Attributes:
        spelling: class to {field: key in the file}.
        limits: class to {field: range}; a number without one must be 0 or more.
        also: class to {key: what to say}, for keys of other tools that people will try.
        off: class to {field: number that makes a limit never apply}; in the file that is ``off``.
    """

    spelling: Mapping[type, Mapping[str, str]] = field(default_factory=dict)
    limits: Mapping[type, Mapping[str, Limits]] = field(default_factory=dict)
    also: Mapping[type, Mapping[str, str]] = field(default_factory=dict)
    off: Mapping[type, Mapping[str, float]] = field(default_factory=dict)


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def fields_of(kind: Any) -> dict[str, Any]:
    """Field names and resolved types of a record class."""
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in names_of(kind)}


def names_of(kind: Any) -> tuple[str, ...]:
    """Field names of a record class; much cheaper than their types."""
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    return tuple(f.name for f in dataclasses.fields(kind))


def key_of(kind: type, name: str, schema: Schema) -> str:
    """The key that stands for a field in the file (and in ``config show``)."""
    key = schema.spelling.get(kind, {}).get(name, name)
    return key[:-2] if _is_duration(key) else key


def _is_duration(name: str) -> bool:
    return name.endswith("_s") and not name.endswith(("_per_s", "_mb_s"))


def _is_size(name: str) -> bool:
    return name.endswith(("_bytes", "bytes_max"))


class Reader:
    """Converts items. With :attr:`problems` the value is only good for looking for more problems."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[type, dict[str, tuple[str, Any]]] = {}
        self._needed: dict[type, list[str]] = {}
        self.problems: list[Problem] = []
        self.given: dict[str, Item] = {}
        """Path of every field that the file sets: tells a default from a choice, and where to point."""

    def read(self, kind: type[_Record], item: Item, path: str = "") -> _Record | None:
        """``item`` as a ``kind``, or None after a problem."""
        value = self._record(kind, item, path)
        return None if value is _INVALID else value

    def type_of(self, kind: type, key: str) -> Any:
        """The type of the field that ``key`` names in the file, None where there is no such key."""
        return self._keys(kind).get(key, ("", None))[1]

    def record_of(self, kind: type, key: str) -> type:
        """The record class of an optional section."""
        record: type = next(each for each in typing.get_args(self.type_of(kind, key)) if is_record(each))
        return record

    def problem(self, path: str, message: str, item: Item | None = None) -> None:
        if item is None:
            self.problems.append(Problem(path, message))
        else:
            self.problems.append(
                Problem(path, message, item.key_line or item.line, 0 if item.key_line else item.column)
            )

    # -- one method for each kind of type ---------------------------------------------------------------------------

    def _value(self, kind: Any, item: Item, path: str, limits: Limits | None) -> Any:
        origin = typing.get_origin(kind)
        if origin in (Union, types.UnionType):
            return self._union(typing.get_args(kind), item, path, limits)
        if origin is Literal:
            return self._literal(typing.get_args(kind), item, path)
        if origin is tuple:
            return self._tuple(typing.get_args(kind)[0], item, path)
        if origin in (dict, Mapping):
            return self._mapping(typing.get_args(kind)[1], item, path)
        if is_record(kind):
            return self._record(kind, item, path)
        if kind is bool:
            return item.value if isinstance(item.value, bool) else self._wrong("true or false", item, path)
        if kind is int or kind is float:
            return self._number(kind, item, path, limits or Limits())
        return self._text(item, path)

    def _wrong(self, wanted: str, item: Item, path: str) -> Any:
        self.problem(path, f"must be {wanted}, not {_describe(item.value)}", item)
        return _INVALID

    def _text(self, item: Item, path: str) -> Any:
        if isinstance(item.value, str):
            return (
                item.value if item.value.isprintable() else self._wrong("text without control characters", item, path)
            )
        if isinstance(item.value, int | float):
            return self._wrong(f'text; put it in quotes: "{item.text or item.value}"', item, path)
        return self._wrong("text", item, path)

    def _number(self, kind: type, item: Item, path: str, limits: Limits) -> Any:
        value = item.value
        wanted = "a whole number" if kind is int else "a number"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._wrong(wanted, item, path)
        if kind is int and isinstance(value, float):
            return self._wrong(wanted, item, path)
        if not math.isfinite(value) or abs(value) > _INT_MAX:
            return self._wrong("a finite number of sensible size", item, path)
        message = _out_of_range(value, limits, show=str)
        if message:
            self.problem(path, message, item)
            return _INVALID
        return kind(value)

    def _union(self, kinds: tuple[Any, ...], item: Item, path: str, limits: Limits | None) -> Any:
        """Alternatives differ by what stands in the file: nothing, a number, text, a list, or a mapping."""
        if item.value is None and type(None) in kinds:
            return None
        for kind in kinds:
            if _takes(kind, item.value):
                return self._value(kind, item, path, limits)
        return self._wrong(" or ".join(_name(kind) for kind in kinds if kind is not type(None)), item, path)

    def _literal(self, choices: tuple[Any, ...], item: Item, path: str) -> Any:
        if item.value in choices and not isinstance(item.value, bool):
            return item.value
        self.problem(path, unknown_choice(item.value, [str(c) for c in choices]), item)
        return _INVALID

    def _tuple(self, kind: Any, item: Item, path: str) -> Any:
        if not isinstance(item.value, list):
            return self._wrong("a list", item, path)
        values = []
        for i, each in enumerate(item.value):
            self.given[f"{path}[{i}]"] = each
            values.append(self._value(kind, each, f"{path}[{i}]", None))
        return _INVALID if any(value is _INVALID for value in values) else tuple(values)

    def _mapping(self, kind: Any, item: Item, path: str) -> Any:
        if not isinstance(item.value, dict):
            return self._wrong("a mapping (key: value)", item, path)
        values = {key: self._value(kind, each, _join(path, key), None) for key, each in item.value.items()}
        return _INVALID if any(value is _INVALID for value in values.values()) else values

    def _record(self, kind: Any, item: Item, path: str) -> Any:
        if item.value is None:
            item = Item(
                {}, item.line, item.column, item.key_line
            )  # `gateway:` with nothing under it means its defaults
        if not isinstance(item.value, dict):
            return self._wrong("a mapping (key: value)", item, path)
        known = self._keys(kind)
        values: dict[str, Any] = {}
        set_by: dict[str, str] = {}
        for key, each in item.value.items():
            here = _join(path, key)
            if key not in known:
                self.problem(here, self._unknown_key(kind, key, known), each)
                continue
            name, hint = known[key]
            if name in set_by:
                self.problem(here, f"says the same as {set_by[name]}; keep one", each)
                continue
            set_by[name] = key
            self.given[_join(path, name)] = self.given[here] = each
            values[name] = self._field(kind, name, hint, key, each, here)
        valid = {name: value for name, value in values.items() if value is not _INVALID}
        if kind not in self._needed:
            self._needed[kind] = _required(kind)
        lacking = [name for name in self._needed[kind] if name not in valid]
        for name in lacking:
            if name not in values:
                self.problem(_join(path, key_of(kind, name, self._schema)), "is missing", item)
        if lacking:
            return _INVALID
        try:
            # A wrong value counts as not given, so that the checks between values still find what else is wrong.
            return kind(**valid)
        except (ValueError, TypeError) as error:
            self._contradiction(kind, str(error), item, path)
            return _INVALID

    def _contradiction(self, kind: Any, message: str, item: Item, path: str) -> None:
        """What a record says of its own values, with the keys as the file has them and the line of the first named."""
        first = message.partition(" ")[0]
        here = item
        for name in names_of(kind):
            written = key_of(kind, name, self._schema)
            if name == first:
                here = self.given.get(_join(path, name), item)
                path, message = _join(path, written), message.removeprefix(first).lstrip()
            message = re.sub(rf"\b{name}\b", written, message)
        self.problem(path, message, here)

    def _field(self, kind: type, name: str, hint: Any, key: str, item: Item, path: str) -> Any:
        limits = self._schema.limits.get(kind, {}).get(name)
        if item.value == OFF and name in self._schema.off.get(kind, {}):
            return self._schema.off[kind][name]
        if _is_duration(name) and hint in (int, float, float | None):
            if item.value is None and hint == float | None:
                return None
            return self._duration(hint, key, item, path, limits or Limits())
        if _is_size(name) and hint is int and isinstance(item.value, str):
            return self._parsed(size_bytes, item, path, limits or Limits(), str)
        return self._value(hint, item, path, limits)

    def _duration(self, kind: Any, key: str, item: Item, path: str, limits: Limits) -> Any:
        if isinstance(item.value, bool) or not isinstance(item.value, int | float | str):
            return self._wrong("a duration such as 200ms, 5s or 2m", item, path)
        if key.endswith(("_s", "_ms")):
            if isinstance(item.value, str):
                return self._wrong(
                    f"a plain number, since the key names the unit; or write {key.rsplit('_', 1)[0]}", item, path
                )
            scale = 1e-3 if key.endswith("_ms") else 1.0
            item = Item(item.value * scale, item.line, item.column, item.key_line)
        seconds = self._parsed(duration_s, item, path, limits, show_duration)
        if seconds is _INVALID or kind is not int:
            return seconds
        return int(seconds) if seconds == int(seconds) else self._wrong("whole seconds", item, path)

    def _parsed(self, parse: Any, item: Item, path: str, limits: Limits, show: Any) -> Any:
        try:
            value = parse(item.value)
        except (ValueError, OverflowError) as error:
            self.problem(path, str(error), item)
            return _INVALID
        message = _out_of_range(value, limits, show) if abs(value) <= _INT_MAX else "is too large"
        if message:
            self.problem(path, message, item)
            return _INVALID
        return value

    # -- keys ------------------------------------------------------------------------------------------------------

    def _keys(self, kind: type) -> dict[str, tuple[str, Any]]:
        """Every key that the file may use, to (field, type)."""
        known = self._known.setdefault(kind, {})
        for name, hint in fields_of(kind).items() if not known else ():
            for spelling in (self._schema.spelling.get(kind, {}).get(name, name), name):
                known[spelling] = (name, hint)
                if _is_duration(spelling):
                    known[spelling[:-2]] = known[spelling[:-2] + "_ms"] = (name, hint)
        return known

    def _unknown_key(self, kind: type, key: str, known: Mapping[str, Any]) -> str:
        advice = self._schema.also.get(kind, {}).get(key)
        if advice:
            return f"unknown key; {advice}"
        shown = [key_of(kind, name, self._schema) for name in fields_of(kind)]
        near = difflib.get_close_matches(key.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
        if near:
            name = known[near[0]][0]
            return f"unknown key; did you mean {key_of(kind, name, self._schema)}?"
        return f"unknown key; valid here: {', '.join(sorted(shown))}"


def unknown_choice(value: Any, choices: list[str]) -> str:
    """The message for a value that is not one of ``choices``, with the nearest one if there is one."""
    lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(str(value).lower(), list(lower), n=1, cutoff=0.5)
    repair = f"; did you mean {lower[near[0]]}?" if near else ""
    return f"{_describe(value)} is not one of {', '.join(choices)}{repair}"


def _out_of_range(value: float, limits: Limits, show: Any) -> str:
    low, high = limits.low, limits.high
    if low is not None and (value <= low if limits.above else value < low):
        least = f"above {show(low)}" if limits.above else f"{show(low)} or more"
    elif high is not None and value > high:
        least = f"{show(high)} or less"
    else:
        return ""
    return f"must be {least}, not {show(value)}" + (f"; {limits.hint}" if limits.hint else "")


def _required(kind: Any) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return [f.name for f in msgspec.structs.fields(kind) if f.required]
    return [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]


def _takes(kind: Any, value: Any) -> bool:
    if is_record(kind):
        return isinstance(value, dict)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list)
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return kind is not type(None) and isinstance(value, str)


def _name(kind: Any) -> str:
    if is_record(kind):
        return "a mapping"
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "a list")


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, key: str) -> str:
    key = key if key.isprintable() and len(key) <= 80 else ascii(key)[:80]
    return f"{path}.{key}" if path else key
