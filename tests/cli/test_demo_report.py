from __future__ import annotations

import dataclasses
import io
import math
import random

from rich.console import Console

from exaserve.bench import Record, summarise
from exaserve.cli.demo_load import MIX
from exaserve.cli.demo_report import PolicyRun, print_report
from exaserve.cli.machine import CpuUse


def run(policy: str, ttft_s: float, *, busy: float = 0.5, failed: int = 0, ended: tuple[str, ...] = ()) -> PolicyRun:
    rng = random.Random(1)
    records = []
    for i in range(2000):
        at = i * 0.01
        record = Record(i, rng.choice(MIX.scenarios).name, at, sent_s=at, first_byte_s=at, status=200)
        if i < failed:
            record.status, record.error, record.last_s = 503, "status", at
        else:
            record.first_token_s = record.last_s = at + ttft_s * rng.uniform(0.9, 1.1)
            record.complete = record.done = True
        records.append(record)
    names = [scenario.name for scenario in MIX.scenarios]
    summary = summarise(records, duration_s=20.0, window_s=5.0, scenarios=names)
    return PolicyRun(policy, summary, CpuUse(busy, {}), 0.01, 20.0, ended)


def report(*runs: PolicyRun) -> str:
    file = io.StringIO()
    print_report(Console(file=file, width=80), list(runs))
    return file.getvalue()


def test_two_policies_are_compared_by_ratio() -> None:
    text = report(run("round_robin", 5.0), run("entropy", 1.0))
    row = next(line for line in text.splitlines() if "short, 327 tokens" in line)
    assert "5.0" in row
    assert "1/5.0" in row
    assert "busy" not in text


def test_more_policies_have_no_ratio() -> None:
    text = report(run("a", 1.0), run("b", 1.0), run("c", 1.0))
    assert "ratio" not in text
    assert "…" not in text, "nothing is cut off without a terminal"


def test_what_spoilt_a_run_is_said_below_the_table() -> None:
    text = report(run("entropy", 1.0, busy=0.97, failed=7, ended=("node2 was ended by SIGKILL",)))
    assert "node2 was ended by SIGKILL during the run" in text
    assert "97% busy" in text
    assert "errors were status 503 (7)" in text


def test_a_run_too_short_for_windows_has_no_spread() -> None:
    short = run("entropy", 1.0)
    summary = dataclasses.replace(short.summary, windows=dataclasses.replace(short.summary.windows, stdev_s=math.nan))
    assert "±" not in report(dataclasses.replace(short, summary=summary))
