"""Are the machines what the vendor said? Checks: the command to run, and a judge of its output (text in, verdict out).

Pure: who runs the commands, here, over SSH or from saved outputs, is the command line (``exaserve preflight``). What a
machine type promises, and the page of each finding, are data files that the command line reads (``data/``).
"""

from exaserve.preflight.bindings import UnitBinding, unit_bindings
from exaserve.preflight.bundle import MARK, script, split
from exaserve.preflight.checks import AREAS, CHECKS, check_named, recognise
from exaserve.preflight.codes import CodeEntry, parse_codes, render_index, render_page
from exaserve.preflight.machines import Expectations, MachineType, Thresholds, find_machine, parse_expectations
from exaserve.preflight.model import (
    Check,
    CheckFinding,
    CheckResult,
    CheckVerdict,
    Context,
    Judgement,
    Output,
    judge_output,
)
from exaserve.preflight.page import render_html
from exaserve.preflight.report import (
    PreflightReport,
    build_report,
    compare_hosts,
    judge_host,
    unreachable,
    unrecognised,
)

__all__ = [
    "AREAS",
    "CHECKS",
    "MARK",
    "Check",
    "CheckFinding",
    "CheckResult",
    "CheckVerdict",
    "CodeEntry",
    "Context",
    "Expectations",
    "Judgement",
    "MachineType",
    "Output",
    "PreflightReport",
    "Thresholds",
    "UnitBinding",
    "build_report",
    "check_named",
    "compare_hosts",
    "find_machine",
    "judge_host",
    "judge_output",
    "parse_codes",
    "parse_expectations",
    "recognise",
    "render_html",
    "render_index",
    "render_page",
    "script",
    "split",
    "unit_bindings",
    "unreachable",
    "unrecognised",
]
