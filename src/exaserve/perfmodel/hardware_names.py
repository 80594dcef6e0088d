"""From an accelerator's name, as drivers and people write it, to its row."""

from __future__ import annotations

from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest
from exaserve.perfmodel.hardware import HARDWARE, Hardware, mig_name, mig_slice

__all__ = ["find_hardware"]

_ALIASES = {
    "a100": "A100-80",
    "a10080gb": "A100-80",
    "a10040gb": "A100-40",
    "h100sxm": "H100",
    "h10080gb": "H100",
    "h10080": "H100",
    "h10080gbhbm3": "H100",
    "a100sxm480gb": "A100-80",
    "a100sxm": "A100-80",
    "rtx6000ada": "RTX-6000-ADA",
    "rtxpro6000blackwell": "RTX-PRO-6000",
    "a10g": "A10",
    "4090": "RTX-4090",
    "3090": "RTX-3090",
    "cpu": "cpu-tiny",
    "v100": "V100-32",
    "h800": "H100",
    "a800": "A100-80",
    "a80080": "A100-80",
    "a6000": "RTX-A6000",
    "rtx6000": "RTX-6000-ADA",
    "rtxpro6000blackwellworkstationedition": "RTX-PRO-6000",
    "rtxpro6000blackwellserveredition": "RTX-PRO-6000",
    "dgxspark": "GB10",
    "a100pcie80": "A100-80-PCIE",
    "max1550": "MAX-1550-TILE",
}

_MAKERS = ("nvidia", "amd", "intel", "tesla", "geforce", "instinct", "quadro")


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def find_hardware(name: str) -> Hardware:
    """The table's row for a name, forgiving case, punctuation, maker and series (``NVIDIA GeForce RTX 4090``).

    A MIG slice (``H100-1g.10gb``, ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``) is a row of its own, made from its card's.
    Raises ConfigError with the nearest valid name.
    """
    mig = mig_name(name)
    if mig is not None:
        return _find_slice(name, *mig)
    key = _key(name)
    for maker in _MAKERS:
        key = key.removeprefix(maker)
    by_key = {_key(row): row for row in HARDWARE}
    for candidate in (key, key.removesuffix("gb"), f"rtx{key}", key.replace("80gb", "80").replace("40gb", "40")):
        found = by_key.get(candidate) or _ALIASES.get(candidate)
        if found:
            return HARDWARE[found]
    raise ConfigError(f"Unknown hardware {name!r}. {nearest(name, HARDWARE)}", param="hardware")


_CARD_SIZES = {"A100-80": ("A100-80", "A100-40")}
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
