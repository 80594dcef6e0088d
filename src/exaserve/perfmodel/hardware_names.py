"""From an accelerator's name, as drivers, data sheets and people write it, to its row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest
from exaserve.perfmodel.hardware import HARDWARE, Hardware, mig_name, mig_slice

__all__ = ["find_hardware"]

_NOISE = re.compile(
    r"(?:nvidia|amd|intel|r|tesla|geforce|instinct|data|center|gpu|generation|edition|blackwell|workstation|oam|vf|ac"
    r"|hgx|dgx|sxm\d?|hbm\d\w?|gddr\d\w?|nvl\d+)"
)
"""Words that do not tell cards of the table apart. What does (PCIe, NVL, Ti, SUPER, Laptop, Server …) is no noise."""

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "A100": "A100-80",
        "A100-PCIE": "A100-80-PCIE",
        "A800": "A800-80",
        "A800-PCIE": "A100-80-PCIE",
        "H20-141": "H20-3E",
        "GH200-480": "GH200",
        "GH200-96": "GH200",
        "V100": "V100-32",
        "V100-PCIE": "V100-32-PCIE",
        "RTX 3060": "RTX-3060-12",
        "RTX 3080": "RTX-3080-10",
        "RTX 4060 Ti": "RTX-4060-TI-16",
        "RTX 6000": "RTX-6000-ADA",
        "Spark": "GB10",
        "Max 1550": "MAX-1550-TILE",
        "MI250X": "MI250X-GCD",
        "MI250X/MI250": "MI250X-GCD",
        "cpu": "cpu-tiny",
    }
)
"""Names that stand for one row of several, or of another name. Drivers tell neither the 8 from the 16 GB of an RTX 4060
Ti, nor the 10 from the 12 GB of an RTX 3080: the row is that of the size in the table.
"""

_SIZE = re.compile(r"(\d+)(?:gi?b|g)?")
_SIZE_TOLERANCE = 0.1
"""Between the size on the box (decimal, before what the driver keeps) and the memory that the driver reports, GiB."""


def _words(name: str) -> tuple[str, ...]:
    """Telling words, sizes without their unit: ``NVIDIA A100-SXM4-80GB`` is ``a100``, ``80``."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and not _NOISE.fullmatch(w)]
    return tuple(found[1] if (found := _SIZE.fullmatch(w)) else w for w in words)


def _key(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same for any order, and whether or not letters and digits are written apart (``RTX4090``)."""
    parts = [p for word in words for p in re.findall(r"[a-z]+|\d+", word) if p != "rtx"]
    return tuple(sorted(parts))


_BY_KEY: Mapping[tuple[str, ...], str] = MappingProxyType(
    {_key(_words(name)): row for name, row in {**_ALIASES, **{row: row for row in HARDWARE}}.items()}
)


def find_hardware(name: str) -> Hardware:
    """The table's row for a name, forgiving case, punctuation, order, maker, series, form factor, and the size of the
    memory where it is the row's (``NVIDIA H100 80GB HBM3``, ``h100_sxm``, ``A100-80 PCIe``, ``AMD Instinct MI300X``).

    A MIG slice (``H100-1g.10gb``, ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``) is a row of its own, made from its card's.
    Raises ConfigError with the nearest valid name.
    """
    mig = mig_name(name)
    if mig is not None:
        return _find_slice(name, *mig)
    words = _words(name)
    found = _BY_KEY.get(_key(words))
    if found is not None:
        return HARDWARE[found]
    for size in (w for w in words if w.isdigit()):
        found = _BY_KEY.get(_key(tuple(w for w in words if w != size)))
        if found is not None and abs(int(size) / HARDWARE[found].memory_gib - 1) <= _SIZE_TOLERANCE:
            return HARDWARE[found]
    raise ConfigError(f"Unknown hardware {name!r}. {nearest('-'.join(words), HARDWARE)}", param="hardware")


_CARD_SIZES: Mapping[str, tuple[str, ...]] = MappingProxyType({"A100-80": ("A100-80", "A100-40")})
"""Cards of one name that come in two sizes: the slice's own size says which."""


def _find_slice(name: str, card_name: str, compute: int, gigabytes: int) -> Hardware:
    if not card_name:
        raise ConfigError(f"{name!r} is a slice of which card? Name it too, such as H100-{name}.", param="hardware")
    card = find_hardware(card_name)
    for each in _CARD_SIZES.get(card.name, (card.name,)):
        found = mig_slice(HARDWARE[each], compute, gigabytes)
        if found is not None:
            return found
    raise ConfigError(
        f"{card.name} has no MIG slice {compute}g.{gigabytes}gb; `nvidia-smi mig -lgip` lists those it has.",
        param="hardware",
    )
