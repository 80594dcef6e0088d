"""From outputs to verdicts: a host's checks in order, the hosts compared, the report as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exaserve.preflight.checks import AREAS, CHECKS
from exaserve.preflight.codes import CodeEntry
from exaserve.preflight.machines import find_machine
from exaserve.preflight.model import (
    Check,
    CheckFinding,
    CheckResult,
    CheckVerdict,
    Context,
    Output,
    failed,
    judge_output,
    unknown,
    warning,
    worst,
)
from exaserve.preflight.nccl import start_command
from exaserve.preflight.text import plain_names

__all__ = [
    "EXIT_CODES",
    "PreflightReport",
    "build_report",
    "compare_hosts",
    "judge_host",
    "unreachable",
    "unrecognised",
]

EXIT_CODES: Mapping[CheckVerdict, int] = {
    CheckVerdict.OK: 0,
    CheckVerdict.NOT_RUN: 0,
    CheckVerdict.WARNING: 3,
    CheckVerdict.FAILED: 1,
}
"""By the worst verdict. 1 is failed, as for every command; 2 stays for wrong flags and files."""
NOTHING_JUDGED = 4
"""Exit code where no check ran at all."""
FLEET = "all hosts"


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """All results, hosts in the order given, each host's in the order of the areas."""

    results: tuple[CheckResult, ...]

    @property
    def verdict(self) -> CheckVerdict:
        return worst(result.verdict for result in self.results)

    @property
    def exit_code(self) -> int:
        if all(result.verdict is CheckVerdict.NOT_RUN for result in self.results):
            return NOTHING_JUDGED
        return EXIT_CODES[self.verdict]

    def counts(self) -> dict[str, int]:
        found = Counter(result.verdict for result in self.results)
        return {verdict.label: found[verdict] for verdict in sorted(CheckVerdict, reverse=True)}

    def hosts(self) -> list[str]:
        return list(dict.fromkeys(result.host for result in self.results))

    def as_dict(self) -> dict[str, Any]:
        """JSON values: verdict, counts, results with findings and facts."""
        return {
            "verdict": self.verdict.label,
            "exit_code": self.exit_code,
            "counts": self.counts(),
            "results": [
                {
                    "host": result.host,
                    "check": result.check,
                    "title": result.title,
                    "area": result.area,
                    "verdict": result.verdict.label,
                    "summary": result.summary,
                    "findings": [
                        {"code": f.code, "verdict": f.verdict.label, "text": f.text, "repair": f.repair}
                        for f in result.findings
                    ],
                    "lines": list(result.lines),
                    "facts": dict(result.facts),
                }
                for result in self.results
            ],
        }


def judge_host(
    host: str, outputs: Mapping[str, Output], context: Context, checks: Sequence[Check] = CHECKS
) -> list[CheckResult]:
    """Every check that has an output, in catalogue order; each sees the facts of those before it.

    The machine type is found from the first check that names the cards, unless the context has one.
    """
    found = []
    for check in checks:
        output = outputs.get(check.id)
        if output is None:
            continue
        result = judge_output(check, output, context, host)
        context = context.with_facts(check.id, result.facts)
        products = result.facts.get("products")
        if context.machine is None and isinstance(products, dict) and products:
            context = replace(context, machine=find_machine(context.machines, products))
        found.append(result)
    return sorted(found, key=lambda result: AREAS.index(result.area))


def unreachable(host: str, why: str) -> CheckResult:
    """Stands for all checks of a host that could not be reached: failed, since nothing about it is known."""
    return CheckResult(
        host, "host", "Host reached", "host", CheckVerdict.FAILED, why, (failed("PF-RUN-006", f"{host}: {why}"),)
    )


def unrecognised(name: str) -> CheckResult:
    """Stands for a saved file that is no known check's output: it may be one that was cut to nothing, so never ok."""
    finding = unknown("PF-RUN-003", f"{name} is no output of a known check")
    return CheckResult(name, "file", "Saved output", "host", CheckVerdict.WARNING, "not recognised", (finding,))


def build_report(results: Sequence[CheckResult], codes: Mapping[str, CodeEntry]) -> PreflightReport:
    """Adds the repair of the code's page where a finding has none of its own."""

    def repaired(finding: CheckFinding) -> CheckFinding:
        entry = codes.get(finding.code)
        return finding if finding.repair or entry is None else replace(finding, repair=entry.repair)

    return PreflightReport(tuple(replace(each, findings=tuple(map(repaired, each.findings))) for each in results))


# ------------------------------------------------------------------------------------------------ hosts compared
_SAME = {
    "gpu": ("products", "driver"),
    "gpu_driver": ("cuda", "driver"),
    "gpu_firmware": ("firmware", "gsp"),
    "software": ("os", "glibc", "kernel", "engine"),
    "ibstat": ("firmware",),
    "cpu": ("model", "cpus", "numa_nodes"),
    "iommu": ("iommu",),
    "governor": ("governors",),
    "huge_pages": ("transparent",),
    "weights": ("bytes", "tensors"),
}


def compare_hosts(results: Sequence[CheckResult], context: Context) -> list[CheckResult]:
    """What should be alike on all hosts; nothing for fewer than two hosts."""
    by_host: dict[str, dict[str, Mapping[str, Any]]] = {}
    for result in results:
        by_host.setdefault(result.host, {})[result.check] = result.facts
    # A paste by itself stands for no host, so what it lacks or has is no difference.
    by_host = {host: facts for host, facts in by_host.items() if len(facts) > 1}
    if len(by_host) < 2:
        return []
    findings: list[CheckFinding] = []
    for check, names in _SAME.items():
        for name in names:
            findings += _odd_ones(
                f"{check}.{name}", {host: facts.get(check, {}).get(name) for host, facts in by_host.items()}
            )
    shapes = {}
    for host, facts in by_host.items():
        tables = facts.get("topology", {}).get("tables") or []
        shapes[host] = "; ".join(
            f"{len(t['cards'])} cards, {len(t['nics'])} NICs"
            + "".join(f", {word} x {count}" for word, count in sorted(t["links"].items()))
            for t in tables
        )
    findings += _odd_ones("topology", shapes)
    rates = {host: _counted(facts.get("ibstat", {}).get("active_gbit_s")) for host, facts in by_host.items()}
    findings += _odd_ones("active ports", rates)
    findings += _mtu(by_host) + _clocks(by_host, context)
    cards = {host: len(t[0]["cards"]) for host, f in by_host.items() if (t := f.get("topology", {}).get("tables"))}
    lines = []
    if len(cards) > 1:
        # Two hosts tell as much about a link as all of them, and a bad one is found by halves.
        pair = dict(list(cards.items())[:2])
        settings = by_host[next(iter(pair))].get("nccl_interface", {}).get("recommended") or {}
        lines.append(f"bandwidth between hosts: {start_command(pair, settings)}")
    verdict = worst(finding.verdict for finding in findings)
    summary = f"{len(by_host)} hosts compared" + ("" if findings else ", alike")
    said = {"hosts": sorted(by_host)}
    return [CheckResult(FLEET, "fleet", "Hosts alike", "host", verdict, summary, tuple(findings), said, tuple(lines))]


def _odd_ones(what: str, values: Mapping[str, Any]) -> list[CheckFinding]:
    known = {host: value for host, value in values.items() if value not in (None, "", [], {})}
    kinds = Counter(repr(value) for value in known.values())
    if len(kinds) < 2:
        return []
    usual, times = kinds.most_common(1)[0]
    odd = [f"{host} ({_short(value)})" for host, value in known.items() if repr(value) != usual]
    first = next(value for value in known.values() if repr(value) == usual)
    text = (
        f"{what}: {', '.join(odd[:6])}{' and more' if len(odd) > 6 else ''}, while {times} hosts have {_short(first)}"
    )
    return [warning("PF-FLEET-001", text)]


def _counted(rates: Any) -> str:
    counts = Counter(rates) if isinstance(rates, list) else Counter[float]()
    return ", ".join(f"{count} x {rate:g} Gbit/s" for rate, count in sorted(counts.items()))


def _short(value: Any) -> str:
    text = re.sub(r"[\[\]{}'\"]", "", str(value))
    return text if len(text) <= 60 else text[:57] + "…"


def _mtu(by_host: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[CheckFinding]:
    found = []
    mtus: dict[str, dict[str, int]] = {}
    for host, facts in by_host.items():
        for name, link in (facts.get("interfaces", {}).get("interfaces") or {}).items():
            if link["up"] and not link["virtual"] and name != "lo":
                mtus.setdefault(name, {})[host] = link["mtu"]
    for name, per_host in sorted(mtus.items()):
        if len(set(per_host.values())) > 1:
            usual = Counter(per_host.values()).most_common(1)[0][0]
            odd = plain_names([f"{host} {mtu}" for host, mtu in per_host.items() if mtu != usual], 8)
            found.append(failed("PF-FLEET-002", f"MTU of {name} differs: {odd}, while most have {usual}"))
    return found


def _clocks(by_host: Mapping[str, Mapping[str, Mapping[str, Any]]], context: Context) -> list[CheckFinding]:
    offsets = {h: o for h, f in by_host.items() if isinstance(o := f.get("clock", {}).get("offset_s"), float)}
    # chrony tells the size of the offset and not its side, so the sum of the two largest bounds the spread.
    largest = sorted(offsets.values())[-2:]
    spread = sum(largest)
    if len(offsets) < 2 or spread <= 2 * context.limits.clock_offset_good_s:
        return []
    level = failed if spread > context.limits.clock_offset_failed_s else warning
    return [level("PF-FLEET-003", f"clocks may be {spread * 1000:.2f} ms apart")]
