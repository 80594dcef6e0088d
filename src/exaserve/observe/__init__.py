"""Metrics and structured events of the gateway: injected, bounded, never global."""

from exaserve.observe.exposition import Family, Histogram, labels
from exaserve.observe.log import EventLog, LineSink, null_log
from exaserve.observe.metrics import GatewayMetrics

__all__ = ["EventLog", "Family", "GatewayMetrics", "Histogram", "LineSink", "labels", "null_log"]
