"""What a check is: the command to run, and a judge of its output (text in, verdict out)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from exaserve.preflight.machines import MachineType, Thresholds

__all__ = [
    "Check",
    "CheckFinding",
    "CheckResult",
    "CheckVerdict",
    "Context",
    "Judgement",
    "Output",
    "failed",
    "judge_output",
    "not_told",
    "not_understood",
    "unknown",
    "warning",
    "worst",
]


class CheckVerdict(IntEnum):
    """Ordered by how much it matters: the worst verdict of a report is its maximum."""

    OK = 0
    NOT_RUN = 1
    WARNING = 2
    FAILED = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that is not as it should be.

    Attributes:
        code: stable code such as ``PF-TOPO-003``; the page of that name in docs/preflight explains it.
        verdict: WARNING or FAILED (NOT_RUN for the reason why a check did not run).
        text: what was found, with the figures.
        repair: what to do; empty takes the repair of the code's own page.
    """

    code: str
    verdict: CheckVerdict
    text: str
    repair: str = ""


def failed(code: str, text: str, repair: str = "") -> CheckFinding:
    return CheckFinding(code, CheckVerdict.FAILED, text, repair)


def warning(code: str, text: str, repair: str = "") -> CheckFinding:
    return CheckFinding(code, CheckVerdict.WARNING, text, repair)


def not_told(why: str) -> CheckFinding:
    """The check ran where its question has no answer (a guest asks about the sleep states of its host)."""
    return CheckFinding("PF-RUN-005", CheckVerdict.NOT_RUN, why)


def unknown(code: str, because: str, repair: str = "") -> CheckFinding:
    """Something that the output cannot tell: never good, and said with its reason."""
    return CheckFinding(code, CheckVerdict.WARNING, f"unknown, because {because}", repair)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge says of one output.

    Attributes:
        summary: one line for the table, also when all is well.
        findings: what is wrong; none means ok.
        facts: what was read, as JSON values; later judges of the same host and the fleet comparison use them.
        lines: what a reader wants to see besides, such as the units and their NICs.
    """

    summary: str
    findings: tuple[CheckFinding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    @property
    def verdict(self) -> CheckVerdict:
        return worst(finding.verdict for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Output:
    """What running a command gave.

    Attributes:
        text: standard output, then standard error.
        code: exit status; None where it is not known (saved by hand, or the session ended first).
        missing: program that is not on the host; empty if all were there.
        problem: why there is no output at all ("no answer within 20 s"); empty if there is one.
    """

    text: str = ""
    code: int | None = None
    missing: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """What a judge may know besides the output.

    Attributes:
        machine: expectations of the machine type; None where the type is not known.
        machines: all known types, for outputs that name their own cards.
        machine_given: the operator named the type, so what it promises must be there.
        limits: thresholds that hold on every machine.
        unit: cards per inference unit; None takes 4, or 2 or 1 where a machine has fewer.
        streams: concurrent client streams that this host must carry, from the plan.
        engines: engine replicas on this host.
        engine: engine and version that will be started, such as "vllm 0.11"; empty if not known.
        weights_bytes: size of the weights to be read at start; 0 if not known.
        nics: RDMA adapters that are used; empty where it was not said. Ports of others may be down.
        load_s_max: seconds in which the weights should be read.
        facts: facts of this host's checks so far, by check id.
    """

    machine: MachineType | None = None
    machines: tuple[MachineType, ...] = ()
    machine_given: bool = False
    limits: Thresholds = field(default_factory=Thresholds)
    unit: int | None = None
    streams: int = 10_000
    engines: int = 2
    engine: str = ""
    weights_bytes: int = 0
    nics: tuple[str, ...] = ()
    load_s_max: float = 300.0
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_facts(self, check: str, facts: Mapping[str, Any]) -> Context:
        return replace(self, facts={**self.facts, check: facts})

    def unit_for(self, cards: int) -> int:
        """Cards per unit on a machine with so many."""
        return self.unit if self.unit is not None else 4 if cards >= 4 else 2 if cards >= 2 else 1

    def uses(self, adapter: str) -> bool | None:
        """Whether an RDMA adapter is one of those that were chosen; None where none was."""
        return adapter in self.nics if self.nics else None

    @property
    def virtual(self) -> bool | None:
        """Whether the host is a virtual machine; None where nothing told."""
        value = self.facts.get("cpu", {}).get("virtual")
        return value if isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        id: stable name, also the name of a saved output ("topology" for topology.txt).
        title: for people.
        area: heading under which it stands: accelerators, network, host, kernel, storage.
        command: POSIX shell text; ``{peer}``, ``{weights}`` and ``{interface}`` are filled in by the caller.
        judge: text in, judgement out; pure.
        program: program that must exist; empty where the command only reads files.
        timeout_s: the command is stopped after so long.
        active: loads the machine or the network, so it runs only when asked for.
        needs: names of the placeholders without which it cannot run.
        manual: how to run it by hand, where it needs more than one host; such a check is only judged from its output.
        absent: what an empty output means ("no RDMA adapter"); without it an empty output is not understood.
        recognises: whether a text of unknown origin is this check's output.
    """

    id: str
    title: str
    area: str
    command: str
    judge: Callable[[str, Context], Judgement]
    program: str = ""
    timeout_s: float = 20.0
    active: bool = False
    needs: tuple[str, ...] = ()
    manual: str = ""
    absent: str = ""
    recognises: Callable[[str], bool] = lambda _text: False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check on a host, judged."""

    host: str
    check: str
    title: str
    area: str
    verdict: CheckVerdict
    summary: str
    findings: tuple[CheckFinding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def worst(verdicts: Any) -> CheckVerdict:
    return max(verdicts, default=CheckVerdict.OK)


def not_understood(what: str, *, summary: str = "output not understood") -> Judgement:
    """The output has nothing of what this check reads: never ok."""
    return Judgement(summary, (unknown("PF-RUN-003", f"the output has no {what}"),))


def judge_output(check: Check, output: Output, context: Context, host: str) -> CheckResult:
    """Judge one output, whatever became of the command. Never raises for any text."""
    findings: Sequence[CheckFinding] = ()
    facts: Mapping[str, Any] = {}
    lines: tuple[str, ...] = ()
    promised = context.machine_given and context.machine is not None and context.machine.promises(check.id)
    if output.missing:
        text = f"{output.missing} not found"
        level = CheckVerdict.WARNING if promised else CheckVerdict.NOT_RUN
        verdict, summary = level, f"not run: {text}"
        findings = (CheckFinding("PF-RUN-001", level, text),)
    elif output.problem or (check.absent and not output.text.strip()):
        why = output.problem or check.absent
        verdict = CheckVerdict.WARNING if promised and not output.problem else CheckVerdict.NOT_RUN
        summary = f"not run: {why}"
        findings = (CheckFinding("PF-RUN-002", verdict, why),)
    else:
        judgement = check.judge(output.text, context)
        verdict, summary, findings = judgement.verdict, judgement.summary, judgement.findings
        facts, lines = judgement.facts, judgement.lines
        if output.code not in (0, None) and verdict is CheckVerdict.OK:
            # A tool that prints what it could and then fails (ibstat after a lost device) has not said all.
            extra = warning("PF-RUN-004", f"the command ended with exit status {output.code} after this output")
            verdict, findings = CheckVerdict.WARNING, (*findings, extra)
    return CheckResult(host, check.id, check.title, check.area, verdict, summary, tuple(findings), facts, lines)
