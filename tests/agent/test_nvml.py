"""NVIDIA cards through a hand-made NVML: figures, cards that do not know some, cards and drivers that are gone."""

from __future__ import annotations

import importlib
import sys

import pytest
from tests.agent.nvml import NO_DRIVER, NOT_SUPPORTED, FakeCard, FakeNvml

from exaserve.agent.meters import Meters, Nvml
from exaserve.domain.replica import ReplicaId, Report
from exaserve.wire import Card


def test_every_figure_of_every_card() -> None:
    nvml = Nvml(FakeNvml([FakeCard(), FakeCard(free=1.04e9, gpu=0, celsius=88, ecc=3, reasons=0x40)]))
    assert nvml.read() == (
        Card(free_gb=60.2, total_gb=85.0, use=0.73, celsius=61.0, ecc_errors=0, throttled=False),
        Card(free_gb=1.0, total_gb=85.0, use=0.0, celsius=88.0, ecc_errors=3, throttled=True),
    )
    assert nvml.problem == ""


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [(0x0, False), (0x1, False), (0x2, False), (0x4, True), (0x8, True), (0x20, True), (0x40, True), (0x80, True)],
)
@pytest.mark.parametrize("old", [False, True])
def test_idle_and_chosen_clocks_are_no_throttling_and_heat_and_power_are(
    reasons: int, throttled: bool, old: bool
) -> None:
    (card,) = Nvml(FakeNvml([FakeCard(reasons=reasons)], old=old)).read()
    assert card.throttled is throttled


def test_what_a_card_does_not_support_is_unknown_and_not_zero() -> None:
    nvml = Nvml(FakeNvml([FakeCard(ecc=NOT_SUPPORTED, reasons=NOT_SUPPORTED)]))
    nvml_old = Nvml(FakeNvml([FakeCard(ecc=NOT_SUPPORTED, reasons=NOT_SUPPORTED)], old=True))
    for each in (nvml, nvml_old):
        (card,) = each.read()
        assert card.ecc_errors is None
        assert card.throttled is None
        assert card.use == 0.73
        assert each.problem == ""


def test_a_lost_card_keeps_its_place_and_is_named_while_it_is_lost() -> None:
    fake = FakeNvml([FakeCard(), FakeCard(), FakeCard()])
    nvml = Nvml(fake)
    fake.cards[1].lost = True
    cards = nvml.read()
    assert cards[1] == Card()
    assert cards[0].use == cards[2].use == 0.73
    assert nvml.problem == "NVML: card 1 gives no figures"
    fake.cards[1].lost = False
    assert nvml.read()[1].use == 0.73
    assert nvml.problem == ""


def test_a_card_that_is_lost_from_the_start_keeps_its_place() -> None:
    nvml = Nvml(FakeNvml([FakeCard(lost_at_start=True), FakeCard()]))
    assert nvml.read() == (Card(), Nvml(FakeNvml([FakeCard()])).read()[0])
    assert nvml.problem == "NVML, card 0: GPU is lost"


def test_without_a_driver_there_are_no_cards_and_it_is_said_why() -> None:
    nvml = Nvml(FakeNvml([FakeCard()], init=NO_DRIVER))
    assert nvml.read() == ()
    assert nvml.problem == "NVML: Driver Not Loaded"


def test_without_the_package_there_are_no_cards_and_that_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ImportError):
        importlib.import_module("pynvml")
    nvml = Nvml()
    assert nvml.read() == ()
    assert nvml.problem == ""


def test_the_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([FakeCard(), FakeCard()]))
    assert len(Nvml().read()) == 2


def test_a_report_has_the_free_memory_of_its_replicas_own_cards(tmp_path) -> None:
    fake = FakeNvml([FakeCard(free=10e9), FakeCard(free=20e9), FakeCard(free=40e9)])
    meters = Meters(lambda: 5.0, root=tmp_path, nvml=Nvml(fake))
    meters.read()
    report = Report(ReplicaId("r"), 1, 0.0, running=1)
    assert meters.fill(report, [0, 2]).free_mem_gb == 50.0
    assert meters.fill(report, []) is report
    assert meters.fill(report, [7]).free_mem_gb is None
    fake.cards[2].lost = True
    meters.read()
    assert meters.fill(report, [0, 2]).free_mem_gb is None, "half of it would be a wrong figure"
    assert meters.problem
