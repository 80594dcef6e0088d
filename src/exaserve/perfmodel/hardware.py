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
            format has no hardware support (weights are then widened to 16 bit before the multiplication).
        link: how accelerators of one machine are joined.
        link_gb_s: that link, one direction, 10^9 bytes per second per accelerator.
        slice_of: the whole card, where this is a MIG slice of it; "" else. share: of that card's compute, for prices.
        memory_source / rate_source: where the memory figure, and the other figures, come from. "published" is a
            vendor's data sheet, "measured" an engine's or driver's own log, "estimated" derived from a sibling.
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
    memory_source: SourceKind = "published"
    rate_source: SourceKind = "published"
    slice_of: str = ""
    share: float = 1.0

    @property
    def watts(self) -> float:
        """Board power limit (a slice's share of it), watts, from the data sheet; 0 where it is not in the table."""
        return _WATTS.get(self.slice_of or self.name, 0.0) * self.share

    @property
    def capability(self) -> float:
        """CUDA compute capability; 0 for what is not NVIDIA's."""
        return _CAPABILITY.get(self.slice_of or self.name, 0.0)

    @property
    def unified(self) -> bool:
        """Whether the host's processes and the accelerator share one memory."""
        return self.name in _UNIFIED


# PCIe figures are per direction after protocol overhead: gen3 x16 12, gen4 x16 25, gen5 x16 50 GB/s.
_ROWS = (
    Hardware("A100-40", 39.39, 1555, 312, 0, 624, link="nvlink", link_gb_s=300, memory_source="measured"),
    Hardware("A100-80", 79.15, 2039, 312, 0, 624, link="nvlink", link_gb_s=300, memory_source="measured"),
    Hardware("A100-80-PCIE", 79.15, 1935, 312, 0, 624, memory_source="measured"),
    Hardware("H100", 79.10, 3352, 989, 1979, 1979, link="nvlink", link_gb_s=450, memory_source="measured"),
    Hardware("H100-PCIE", 79.11, 2039, 756, 1513, 1513, link_gb_s=50, memory_source="measured"),
    Hardware("H100-NVL", 93.11, 3938, 835, 1671, 1671, link="nvlink", link_gb_s=300, memory_source="estimated"),
    Hardware("H200", 139.72, 4800, 989, 1979, 1979, link="nvlink", link_gb_s=450, memory_source="measured"),
    Hardware("GH200", 94.50, 4000, 989, 1979, 1979, link="nvlink", link_gb_s=450, memory_source="estimated"),
    Hardware("H20-3E", 139.72, 4800, 148, 296, 296, link="nvlink", link_gb_s=450, memory_source="measured"),
    Hardware("H20", 95.22, 4000, 148, 296, 296, link="nvlink", link_gb_s=450, memory_source="estimated"),
    Hardware("B200", 178.35, 8000, 2250, 4500, 4500, 9000, link="nvlink", link_gb_s=900, memory_source="measured"),
    Hardware("B300", 267.69, 8000, 2250, 4500, 150, 13500, link="nvlink", link_gb_s=900, memory_source="estimated"),
    Hardware("L40S", 44.42, 864, 362, 733, 733, memory_source="measured"),
    Hardware("L40", 44.42, 864, 181, 362, 362, memory_source="estimated"),
    Hardware("L4", 22.49, 300, 121, 242, 242, link_gb_s=12, memory_source="measured"),
    Hardware("A10", 22.06, 600, 125, 0, 250, memory_source="measured"),
    Hardware("A40", 44.43, 696, 150, 0, 299, memory_source="measured"),
    Hardware("A30", 23.59, 933, 165, 0, 330, memory_source="estimated"),
    Hardware("T4", 14.58, 320, 65, 0, 130, link_gb_s=12, memory_source="measured"),
    Hardware("V100-32", 31.73, 900, 125, link="nvlink", link_gb_s=150, memory_source="measured"),
    Hardware("V100-16", 15.77, 900, 125, link="nvlink", link_gb_s=150, memory_source="estimated"),
    Hardware("RTX-3090", 23.58, 936, 71, 0, 284, memory_source="measured"),
    Hardware("RTX-4080", 15.99, 717, 97, 195, 390, memory_source="measured"),
    Hardware("RTX-4090", 23.64, 1008, 165, 330, 661, memory_source="measured"),
    Hardware("RTX-5090", 31.36, 1792, 210, 419, 838, 1676, link_gb_s=50, memory_source="measured"),
    Hardware("RTX-6000-ADA", 47.50, 960, 364, 728, 728, memory_source="measured"),
    Hardware("RTX-PRO-6000", 95.60, 1792, 504, 1007, 1007, 2015, link_gb_s=50, memory_source="measured"),
    Hardware("RTX-A6000", 47.54, 768, 155, 0, 310, memory_source="estimated"),
    Hardware("RTX-A5000", 23.56, 768, 111, 0, 222, memory_source="estimated"),
    Hardware("RTX-3060-12", 11.66, 360, 51, 0, 102, memory_source="estimated"),
    Hardware("RTX-3080-10", 9.66, 760, 119, 0, 238, memory_source="estimated"),
    Hardware("RTX-2080-TI", 10.57, 616, 54, 0, 215, link_gb_s=12, memory_source="estimated"),
    Hardware("RTX-4070-TI-SUPER", 15.58, 672, 88, 176, 353, memory_source="estimated"),
    Hardware("RTX-4060-TI-16", 15.58, 288, 44, 88, 177, memory_source="estimated"),
    Hardware("RTX-5080", 15.47, 960, 113, 225, 450, 900, link_gb_s=50, memory_source="estimated"),
    Hardware("GB200", 184.0, 8000, 2500, 5000, 5000, 10000, link="nvlink", link_gb_s=900, memory_source="estimated"),
    Hardware("GB10", 119.6, 273, 125, 250, 250, 500, link="none", memory_source="estimated"),
    Hardware("MAX-1550-TILE", 61.5, 1638, 420, 0, 840, link="xgmi", link_gb_s=25, memory_source="estimated"),
    Hardware("MI250X-GCD", 63.98, 1638, 191, 0, 191, link="xgmi", link_gb_s=100, memory_source="estimated"),
    Hardware("MI300X", 191.98, 5300, 1307, 2615, 2615, link="xgmi", link_gb_s=448, memory_source="measured"),
    Hardware("MI325X", 255.98, 6000, 1307, 2615, 2615, link="xgmi", link_gb_s=448, memory_source="estimated"),
    Hardware("MI355X", 287.98, 8000, 2517, 5033, 5033, 10066, link="xgmi", link_gb_s=538, memory_source="estimated"),
    # Not real: engines for tests. "cpu-tiny" answers a short request in tens of milliseconds, "null" in next to no
    # time.
    Hardware("cpu-tiny", 64.0, 20_000, 20_000, link="none", memory_source="estimated", rate_source="estimated"),
    Hardware("null", 512.0, 1e9, 1e9, link="none", memory_source="estimated", rate_source="estimated"),
)

HARDWARE: Mapping[str, Hardware] = MappingProxyType({row.name: row for row in _ROWS})

_UNIFIED = frozenset({"GB10"})
_CAPABILITY: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("V100-32", "V100-16"), 7.0),
        **dict.fromkeys(("T4", "RTX-2080-TI"), 7.5),
        **dict.fromkeys(("A100-40", "A100-80", "A100-80-PCIE", "A30"), 8.0),
        **dict.fromkeys(
            ("A10", "A40", "RTX-3090", "RTX-A6000", "RTX-A5000", "RTX-3060-12", "RTX-3080-10"),
            8.6,
        ),
        **dict.fromkeys(
            ("L40S", "L40", "L4", "RTX-4080", "RTX-4090", "RTX-6000-ADA", "RTX-4070-TI-SUPER", "RTX-4060-TI-16"), 8.9
        ),
        **dict.fromkeys(("H100", "H100-PCIE", "H100-NVL", "H200", "GH200", "H20", "H20-3E"), 9.0),
        **dict.fromkeys(("B200", "GB200"), 10.0),
        "B300": 10.3,
        **dict.fromkeys(("RTX-5090", "RTX-5080", "RTX-PRO-6000"), 12.0),
        "GB10": 12.1,
    }
)

_MIG = re.compile(r"[\s-]*(?:mig)?[\s-]*(\d)g\.(\d{1,3})gb(?:\+me)?$", re.IGNORECASE)
_MIG_CARDS = (
    "A100-40",
    "A100-80",
    "A100-80-PCIE",
    "A30",
    "H100",
    "H100-PCIE",
    "H100-NVL",
    "H200",
    "GH200",
    "B200",
    "B300",
)
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
        memory_source="estimated",
        rate_source="estimated",
        slice_of=card.name,
        share=share,
    )


_WATTS: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("A100-40", "A100-80", "H20-3E"), 400.0),
        **dict.fromkeys(
            ("A100-80-PCIE", "A40", "L40", "RTX-6000-ADA", "RTX-A6000", "V100-32", "V100-16", "MAX-1550-TILE"), 300.0
        ),
        **dict.fromkeys(("H100", "H200", "GH200"), 700.0),
        **dict.fromkeys(("H100-PCIE", "L40S", "RTX-3090"), 350.0),
        "H100-NVL": 400.0,
        "H20": 400.0,
        "B200": 1000.0,
        "B300": 1400.0,
        "GB200": 1200.0,
        "GB10": 140.0,
        "L4": 72.0,
        "A10": 150.0,
        "A30": 165.0,
        "T4": 70.0,
        "RTX-A5000": 230.0,
        "RTX-2080-TI": 250.0,
        "RTX-3060-12": 170.0,
        "RTX-3080-10": 320.0,
        "RTX-4060-TI-16": 165.0,
        "RTX-4070-TI-SUPER": 285.0,
        "RTX-4080": 320.0,
        "RTX-4090": 450.0,
        "RTX-5080": 360.0,
        "RTX-5090": 575.0,
        "RTX-PRO-6000": 600.0,
        "MI250X-GCD": 280.0,
        "MI300X": 750.0,
        "MI325X": 1000.0,
        "MI355X": 1400.0,
    }
)
