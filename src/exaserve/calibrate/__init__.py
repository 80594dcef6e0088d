"""Measures one replica and fits the constants that scheduler, emulator, simulator and planner share."""

from exaserve.calibrate.design import BatchRun, Design, ProbeRun, design_runs
from exaserve.calibrate.judge import (
    GOOD_SHARE,
    Prediction,
    combine,
    evidence,
    fit_profile,
    median_error,
    model_kv_bytes,
    not_steady,
    predict,
)
from exaserve.calibrate.measure import Measurements, Measurer, decode_point

__all__ = [
    "GOOD_SHARE",
    "BatchRun",
    "Design",
    "Measurements",
    "Measurer",
    "Prediction",
    "ProbeRun",
    "combine",
    "decode_point",
    "design_runs",
    "evidence",
    "fit_profile",
    "median_error",
    "model_kv_bytes",
    "not_steady",
    "predict",
]
