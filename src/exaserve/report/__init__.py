"""Reports as self-contained HTML with inline plots, for load runs and simulations alike. Pure."""

from exaserve.report.page import Cell, Figure, page, table
from exaserve.report.runs import GateView, HeatView, RunView, ScenarioView, StepView, runs_report
from exaserve.report.svg import Point, Series, bars, heat, lines, percentiles, scatter
from exaserve.report.words import number, seconds

__all__ = [
    "Cell",
    "Figure",
    "GateView",
    "HeatView",
    "Point",
    "RunView",
    "ScenarioView",
    "Series",
    "StepView",
    "bars",
    "heat",
    "lines",
    "number",
    "page",
    "percentiles",
    "runs_report",
    "scatter",
    "seconds",
    "table",
]
