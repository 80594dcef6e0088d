"""Performance model: hardware and model tables, and a roofline that turns them into an engine's step time."""

from __future__ import annotations

from exaserve.perfmodel.calibration import Calibration, calibration_document, parse_calibration
from exaserve.perfmodel.hardware import HARDWARE, Hardware
from exaserve.perfmodel.models import MODELS, ModelShape
from exaserve.perfmodel.roofline import (
    PRECISIONS,
    EngineProfile,
    engine_profile,
    find_hardware,
    find_model,
    kv_bytes_per_token,
    profile,
)

__all__ = [
    "HARDWARE",
    "MODELS",
    "PRECISIONS",
    "Calibration",
    "EngineProfile",
    "Hardware",
    "ModelShape",
    "calibration_document",
    "engine_profile",
    "find_hardware",
    "find_model",
    "kv_bytes_per_token",
    "parse_calibration",
    "profile",
]
