"""YAML text to a tree whose every value knows its line, so that an error can point at it.

Stricter than PyYAML: a key that stands twice is an error, keys are text, and of the many spellings of scalars only
those of YAML's core schema count (``no`` is text, ``1:30`` is text), so that a model called ``on`` is not a boolean.
Aliases and merge keys are refused: they make a tree of unbounded size from a short text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML was built with it: ten times as fast, which a file of megabytes needs."""

__all__ = ["DEPTH_MAX", "TEXT_BYTES_MAX", "Item", "Problem", "parse_document", "resolve_scalar"]

TEXT_BYTES_MAX = 16 * 1024 * 1024
"""A file with 3,072 replicas spelt out takes about half a megabyte."""
DEPTH_MAX = 32
"""Mappings and lists inside each other; the cluster file needs six."""

_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DIGITS_MAX = 30


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file: which field, what, the repair, and where (from 1; 0 is unknown)."""

    path: str
    message: str
    line: int = 0
    column: int = 0
    remark: bool = False
    """Worth a thought, but no mistake."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value and where it stands. ``value`` is a scalar, a list of items, or a dict of text to items."""

    value: Any
    line: int
    column: int
    key_line: int = 0
    """Line of the key in front of it, or 0."""
    text: str = ""
    """A scalar as it stands in the file."""


def parse_document(text: str | bytes) -> tuple[Item | None, list[Problem]]:
    """The tree of a YAML text (None if it is empty or cannot be read), and every problem met."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        return None, [Problem("", f"the file is larger than {TEXT_BYTES_MAX // 2**20} MiB; is it the right one?")]
    try:
        events = _Loader(text)
    except (yaml.YAMLError, UnicodeError) as error:
        return None, [_unreadable(error, text)]
    try:
        return _compose(events)
    except (yaml.YAMLError, UnicodeError) as error:
        return None, [_unreadable(error, text)]
    finally:
        events.dispose()


def _compose(loader: Any) -> tuple[Item | None, list[Problem]]:
    """Walks parser events with a stack of our own: deep nesting ends in an error, not in Python's recursion limit."""
    builder = _Builder()
    while loader.check_event():
        event = loader.get_event()
        if isinstance(event, yaml.DocumentStartEvent) and builder.documents:
            mark = event.start_mark
            builder.problem("the file holds several documents (---); only one is read", mark)
            break
        builder.take(event)
        if builder.too_deep:  # PyYAML's time grows with the square of the depth: do not read on
            break
    return builder.root, builder.problems


@dataclass(slots=True)
class _Frame:
    item: Item
    path: str
    key: str | None = None
    key_line: int = 0
    expects_key: bool = True


class _Builder:
    def __init__(self) -> None:
        self.root: Item | None = None
        self.problems: list[Problem] = []
        self.documents = 0
        self.too_deep = False
        self._stack: list[_Frame] = []
        self._skip_depth = 0

    def problem(self, message: str, mark: Any, path: str = "") -> None:
        self.problems.append(Problem(path, message, mark.line + 1, mark.column + 1))

    def take(self, event: Any) -> None:
        mark = event.start_mark
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
        elif isinstance(event, yaml.AliasEvent):
            self.problem("YAML aliases (*name) are not supported here; write the value out", mark, self._here())
            self._add(Item(None, mark.line + 1, mark.column + 1))
        elif isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open({} if isinstance(event, yaml.MappingStartEvent) else [], mark)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close()

    def _here(self) -> str:
        if not self._stack:
            return ""
        frame = self._stack[-1]
        if isinstance(frame.item.value, list):
            return f"{frame.path}[{len(frame.item.value)}]"
        return f"{frame.path}.{frame.key}".lstrip(".") if frame.key is not None else frame.path

    def _open(self, value: dict[str, Item] | list[Item], mark: Any) -> None:
        path = self._here()
        item = Item(value, mark.line + 1, mark.column + 1)
        if self._skip_depth:
            self._skip_depth += 1
            self.too_deep = self._skip_depth > DEPTH_MAX
            return
        if len(self._stack) >= DEPTH_MAX:
            self.problem(f"nested deeper than {DEPTH_MAX} levels", mark, path)
            self.too_deep = True
            return
        if self._awaits_key():
            self.problem("a key must be text; a list or mapping stands where a key belongs", mark, path)
            self._skip_depth += 1
            return
        self._add(item)
        self._stack.append(_Frame(item, path))

    def _close(self) -> None:
        if self._skip_depth:
            self._skip_depth -= 1
            if not self._skip_depth:
                self._stack[-1].key, self._stack[-1].expects_key = None, False
        else:
            self._stack.pop()

    def _awaits_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].item.value, dict) and self._stack[-1].expects_key

    def _add_scalar(self, event: Any) -> None:
        mark = event.start_mark
        if self._skip_depth:
            return
        if self._awaits_key():
            frame = self._stack[-1]
            frame.key, frame.key_line, frame.expects_key = event.value, mark.line + 1, False
            self._check_key(frame, mark)
            return
        plain = not event.style and event.tag in (None, "!")
        value = event.value
        if plain:
            value = resolve_scalar(event.value)
        elif event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self.problem(f"YAML tags ({event.tag}) are not supported here", mark, self._here())
        self._add(Item(value, mark.line + 1, mark.column + 1, text=event.value))

    def _check_key(self, frame: _Frame, mark: Any) -> None:
        key = frame.key
        if key == "<<":
            self.problem("YAML merge keys (<<) are not supported here; write the values out", mark, frame.path)
            frame.key = None
        elif key in frame.item.value:
            first = frame.item.value[key].key_line
            self.problem(f"stands twice, first in line {first}; keep one", mark, f"{frame.path}.{key}".lstrip("."))
            frame.key = None

    def _add(self, item: Item) -> None:
        if not self._stack:
            self.root = item
            return
        frame = self._stack[-1]
        if isinstance(frame.item.value, list):
            frame.item.value.append(item)
            return
        if frame.key is not None:
            frame.item.value[frame.key] = Item(item.value, item.line, item.column, frame.key_line, item.text)
        frame.key, frame.expects_key = None, True


def resolve_scalar(text: str) -> str | bool | float | None:
    """A plain scalar by YAML's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _DIGITS_MAX:
        return text
    if _INT.fullmatch(text):
        return int(text, 16) if text.startswith("0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(
            text.replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf").lower().replace(".nan", "nan")
        )
    return text


def _unreadable(error: Exception, text: str | bytes) -> Problem:
    """A YAML syntax error, with the hint that helps most people."""
    if isinstance(error, yaml.reader.ReaderError):
        return Problem("", f"not a text file in UTF-8: {error.reason} at byte {error.position}")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem("", f"cannot be read as YAML: {error}")
    mark = error.problem_mark or error.context_mark
    what = (error.problem or error.context or "not valid YAML").replace("'\\t'", "a tab")
    if mark is not None and "cannot start any token" in what and _character_at(text, mark.line, mark.column) == "\t":
        what = "found a tab where a value begins"
    hint = ""
    if "a tab" in what or "\\t" in what:
        hint = ". Indent with spaces, not tabs"
    elif "mapping values are not allowed" in what:
        hint = ". Is the line above complete, or does a text with ': ' need quotes?"
    elif "expected <block end>" in what or "could not find expected ':'" in what:
        hint = ". Check the indentation of this line and the one above, and that a space follows each colon"
    if mark is None:
        return Problem("", f"not valid YAML: {what}{hint}")
    return Problem("", f"not valid YAML: {what}{hint}", mark.line + 1, mark.column + 1)


def _character_at(text: str | bytes, line: int, column: int) -> str:
    lines = (text if isinstance(text, str) else text.decode("utf-8", "replace")).splitlines()
    return lines[line][column : column + 1] if line < len(lines) else ""
