"""Accelerators: what a performance model needs of each, with the kind of source behind every row.

Memory is what the driver reports to a process (GiB), which is less than the number on the box: an "80 GB" H100 shows
79.1 GiB. Bandwidth and FLOP/s are the vendor's dense figures (no structured sparsity); how much of them an engine
reaches is in :mod:`exaserve.perfmodel.roofline`, not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

__all__ = ["HARDWARE", "Hardware", "LinkKind", "SourceKind", "mig_name", "mig_slice"]

SourceKind = Literal["published", "measured", "estimated"]
LinkKind = Literal["nvlink", "xgmi", "pcie", "none"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator.

    Attributes:
        name: key in :data:`HARDWARE`.
        memory_gib: memory that the driver reports, GiB.
        bandwidth_gb_s: memory bandwidth, 10^9 bytes per second.
        bf16_tflops / fp8_tflops / int8_tflops / fp4_tflops: dense matrix rate, 10^12 operations per second; 0 where the
            format has no hardware support (weights are then widened to 16 bit before the multiplication). GeForce
            cards add 16- and 8-bit products at 32 bit, as engines do, at half the rate of adding them at 16 bit.
        link: how accelerators of one machine are joined.
        link_gb_s: that link, one direction, 10^9 bytes per second per accelerator.
        watts: board power limit, watts; 0 where it is not known.
        capability: CUDA compute capability; 0 for what is not NVIDIA's.
        source: where bandwidth, rates, link and watts come from.
        memory_source / rate_source: what kind of source the memory figure, and the other figures, have. "published" is
            a vendor's data sheet, "measured" an engine's or driver's own log, "estimated" derived from a sibling.
        slice_of: the whole card, where this is a MIG slice of it; "" else. share: of that card's compute, for prices.
    """

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float = 0.0
    int8_tflops: float = 0.0
    fp4_tflops: float = 0.0
    link: LinkKind = "pcie"
    link_gb_s: float = 25.0
    watts: float = 0.0
    capability: float = 0.0
    source: str = ""
    memory_source: SourceKind = "measured"
    rate_source: SourceKind = "published"
    slice_of: str = ""
    share: float = 1.0

    @property
    def whole(self) -> str:
        """Name of the whole card, of which this may be a MIG slice."""
        return self.slice_of or self.name

    @property
    def unified(self) -> bool:
        """Whether the host's processes and the accelerator share one memory."""
        return self.name == "GB10"


_LOGGED = frozenset(
    ("A100-40", "A100-80", "A100-80-PCIE", "H100", "H100-PCIE", "H200", "H20-3E", "B200", "L40S", "L4", "RTX-6000-ADA")
) | {"A10", "A40", "T4", "V100-32", "RTX-3090", "RTX-4080", "RTX-4090", "RTX-5090", "RTX-PRO-6000", "MI300X"}
"""Cards whose memory is known from public logs of engines. Of the others it is a sibling's, or the size on the box less
the share that siblings lack.
"""


class _Sheet:
    """Rows that one data sheet stands behind, and what they have in common."""

    def __init__(self, source: str, capability: float = 0.0, rates: SourceKind = "published") -> None:
        self.source, self.capability, self.rates = source, capability, rates

    def card(
        self,
        name: str,
        memory: float,
        bandwidth: float,
        rates: tuple[float, ...],
        watts: float,
        link: tuple[LinkKind, float],
        sibling: str = "",
    ) -> Hardware:
        """One row; ``rates`` are bf16, fp8, int8, fp4; ``sibling`` says whose they are where no sheet has them."""
        bf16, fp8, int8, fp4 = (*rates, 0.0, 0.0, 0.0)[:4]
        return Hardware(
            name,
            memory,
            bandwidth,
            bf16,
            fp8,
            int8,
            fp4,
            link=link[0],
            link_gb_s=link[1],
            watts=watts,
            capability=self.capability,
            source=f"{self.source}; sibling: {sibling}" if sibling else self.source,
            memory_source="measured" if name in _LOGGED else "estimated",
            rate_source="estimated" if sibling else self.rates,
        )


# One direction, after protocol overhead.
_PCIE3: tuple[LinkKind, float] = ("pcie", 12)
_PCIE4: tuple[LinkKind, float] = ("pcie", 25)
_PCIE5: tuple[LinkKind, float] = ("pcie", 50)
_NVLINK2: tuple[LinkKind, float] = ("nvlink", 150)
_NVLINK3: tuple[LinkKind, float] = ("nvlink", 300)
_NVLINK4: tuple[LinkKind, float] = ("nvlink", 450)
_NVLINK5: tuple[LinkKind, float] = ("nvlink", 900)
_NVLINK_CUT: tuple[LinkKind, float] = ("nvlink", 200)
"""Export versions of NVLink 3 and 4: 400 GB/s both ways."""


def _with_hbm() -> tuple[Hardware, ...]:
    """NVIDIA's cards for data centres."""
    ampere = _Sheet("NVIDIA A100 data sheet, 2021", 8.0)
    hopper = _Sheet("NVIDIA H100/H200/GH200 data sheets, 2024", 9.0)
    cut = _Sheet("distributors' sheets, 2023, watts from nvidia-smi; NVIDIA publishes none", 9.0, "estimated")
    blackwell = _Sheet("NVIDIA Blackwell data sheet, 2025", 10.0)
    ultra = _Sheet("NVIDIA Blackwell Ultra data sheet, 2025", 10.3)
    volta = _Sheet("NVIDIA V100 data sheet, 2020", 7.0)
    return (
        ampere.card("A100-40", 39.39, 1555, (312, 0, 624), 400, _NVLINK3),
        ampere.card("A100-40-PCIE", 39.39, 1555, (312, 0, 624), 250, _PCIE4),
        ampere.card("A100-80", 79.15, 2039, (312, 0, 624), 400, _NVLINK3),
        ampere.card("A100-80-PCIE", 79.15, 1935, (312, 0, 624), 300, _PCIE4),
        ampere.card("A800-80", 79.15, 2039, (312, 0, 624), 400, _NVLINK_CUT, "A100-80"),
        ampere.card("A30", 23.59, 933, (165, 0, 330), 165, _PCIE4),
        hopper.card("H100", 79.10, 3352, (989, 1979, 1979), 700, _NVLINK4),
        hopper.card("H100-PCIE", 79.11, 2039, (756, 1513, 1513), 350, _PCIE5),
        hopper.card("H100-NVL", 93.11, 3938, (835, 1671, 1671), 400, _NVLINK3),
        hopper.card("H200", 139.72, 4800, (989, 1979, 1979), 700, _NVLINK4),
        hopper.card("H200-NVL", 139.72, 4800, (835, 1671, 1671), 600, _NVLINK4),
        hopper.card("GH200", 94.50, 4000, (989, 1979, 1979), 700, _NVLINK4),
        hopper.card("GH200-144", 139.72, 4900, (989, 1979, 1979), 700, _NVLINK4),
        cut.card("H800", 79.10, 3352, (989, 1979, 1979), 700, _NVLINK_CUT, "H100"),
        cut.card("H20-3E", 139.72, 4800, (148, 296, 296), 500, _NVLINK4),
        cut.card("H20", 95.22, 4000, (148, 296, 296), 500, _NVLINK4),
        blackwell.card("B200", 178.35, 7700, (2250, 4500, 4500, 9000), 1000, _NVLINK5),
        blackwell.card("GB200", 184.0, 8000, (2500, 5000, 5000, 10000), 1200, _NVLINK5),
        # Blackwell Ultra traded its 8-bit integer units for more at 4 bit.
        ultra.card("B300", 267.69, 7700, (2250, 4500, 150, 13500), 1100, _NVLINK5),
        ultra.card("GB300", 276.5, 8000, (2500, 5000, 165, 15000), 1400, _NVLINK5),
        volta.card("V100-32", 31.73, 900, (125,), 300, _NVLINK2),
        volta.card("V100-16", 15.77, 900, (125,), 300, _NVLINK2),
        volta.card("V100-32-PCIE", 31.73, 900, (112,), 250, _PCIE3),
        volta.card("V100-16-PCIE", 15.77, 900, (112,), 250, _PCIE3),
    )


def _with_gddr() -> tuple[Hardware, ...]:
    """NVIDIA's cards for graphics, workstations and small machines."""
    ada = _Sheet("NVIDIA L4/L40/L40S/RTX 6000 data sheets, 2023", 8.9)
    ga10 = _Sheet("NVIDIA A10/A40/RTX A data sheets, 2021", 8.6)
    turing = _Sheet("NVIDIA Turing whitepaper and T4 data sheet, 2018", 7.5)
    ga102 = _Sheet("NVIDIA GA102 whitepaper, 2021", 8.6)
    ad10 = _Sheet("NVIDIA Ada whitepaper, 2022", 8.9)
    gb20 = _Sheet("NVIDIA RTX Blackwell whitepaper, 2025", 12.0)
    return (
        ada.card("L40S", 44.42, 864, (362, 733, 733), 350, _PCIE4),
        ada.card("L40", 44.42, 864, (181, 362, 362), 300, _PCIE4),
        ada.card("L20", 44.42, 864, (119, 239, 239), 275, _PCIE4, "no data sheet published"),
        ada.card("L4", 22.49, 300, (121, 242, 242), 72, _PCIE4),
        ada.card("RTX-6000-ADA", 47.50, 960, (364, 728, 728), 300, _PCIE4),
        ga10.card("A10", 22.06, 600, (125, 0, 250), 150, _PCIE4),
        ga10.card("A10G", 22.06, 600, (70, 0, 140), 300, _PCIE4),
        ga10.card("A40", 44.43, 696, (150, 0, 299), 300, _PCIE4),
        ga10.card("RTX-A6000", 47.54, 768, (155, 0, 310), 300, _PCIE4),
        ga10.card("RTX-A5000", 23.56, 768, (111, 0, 222), 230, _PCIE4),
        turing.card("T4", 14.58, 320, (65, 0, 130), 70, _PCIE3),
        turing.card("RTX-2080-TI", 10.57, 616, (54, 0, 215), 250, _PCIE3),
        ga102.card("RTX-3060-12", 11.66, 360, (25.5, 0, 102), 170, _PCIE4),
        ga102.card("RTX-3080-10", 9.66, 760, (59.5, 0, 238), 320, _PCIE4),
        ga102.card("RTX-3090", 23.58, 936, (71, 0, 284), 350, _PCIE4),
        ga102.card("RTX-3090-TI", 23.58, 1008, (80, 0, 320), 450, _PCIE4),
        ad10.card("RTX-4060-TI-16", 15.58, 288, (44, 88, 177), 165, _PCIE3),  # eight lanes of gen4
        ad10.card("RTX-4070-TI-SUPER", 15.58, 672, (88, 176, 353), 285, _PCIE4),
        ad10.card("RTX-4080", 15.99, 717, (97, 195, 390), 320, _PCIE4),
        ad10.card("RTX-4080-SUPER", 15.58, 736, (104, 209, 418), 320, _PCIE4),
        ad10.card("RTX-4090", 23.64, 1008, (165, 330, 661), 450, _PCIE4),
        gb20.card("RTX-5070-TI", 15.47, 896, (88, 176, 351, 703), 300, _PCIE5),
        gb20.card("RTX-5080", 15.47, 960, (113, 225, 450, 900), 360, _PCIE5),
        gb20.card("RTX-5090", 31.36, 1792, (210, 419, 838, 1676), 575, _PCIE5),
        gb20.card("RTX-PRO-6000", 95.60, 1792, (504, 1007, 1007, 2015), 600, _PCIE5),
        gb20.card("RTX-PRO-6000-SERVER", 94.97, 1597, (480, 960, 960, 1920), 600, _PCIE5, "RTX-PRO-6000 by clock"),
        gb20.card("RTX-PRO-6000-MAX-Q", 94.97, 1792, (439, 878, 878, 1756), 300, _PCIE5),
    )


def _others() -> tuple[Hardware, ...]:
    """Others' cards, unified memory, and what is not real."""
    cdna2 = _Sheet("AMD MI200 data sheet, 2021")
    cdna3 = _Sheet("AMD MI300X/MI325X data sheets, 2024")
    cdna4 = _Sheet("AMD MI350X/MI355X brochures, 2025")
    xe = _Sheet("Intel Max 1550 product page, 2023")
    return (
        cdna2.card("MI210", 63.98, 1638, (181, 0, 181), 300, _PCIE4),
        cdna2.card("MI250X-GCD", 63.98, 1638, (191, 0, 191), 280, ("xgmi", 100)),
        cdna3.card("MI300X", 191.98, 5300, (1307, 2615, 2615), 750, ("xgmi", 448)),
        cdna3.card("MI325X", 255.98, 6000, (1307, 2615, 2615), 1000, ("xgmi", 448)),
        cdna4.card("MI350X", 287.98, 8000, (2307, 4614, 4614, 9228), 1000, ("xgmi", 538)),
        cdna4.card("MI355X", 287.98, 8000, (2517, 5033, 5033, 10066), 1400, ("xgmi", 538)),
        xe.card("MAX-1550-TILE", 61.5, 1638, (420, 0, 840), 300, ("xgmi", 25)),
        _Sheet("NVIDIA DGX Spark data sheet, 2025", 12.1).card(
            "GB10", 119.6, 273, (125, 250, 250, 500), 140, ("none", 25)
        ),
        # Not real: engines for tests. "cpu-tiny" answers a short request in tens of milliseconds, "null" in next to no
        # time.
        _Sheet("made up", rates="estimated").card("cpu-tiny", 64.0, 20_000, (20_000,), 0, ("none", 25)),
        _Sheet("made up", rates="estimated").card("null", 512.0, 1e9, (1e9,), 0, ("none", 25)),
    )


HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {row.name: row for rows in (_with_hbm(), _with_gddr(), _others()) for row in rows}
)


_MIG = re.compile(r"[\s-]*(?:mig)?[\s-]*(\d)g\.(\d{1,3})gb(?:\+me)?$", re.IGNORECASE)
_MIG_CARDS = frozenset(
    ("A100-40", "A100-40-PCIE", "A100-80", "A100-80-PCIE", "A800-80", "A30", "H100", "H100-PCIE", "H100-NVL", "H800")
) | {"H200", "H200-NVL", "GH200", "B200", "GB200", "B300", "GB300"}
_MIG_SHAPES = ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8))
"""(compute slices, of eight memory slices) that a driver offers; the A30 has four of each: (1, 1), (2, 2), (4, 4)."""

_MIG_MEMORY = 0.985
"""Of its part of the memory that a slice shows."""


def mig_name(name: str) -> tuple[str, int, int] | None:
    """Card, compute slices and gigabytes of a MIG slice's name (``H100-1g.10gb``, ``NVIDIA A100-SXM4-80GB MIG
    3g.40gb``); None where it is none.
    """
    found = _MIG.search(name.strip())
    return (name.strip()[: found.start()], int(found[1]), int(found[2])) if found else None


def mig_slice(card: Hardware, compute: int, gigabytes: int) -> Hardware | None:
    """The slice of a card as an accelerator of its own: memory and its bandwidth by memory slices, matrix rates by
    compute slices. Slices cannot reach each other's memory, so nothing joins them. None where the card has no such
    slice.
    """
    if card.name not in _MIG_CARDS:
        return None
    parts = 4 if card.name == "A30" else 8
    memory = round(gigabytes / card.memory_gib * parts)
    fits = abs(gigabytes / card.memory_gib * parts - memory) <= 0.15 * max(1, memory)
    shapes = ((1, 1), (2, 2), (4, 4)) if parts == 4 else _MIG_SHAPES
    if not fits or (compute, memory) not in shapes:
        return None
    whole = memory == parts
    part, share = memory / parts, 1.0 if whole else compute / parts
    return replace(
        card,
        name=f"{card.name}-{compute}g.{gigabytes}gb",
        memory_gib=round(card.memory_gib * part * (1.0 if whole else _MIG_MEMORY), 2),
        bandwidth_gb_s=card.bandwidth_gb_s * part,
        bf16_tflops=card.bf16_tflops * share,
        fp8_tflops=card.fp8_tflops * share,
        int8_tflops=card.int8_tflops * share,
        fp4_tflops=card.fp4_tflops * share,
        link="none",
        watts=card.watts * share,
        memory_source="estimated",
        rate_source="estimated",
        slice_of=card.name,
        share=share,
    )
