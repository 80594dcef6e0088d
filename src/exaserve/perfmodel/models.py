"""Model shapes, as each model's own published configuration file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from exaserve.perfmodel.models_dense import DENSE
from exaserve.perfmodel.models_hybrid import HYBRIDS
from exaserve.perfmodel.models_mixture import MIXTURES
from exaserve.perfmodel.shape import ModelShape

__all__ = ["MODELS", "ModelShape"]

MODELS: Mapping[str, ModelShape] = MappingProxyType({row.name: row for row in (*DENSE, *MIXTURES, *HYBRIDS)})
