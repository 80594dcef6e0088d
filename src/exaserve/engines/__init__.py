"""What differs between inference engines: metric names, paths, quirks."""

from exaserve.engines.base import Engine, Source
from exaserve.engines.signals import ENGINES, Signals, detect, parse

__all__ = ["ENGINES", "Engine", "Signals", "Source", "detect", "parse"]
