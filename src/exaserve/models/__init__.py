"""Models: what each is made of (matrices, caches, formats), by name or from its ``config.json``."""

from __future__ import annotations

from exaserve.models.architecture import Architecture
from exaserve.models.catalogue import find_shape, model_from_config, model_from_name
from exaserve.models.formats import FORMATS, WeightFormat
from exaserve.models.shape import ModelShape
from exaserve.models.table import MODELS

__all__ = [
    "FORMATS",
    "MODELS",
    "Architecture",
    "ModelShape",
    "WeightFormat",
    "find_shape",
    "model_from_config",
    "model_from_name",
]
