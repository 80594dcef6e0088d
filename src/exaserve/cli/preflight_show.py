"""How ``exaserve preflight`` shows its report in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exaserve.preflight import AREAS, CheckResult, CheckVerdict, PreflightReport

__all__ = ["show"]

_STYLES = {
    CheckVerdict.OK: "green",
    CheckVerdict.NOT_RUN: "dim",
    CheckVerdict.WARNING: "yellow",
    CheckVerdict.FAILED: "bold red",
}


def show(console: Console, report: PreflightReport, *, details: bool) -> None:
    """One table per host, then the findings with their repairs (once per code), then the counts.

    Args:
        details: also list checks that are ok or were not run where there are several hosts.
    """
    several = len(report.hosts()) > 3
    for host in report.hosts():
        results = [result for result in report.results if result.host == host]
        shown = results if details or not several else [r for r in results if r.verdict >= CheckVerdict.WARNING]
        if not shown:
            continue
        console.print()
        console.print(Text(host, style="bold"))
        console.print(_table(shown))
    _repairs(console, report)
    console.print()
    console.print(_line(report))


def _table(results: list[CheckResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True, padding=(0, 1))
    table.add_column("verdict", no_wrap=True, width=7)
    table.add_column("check", ratio=3, overflow="fold")
    table.add_column("found", ratio=7, overflow="fold")
    for area in AREAS:
        for result in sorted((r for r in results if r.area == area), key=lambda r: -r.verdict):
            style = _STYLES[result.verdict]
            if result.verdict is CheckVerdict.NOT_RUN:
                continue
            found = Text(result.summary)
            for line in result.lines:
                found.append(f"\n{line}", style="dim")
            for finding in result.findings:
                found.append(f"\n{finding.code} ", style=_STYLES[finding.verdict])
                found.append(finding.text)
            table.add_row(Text(result.verdict.label, style=style), Text(result.title), found)
    # What did not run is told by reason: five rows of "nvidia-smi not found" are one.
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.verdict is CheckVerdict.NOT_RUN:
            reasons.setdefault(result.summary.removeprefix("not run: "), []).append(result.check)
    for reason, checks in reasons.items():
        table.add_row(*(Text(words, style="dim") for words in ("not run", ", ".join(checks), reason)))
    return table


def _repairs(console: Console, report: PreflightReport) -> None:
    repairs: dict[tuple[str, str], CheckVerdict] = {}
    for result in report.results:
        for finding in result.findings:
            if finding.verdict >= CheckVerdict.WARNING and finding.repair:
                key = (finding.code, finding.repair)
                repairs[key] = max(repairs.get(key, CheckVerdict.OK), finding.verdict)
    if not repairs:
        return
    console.print()
    console.print(Text("What to do", style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for (code, repair), verdict in sorted(repairs.items(), key=lambda each: (-each[1], each[0])):
        table.add_row(Text(code, style=_STYLES[verdict]), Text(repair))
    console.print(table)


def _line(report: PreflightReport) -> Text:
    line = Text()
    for label, count in report.counts().items():
        if count:
            verdict = next(each for each in CheckVerdict if each.label == label)
            line.append(f"{count} {label}", style=_STYLES[verdict])
            line.append("   ")
    line.append(f"exit {report.exit_code}", style="dim")
    return line
