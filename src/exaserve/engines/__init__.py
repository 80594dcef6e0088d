"""What differs between inference engines, one record each: metric names, launch, paths, dialects."""

from exaserve.engines.base import Engine, MetricSource
from exaserve.engines.reader import MetricsReader
from exaserve.engines.registry import ENGINES, health_path, metrics_paths
from exaserve.engines.signals import Signals, detect, parse

__all__ = [
    "ENGINES",
    "Engine",
    "MetricSource",
    "MetricsReader",
    "Signals",
    "detect",
    "health_path",
    "metrics_paths",
    "parse",
]
