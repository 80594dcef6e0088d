"""Performance model: the hardware table, and a roofline that turns a model on it into an engine's step time."""

from __future__ import annotations

from exaserve.perfmodel.calibration import Calibration, calibration_document, parse_calibration
from exaserve.perfmodel.hardware import HARDWARE, Hardware
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.profile import EngineProfile
from exaserve.perfmodel.roofline import engine_profile, profile

__all__ = [
    "HARDWARE",
    "Calibration",
    "EngineProfile",
    "Hardware",
    "calibration_document",
    "engine_profile",
    "find_hardware",
    "parse_calibration",
    "profile",
]
