"""Codes in the source, their texts, and the pages of docs/preflight are the same set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exaserve.cli.preflight import load_codes, load_expectations
from exaserve.domain.errors import ConfigError
from exaserve.preflight import (
    CHECKS,
    CodeEntry,
    check_named,
    parse_codes,
    parse_expectations,
    render_index,
    render_page,
)

ROOT = Path(__file__).resolve().parents[2]
ROOM = ROOT / "src" / "exaserve" / "preflight"
PAGES = ROOT / "docs" / "preflight"


def test_every_code_in_the_source_has_a_text_and_every_text_is_used(codes: dict[str, CodeEntry]) -> None:
    used = {code for file in ROOM.glob("*.py") for code in re.findall(r"PF-[A-Z]+-\d{3}", file.read_text())}
    used -= {"PF-TOPO-003"} if "PF-TOPO-003" not in (ROOM / "judge_topology.py").read_text() else set()
    assert used == set(codes)


def test_every_code_has_its_page_and_every_page_a_code(codes: dict[str, CodeEntry]) -> None:
    assert {page.stem for page in PAGES.glob("PF-*.md")} == set(codes)
    for code, entry in codes.items():
        assert (PAGES / f"{code}.md").read_text() == render_page(code, entry), "render the pages from codes.yaml again"
    assert (PAGES / "README.md").read_text().endswith(render_index(codes))


def test_numbers_have_no_holes(codes: dict[str, CodeEntry]) -> None:
    areas: dict[str, list[int]] = {}
    for code in codes:
        _, area, number = code.split("-")
        areas.setdefault(area, []).append(int(number))
    assert {area: numbers for area, numbers in areas.items() if numbers != list(range(1, len(numbers) + 1))} == {}


@pytest.mark.parametrize("code", sorted(load_codes()))
def test_texts_say_something(code: str, codes: dict[str, CodeEntry]) -> None:
    entry = codes[code]
    assert len(entry.title) > 5
    assert not entry.title.endswith(".")
    assert entry.means.endswith(".")
    assert entry.repair


def test_checks_have_unique_names_and_known_placeholders() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z0-9_]{1,40}", check.id)
        placeholders = set(re.findall(r"\{(weights|peer)\}", check.command))
        assert placeholders == set(check.needs) or check.manual
    assert check_named("none") is None


def test_machine_types_are_sound() -> None:
    found = load_expectations()
    assert len({machine.name for machine in found.machines}) == len(found.machines)
    for machine in found.machines:
        assert machine.source
        assert list(machine.nccl) == sorted(machine.nccl, key=lambda each: each.size_bytes)
        assert all(each.failed_gb_s < each.good_gb_s for each in machine.nccl)
        assert machine.group <= machine.cards or machine.cards == 0


def test_own_machine_types_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "machines:\n  - {name: ours, product: 'L40S', source: us, cards: 4}\nlimits: {loss_ratio_max: 1.0e-9}\n"
    )
    found = load_expectations(file)
    assert found.machines[0].name == "ours"
    assert found.limits.loss_ratio_max == 1e-9
    for bad in ("machines: [{name: x}]", "machines: [{name: x, product: '(', source: s}]", "limits: {loss: 1}", ": :"):
        file.write_text(bad)
        with pytest.raises(ConfigError, match=r"own\.yaml"):
            load_expectations(file)


def test_wrong_documents_are_configuration_errors() -> None:
    with pytest.raises(ConfigError):
        parse_codes({"PF-1": {"title": "t", "means": "m", "repair": "r"}}, "f")
    with pytest.raises(ConfigError):
        parse_codes([1], "f")
    with pytest.raises(ConfigError):
        parse_expectations(None, "f")
