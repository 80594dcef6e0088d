"""Money and energy: what a card-hour costs, and what that makes of a request and of a million tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from exaserve.perfmodel import Hardware
from exaserve.planning.demand import TrafficDemand

__all__ = ["CARD_HOUR_USD", "Cost", "Prices", "cost_of"]

CARD_HOUR_USD: Mapping[str, float] = MappingProxyType(
    {
        "A100-40": 1.1, "A100-80": 1.5, "A100-80-PCIE": 1.4, "H100": 2.5, "H100-PCIE": 2.2, "H100-NVL": 2.4,
        "H200": 3.2, "GH200": 3.0, "H20": 1.6, "H20-3E": 2.0, "B200": 4.8, "B300": 6.0, "GB200": 6.0, "L40S": 0.95,
        "L40": 0.9, "L4": 0.5, "A10": 0.45, "A40": 0.45, "A30": 0.5, "T4": 0.3, "V100-32": 0.5, "RTX-3090": 0.22,
        "RTX-4090": 0.4, "RTX-5090": 0.6, "RTX-6000-ADA": 0.75, "RTX-PRO-6000": 1.2, "MI300X": 2.3, "MI325X": 2.6,
        "MI355X": 4.0, "RTX-A6000": 0.5,
    }
)  # fmt: skip
"""Rent of one card for an hour, US dollars: rough market levels, to rank options; your own prices replace them."""

TYPICAL_CARD_HOUR_USD = 1.0
POWER_SHARE = 0.65
"""Mean board power of a busy card, of its limit."""

NODE_WATTS = 150.0
"""Share of the rest of the machine per card: host, memory, fans, network."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of the operator.

    Attributes:
        card_hour: by card name.
        kwh: of electricity. pue: power of the building over power of the machines.
        api_million_tokens: of a hosted model of this class, for comparison.
        powered: whether electricity comes on top of ``card_hour`` (own machines), or is in it (rent).
    """

    card_hour: Mapping[str, float] = field(default_factory=dict)
    currency: str = "USD"
    kwh: float = 0.15
    pue: float = 1.4
    api_million_tokens: float | None = None
    powered: bool = False

    def of(self, hardware: Hardware) -> tuple[float, str]:
        """Per card and hour, and where the figure comes from."""
        if hardware.name in self.card_hour:
            return self.card_hour[hardware.name], "given"
        whole = hardware.whole
        if whole in self.card_hour:
            return self.card_hour[whole] * hardware.share, "given"
        if whole in CARD_HOUR_USD:
            return CARD_HOUR_USD[whole] * hardware.share, "estimated"
        return TYPICAL_CARD_HOUR_USD, "estimated"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the whole cluster.

    Attributes:
        hour / month: money. energy_kwh_hour: kWh in an hour.
        rate_s: requests/s that are carried; what is asked beyond them earns nothing.
        per_1000_requests / per_million_tokens: of what is carried (tokens are prompt and output together); infinite
            where nothing is.
        source: of the card price.
    """

    hour: float
    month: float
    energy_kwh_hour: float
    energy_hour: float
    per_1000_requests: float
    per_million_tokens: float
    per_million_output_tokens: float
    currency: str
    source: str
    rate_s: float


def cost_of(cards: int, hardware: Hardware, demand: TrafficDemand, prices: Prices, carried_s: float) -> Cost:
    """Cost of ``cards`` that carry ``carried_s`` requests/s of the demand's mix (at most the demand counts)."""
    each, source = prices.of(hardware)
    watts = (hardware.watts or 350.0 * hardware.share) * POWER_SHARE + NODE_WATTS * hardware.share
    energy = cards * watts * prices.pue / 1000
    energy_cost = energy * prices.kwh
    hour = cards * each + (energy_cost if prices.powered else 0.0)
    rate = min(demand.rate_s, carried_s)
    requests = rate * 3600
    each_request = hour / requests if requests else math.inf
    return Cost(
        hour=hour,
        month=hour * 730,
        energy_kwh_hour=energy,
        energy_hour=energy_cost,
        per_1000_requests=each_request * 1000,
        per_million_tokens=each_request / (demand.prompt + demand.output) * 1e6,
        per_million_output_tokens=each_request / demand.output * 1e6,
        currency=prices.currency,
        source=source,
        rate_s=rate,
    )
