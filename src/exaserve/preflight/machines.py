"""What a machine type promises. The types themselves are data (``data/machines.yaml``), read by the caller."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from exaserve.domain.errors import ConfigError

__all__ = ["Expectations", "MachineType", "NcclExpectation", "Thresholds", "find_machine", "parse_expectations"]


class NcclExpectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """all_reduce bus bandwidth on one machine.

    Attributes:
        size_bytes: from this message size on.
        good_gb_s: what a healthy machine reaches, 10^9 bytes per second.
        failed_gb_s: below this something is broken.
    """

    size_bytes: int
    good_gb_s: float
    failed_gb_s: float


class MachineType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine type.

    Attributes:
        name: key for ``--machine``.
        product: regular expression over the accelerators' product name.
        vendor: nvidia or amd.
        cards: accelerators per machine; 0 where it varies.
        link: direct link that every pair of a group must show, such as NV18 or XGMI; empty where there is none.
        group: cards per directly linked group.
        nics: NICs for the traffic between accelerators; 0 where it varies.
        nic_gbit_s: line rate of each; 0 where it varies.
        power_w: default power limit of a card, W; 0 where it varies.
        nccl: all_reduce expectations, by rising size.
        source: where the figures come from.
    """

    name: str
    product: str
    source: str
    vendor: Literal["nvidia", "amd"] = "nvidia"
    cards: int = 0
    link: str = ""
    group: int = 1
    nics: int = 0
    nic_gbit_s: float = 0.0
    power_w: float = 0.0
    nccl: tuple[NcclExpectation, ...] = ()

    def promises(self, check: str) -> bool:
        """Whether this type must be able to run a check of that id."""
        prefix = {"nvidia": ("topology", "gpu"), "amd": ("rocm",)}[self.vendor]
        return check.startswith(prefix) or (self.nics > 0 and check in {"ibstat", "rdma_counters"})


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds that hold on every machine. Units last in the names; sources in ``data/machines.yaml``."""

    loss_ratio_max: float = 1e-6
    ib_latency_good_us: float = 0.8
    ib_latency_failed_us: float = 5.0
    nvlink_latency_good_us: float = 0.5
    nvlink_latency_failed_us: float = 0.6
    clock_offset_good_s: float = 0.001
    clock_offset_failed_s: float = 0.1
    open_files_per_stream: int = 2
    open_files_spare: int = 4096
    link_downs_failed: int = 255
    symbol_errors_failed: int = 1000
    cstate_latency_us: int = 20


class Expectations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole data file."""

    machines: tuple[MachineType, ...]
    limits: Thresholds = Thresholds()


def parse_expectations(document: object, where: str) -> Expectations:
    """Machine types from a parsed YAML document.

    Args:
        document: what the YAML reader gave.
        where: name of the file, for the message.

    Raises:
        ConfigError: a field is missing, unknown or of the wrong type, or a regular expression is none.
    """
    try:
        found = msgspec.convert(document, Expectations)
        for machine in found.machines:
            re.compile(machine.product)
    except (msgspec.ValidationError, re.error) as error:
        raise ConfigError(f"{where}: {error}") from error
    return found


def find_machine(machines: Sequence[MachineType], products: Mapping[str, int]) -> MachineType | None:
    """The type whose product and number of cards fit; None where none or only another size does.

    Args:
        products: product name to number of cards.
    """
    if len(products) != 1:
        return None
    ((product, count),) = products.items()
    fitting = [machine for machine in machines if re.search(machine.product, product, re.IGNORECASE)]
    exact = [machine for machine in fitting if machine.cards == count]
    if exact:
        return exact[0]
    # Seven cards of a type that is only built with eight is that machine with a card missing.
    larger = sorted((machine for machine in fitting if machine.cards > count), key=lambda each: each.cards)
    if larger and count > larger[0].cards // 2 and larger[0].cards > 4:
        return larger[0]
    return next((machine for machine in fitting if machine.cards == 0), None)
