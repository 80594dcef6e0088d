"""Performance model: the hardware table, and a roofline that turns a model on it into an engine's step time."""

from __future__ import annotations

from exaserve.perfmodel.calibration import Calibration, calibration_document, parse_calibration
from exaserve.perfmodel.hardware import HARDWARE, Hardware
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.roofline import (
    PRECISIONS,
    EngineProfile,
    engine_profile,
    kv_bytes_per_token,
    profile,
)

__all__ = [
    "HARDWARE",
    "PRECISIONS",
    "Calibration",
    "EngineProfile",
    "Hardware",
    "calibration_document",
    "engine_profile",
    "find_hardware",
    "kv_bytes_per_token",
    "parse_calibration",
    "profile",
]
