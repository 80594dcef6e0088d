"""Accelerators: every name that people, drivers and data sheets write finds its row, and the rows are dense figures."""

from __future__ import annotations

import pytest

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import HARDWARE, find_hardware

REAL = [row for row in HARDWARE.values() if row.source != "made up"]

AS_WRITTEN = {
    "A100-40": ("A100-40 SXM", "A100 40GB", "NVIDIA A100-SXM4-40GB"),
    "A100-40-PCIE": ("NVIDIA A100-PCIE-40GB",),
    "A100-80": ("a100", "a100_sxm", "A100-80 SXM", "A100-80GB", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
    "A100-80-PCIE": ("A100-80 PCIe", "A100 80GB PCIe", "NVIDIA A100 80GB PCIe", "NVIDIA A800 80GB PCIe"),
    "A800-80": ("NVIDIA A800-SXM4-80GB", "A800"),
    "A30": ("NVIDIA A30",),
    "H100": ("h100", "H100 SXM", "h100_sxm", "H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "H100-SXM5-80GB", "H100-80"),
    "H100-PCIE": ("H100 PCIe", "NVIDIA H100 PCIe"),
    "H100-NVL": ("NVIDIA H100 NVL",),
    "H200": ("H200 SXM", "h200_sxm", "NVIDIA H200", "H200 141GB"),
    "H200-NVL": ("NVIDIA H200 NVL",),
    "GH200": ("NVIDIA GH200 480GB",),
    "GH200-144": ("NVIDIA GH200 144G HBM3e",),
    "H800": ("NVIDIA H800",),
    "H20": ("NVIDIA H20", "H20 96GB"),
    "H20-3E": ("NVIDIA H20-3e", "H20 141GB"),
    "B200": ("b200_sxm", "NVIDIA B200", "B200 180GB"),
    "GB200": ("GB200 NVL72", "NVIDIA GB200"),
    "B300": ("NVIDIA B300 SXM6 AC", "B300 288GB"),
    "GB300": ("GB300 NVL72", "NVIDIA GB300"),
    "L40S": ("l40s", "NVIDIA L40S"),
    "L40": ("NVIDIA L40",),
    "L20": ("NVIDIA L20",),
    "L4": ("NVIDIA L4",),
    "RTX-6000-ADA": ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
    "A10": ("NVIDIA A10",),
    "A10G": ("NVIDIA A10G",),
    "A40": ("NVIDIA A40",),
    "RTX-A6000": ("A6000", "NVIDIA RTX A6000"),
    "RTX-A5000": ("NVIDIA RTX A5000",),
    "T4": ("Tesla T4",),
    "RTX-2080-TI": ("NVIDIA GeForce RTX 2080 Ti",),
    "V100-32": ("V100", "V100-32GB", "Tesla V100-SXM2-32GB"),
    "V100-16": ("Tesla V100-SXM2-16GB",),
    "V100-32-PCIE": ("Tesla V100-PCIE-32GB",),
    "V100-16-PCIE": ("Tesla V100-PCIE-16GB",),
    "RTX-3060-12": ("NVIDIA GeForce RTX 3060",),
    "RTX-3080-10": ("NVIDIA GeForce RTX 3080",),
    "RTX-3090": ("3090", "RTX 3090", "NVIDIA GeForce RTX 3090"),
    "RTX-3090-TI": ("RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti"),
    "RTX-4060-TI-16": ("NVIDIA GeForce RTX 4060 Ti",),
    "RTX-4070-TI-SUPER": ("RTX 4070 TI SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER"),
    "RTX-4080": ("4080", "NVIDIA GeForce RTX 4080"),
    "RTX-4080-SUPER": ("NVIDIA GeForce RTX 4080 SUPER",),
    "RTX-4090": ("rtx4090", "NVIDIA GeForce RTX 4090"),
    "RTX-5070-TI": ("RTX 5070 TI", "NVIDIA GeForce RTX 5070 Ti"),
    "RTX-5080": ("NVIDIA GeForce RTX 5080",),
    "RTX-5090": ("NVIDIA GeForce RTX 5090",),
    "RTX-PRO-6000": ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    "RTX-PRO-6000-SERVER": ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    "RTX-PRO-6000-MAX-Q": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    "GB10": ("NVIDIA GB10", "DGX Spark"),
    "MAX-1550-TILE": ("Intel(R) Data Center GPU Max 1550",),
    "MI210": ("AMD Instinct MI210",),
    "MI250X-GCD": ("AMD Instinct MI250X", "AMD Instinct MI250X/MI250"),
    "MI300X": ("mi300x", "AMD Instinct MI300X OAM", "AMD Instinct MI300X VF", "MI300X 192GB"),
    "MI325X": ("AMD Instinct MI325X",),
    "MI350X": ("AMD Instinct MI350X",),
    "MI355X": ("AMD Instinct MI355X",),
}
"""What tables of measurements, nvidia-smi, rocm-smi and PyTorch call each card."""


@pytest.mark.parametrize(("row", "names"), AS_WRITTEN.items(), ids=AS_WRITTEN)
def test_names_as_drivers_and_people_write_them(row: str, names: tuple[str, ...]) -> None:
    for name in (row, row.lower(), row.replace("-", " "), *names):
        assert find_hardware(name).name == row, name


def test_every_row_has_names_to_try() -> None:
    assert set(AS_WRITTEN) == {row.name for row in REAL}


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 D", "Quadro RTX 6000", "H100 96GB", "A100X", "MI308X", "GPU", ""],
)
def test_another_card_is_not_taken_for_one_of_the_table(name: str) -> None:
    with pytest.raises(ConfigError, match="Unknown hardware") as caught:
        find_hardware(name)
    assert caught.value.param == "hardware"


def test_an_unknown_card_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean RTX-4090"):
        find_hardware("NVIDIA GeForce RTX 4091")


@pytest.mark.parametrize("row", REAL, ids=lambda row: row.name)
def test_rows_are_whole_and_their_rates_dense(row: object) -> None:
    card = HARDWARE[getattr(row, "name", "")]
    assert card.source
    assert card.watts > 0
    assert (card.capability > 0) == (not card.name.startswith(("MI", "MAX")))
    assert card.memory_source in ("measured", "estimated")
    assert card.rate_source in ("published", "estimated")
    # "Reported by the driver" is less than on the box.
    assert 9 < card.memory_gib < 300
    # Half the width is twice the rate at most; three times for the 4-bit units of Blackwell Ultra, and four for
    # GeForce's, which add at full rate what 8-bit ones add at half of it.
    assert card.fp8_tflops in (0, pytest.approx(2 * card.bf16_tflops, rel=0.02))
    assert card.fp4_tflops <= 4.01 * card.fp8_tflops
    # A sheet's headline with sparsity would be half a card's bytes per operation.
    assert 30 < card.bf16_tflops * 1e3 / card.bandwidth_gb_s < 530


@pytest.mark.parametrize(
    ("card", "bf16"),
    [
        # Tensor cores x boost clock x 128 products and sums a clock: what GeForce reaches adding at 32 bit.
        ("RTX-3060-12", 112 * 1.777 * 0.128),
        ("RTX-3080-10", 272 * 1.710 * 0.128),
        ("RTX-3090", 328 * 1.695 * 0.128),
        ("RTX-3090-TI", 336 * 1.860 * 0.128),
        ("RTX-4060-TI-16", 136 * 2.535 * 0.128),
        ("RTX-4070-TI-SUPER", 264 * 2.610 * 0.128),
        ("RTX-4080", 304 * 2.505 * 0.128),
        ("RTX-4090", 512 * 2.520 * 0.128),
        ("RTX-5070-TI", 280 * 2.452 * 0.128),
        ("RTX-5080", 336 * 2.617 * 0.128),
        ("RTX-5090", 680 * 2.407 * 0.128),
    ],
)
def test_consumer_cards_add_at_32_bit(card: str, bf16: float) -> None:
    assert HARDWARE[card].bf16_tflops == pytest.approx(bf16, rel=0.01)
