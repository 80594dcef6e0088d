# compiled
"""How one of several gateways stands to a replica: whether it is its home, and the toll where it is not."""

from __future__ import annotations

__all__ = ["Turf"]


class Turf:
    """Attributes:

    home: no other gateway comes before this one here.
    toll: share of the toll of another gateway's home that is due here: 0 at home, 0.5 to 1.5 elsewhere.
    lean: this gateway's own leaning, 0..1 by chance, for when others are seen that do not tell their work.
    away_s: what is added to the replica's cost for it, seconds.
    """

    __slots__ = ("away_s", "home", "lean", "toll")

    def __init__(self, lean: float) -> None:
        self.home = True
        self.toll = 0.0
        self.lean = lean
        self.away_s = 0.0

    def set_rank(self, rank: float) -> None:
        """How many gateways come before this one here, as a share of the others: 0 makes it this gateway's home."""
        self.home = rank == 0.0
        self.toll = 0.0 if self.home else 0.5 + rank
        self.away_s = 0.0
