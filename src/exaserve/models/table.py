"""Model shapes, as each model's own published configuration file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from exaserve.models.shape import ModelShape
from exaserve.models.table_dense import DENSE
from exaserve.models.table_hybrid import HYBRIDS
from exaserve.models.table_mixture import MIXTURES
from exaserve.models.table_recent import RECENT

__all__ = ["MODELS"]

MODELS: Mapping[str, ModelShape] = MappingProxyType({row.name: row for row in (*DENSE, *MIXTURES, *HYBRIDS, *RECENT)})
