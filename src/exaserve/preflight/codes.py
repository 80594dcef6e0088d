"""The codes of findings and their pages. The texts are data (``data/codes.yaml``), read by the caller."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from exaserve.domain.errors import ConfigError

__all__ = ["CodeEntry", "parse_codes", "render_index", "render_page"]


class CodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One code: a title, what it means and how it is judged, what to do."""

    title: str
    means: str
    repair: str


def parse_codes(document: object, where: str) -> dict[str, CodeEntry]:
    """Codes by name, in the file's order.

    Raises:
        ConfigError: the document has another shape, or a name is no code.
    """
    try:
        found = msgspec.convert(document, dict[str, CodeEntry])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    for name in found:
        if not re.fullmatch(r"PF-[A-Z]+-\d{3}", name):
            raise ConfigError(f"{where}: {name} is not a code such as PF-TOPO-003")
    return found


def render_page(code: str, entry: CodeEntry) -> str:
    """The page of a code, Markdown."""
    return f"# {code}: {entry.title}\n\n{entry.means}\n\n## Repair\n\n{entry.repair}\n"


def render_index(codes: Mapping[str, CodeEntry]) -> str:
    """The list of all pages, for docs/preflight/README.md."""
    rows = [f"| [{code}]({code}.md) | {entry.title} |" for code, entry in codes.items()]
    return "\n".join(["| code | finding |", "| --- | --- |", *rows]) + "\n"
