"""``exaserve preflight``: are the machines what the vendor said?"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.console import Console

from exaserve.cli.preflight_hosts import (
    Collected,
    SshOptions,
    collect_hosts,
    collect_local,
    read_hosts,
    read_saved,
    save,
)
from exaserve.cli.preflight_options import (
    Active,
    AsJson,
    Checks,
    ConnectTimeout,
    Details,
    Engine,
    Engines,
    Explain,
    Hosts,
    HostsAtOnce,
    HostsFile,
    Html,
    MachineName,
    MachinesFile,
    Nics,
    Peer,
    PrintScript,
    Saved,
    SaveTo,
    SessionTimeout,
    Ssh,
    Streams,
    UnitSize,
    Weights,
    WeightsGb,
)
from exaserve.cli.preflight_show import show
from exaserve.domain.errors import ConfigError
from exaserve.preflight import (
    CHECKS,
    Check,
    CheckResult,
    CodeEntry,
    Context,
    Expectations,
    Output,
    PreflightReport,
    build_report,
    compare_hosts,
    judge_host,
    parse_codes,
    parse_expectations,
    render_html,
    render_page,
    script,
    unreachable,
    unrecognised,
)

__all__ = ["load_codes", "load_expectations", "preflight"]


def _package_yaml(name: str) -> Any:
    text = resources.files("exaserve.preflight").joinpath("data", name).read_text(encoding="utf-8")
    return yaml.safe_load(text)


def load_codes() -> dict[str, CodeEntry]:
    """Every code with its text."""
    return parse_codes(_package_yaml("codes.yaml"), "codes.yaml")


def load_expectations(file: Path | None = None) -> Expectations:
    """Machine types and limits: those of the package, with the types of ``file`` before them and its limits instead.

    Raises:
        ConfigError: the file cannot be read or is wrong.
    """
    own = parse_expectations(_package_yaml("machines.yaml"), "machines.yaml")
    if file is None:
        return own
    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: {error}") from error
    theirs = parse_expectations(document, str(file))
    limits = theirs.limits if isinstance(document, dict) and "limits" in document else own.limits
    return Expectations((*theirs.machines, *own.machines), limits)


def preflight(
    hosts: Hosts = None,
    hosts_file: HostsFile = None,
    saved: Saved = None,
    ssh: Ssh = "ssh",
    connect_timeout_s: ConnectTimeout = 10,
    session_timeout_s: SessionTimeout = 900.0,
    hosts_at_once: HostsAtOnce = 16,
    check: Checks = None,
    active: Active = False,
    weights: Weights = None,
    peer: Peer = None,
    machine: MachineName = None,
    machines: MachinesFile = None,
    unit: UnitSize = None,
    nic: Nics = None,
    streams: Streams = 10_000,
    engines: Engines = 2,
    engine: Engine = "",
    weights_gb: WeightsGb = 0.0,
    as_json: AsJson = False,
    html: Html = None,
    save_to: SaveTo = None,
    details: Details = False,
    print_script: PrintScript = False,
    explain: Explain = None,
) -> None:
    """Check machines before anything is started: cards and links, network, kernel, disks, weights.

    Without options, this machine. Exit code by the worst verdict: 0 ok, 3 warning, 1 failed, 4 nothing could be judged
    (2 is a wrong flag or file). Every finding has a code with a page in docs/preflight.
    """
    codes = load_codes()
    if explain is not None:
        return _explain(explain, codes)
    expectations = load_expectations(machines)
    context = _context(expectations, machine, unit, streams, engines, engine, weights_gb, nic)
    names = read_hosts(hosts or [], hosts_file)
    if saved is not None and names:
        raise ConfigError("--from and --host exclude each other")
    # A check that is named may load the machine: why else name it.
    plan = _Plan(tuple(_chosen(check)), weights, peer, active or bool(check))
    if print_script:
        can, values, _ = plan.runnable(peer)
        typer.echo(script(can, values), nl=False)
        return None
    console = Console(stderr=True)
    if saved is not None:
        collected = read_saved(saved)
    elif names:
        ssh_options = SshOptions(
            tuple(shlex.split(ssh)) or ("ssh",), connect_timeout_s, session_timeout_s, hosts_at_once
        )
        collected = _over_ssh(names, plan, ssh_options, console)
    else:
        collected = [_here(plan, session_timeout_s, console)]
    if save_to is not None:
        for each in collected:
            save(each, save_to)
    report = _judge(collected, context, codes, only=_names(check))
    _write(report, as_json=as_json, html=html, details=details)
    raise typer.Exit(report.exit_code)


def _explain(code: str, codes: Mapping[str, CodeEntry]) -> None:
    entry = codes.get(code.upper())
    if entry is None:
        raise ConfigError(f"there is no finding {code}; the codes are those of docs/preflight")
    typer.echo(render_page(code.upper(), entry), nl=False)


def _context(
    expectations: Expectations,
    machine: str | None,
    unit: int | None,
    streams: int,
    engines: int,
    engine: str,
    weights_gb: float,
    nic: Sequence[str] | None,
) -> Context:
    known = {each.name: each for each in reversed(expectations.machines)}
    if machine is not None and machine not in known:
        raise ConfigError(
            f"--machine: {machine} is not known; one of {', '.join(sorted(known))}, or a type of --machines"
        )
    return Context(
        machine=known[machine] if machine else None,
        machines=expectations.machines,
        machine_given=machine is not None,
        limits=expectations.limits,
        unit=unit,
        streams=streams,
        engines=engines,
        engine=engine,
        weights_bytes=int(weights_gb * 1e9),
        nics=tuple(sorted(_names(nic) or ())),
    )


def _names(options: Sequence[str] | None) -> set[str] | None:
    return {part for option in options for part in option.split(",") if part} if options else None


def _chosen(names: Sequence[str] | None) -> list[Check]:
    if not names:
        return list(CHECKS)
    known = {check.id: check for check in CHECKS}
    wanted = _names(names) or set()
    for name in sorted(wanted):
        if name not in known:
            raise ConfigError(f"--check: {name} is not known; one of {', '.join(known)}")
    # Other checks' facts make a verdict sharper (is this a guest? which cards?), so these run along, unseen.
    along = {"cpu", "gpu", "ibstat", "interfaces", "topology"}
    return [check for check in CHECKS if check.id in wanted or check.id in along]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to run: checks, the values of their placeholders, and whether the machine may be loaded."""

    checks: tuple[Check, ...]
    weights: str | None
    peer: str | None
    active: bool

    def runnable(self, peer: str | None) -> tuple[list[Check], dict[str, str], dict[str, Output]]:
        """Checks that can run, the values for them, and why the others do not."""
        values = {key: value for key, value in (("weights", self.weights), ("peer", peer)) if value}
        can, cannot = [], {}
        for check in self.checks:
            missing = [name for name in check.needs if name not in values]
            if check.manual:
                cannot[check.id] = Output(problem=f"by hand: {check.manual}")
            elif check.active and not self.active:
                cannot[check.id] = Output(problem="loads the machine: needs --active")
            elif missing:
                cannot[check.id] = Output(problem=f"needs --{missing[0]}")
            else:
                can.append(check)
        return can, values, cannot


def _here(plan: _Plan, timeout_s: float, console: Console) -> Collected:
    can, values, cannot = plan.runnable(plan.peer)
    with console.status(f"{len(can)} checks on this machine"):
        got = asyncio.run(collect_local(can, values, timeout_s))
    return Collected(got.host, {**cannot, **got.outputs}, got.problem, got.raw)


def _over_ssh(names: Sequence[str], plan: _Plan, ssh: SshOptions, console: Console) -> list[Collected]:
    def peer_of(host: str) -> str | None:
        if plan.peer is not None or len(names) < 2:
            return plan.peer
        # A user before the name is SSH's, not ping's.
        return re.sub(r"^.*@", "", names[(names.index(host) + 1) % len(names)])

    def checks(host: str) -> tuple[Sequence[Check], Mapping[str, str]]:
        can, values, _ = plan.runnable(peer_of(host))
        return can, values

    finished = 0
    with console.status(f"0 of {len(names)} hosts") as status:

        def done(_: Collected) -> None:
            nonlocal finished
            finished += 1
            status.update(f"{finished} of {len(names)} hosts")

        got = asyncio.run(collect_hosts(names, checks, ssh, done))
    return [Collected(c.host, {**plan.runnable(peer_of(c.host))[2], **c.outputs}, c.problem, c.raw) for c in got]


def _judge(
    collected: Sequence[Collected], context: Context, codes: Mapping[str, CodeEntry], only: set[str] | None
) -> PreflightReport:
    results: list[CheckResult] = []
    for each in collected:
        if each.problem:
            results.append(unreachable(each.host, each.problem))
        elif not each.outputs:
            results.append(unrecognised(each.host))
        else:
            results += judge_host(each.host, each.outputs, context)
    results += compare_hosts(results, context)
    if only is not None:
        results = [result for result in results if result.check in only or result.check in {"host", "fleet", "file"}]
    return build_report(results, codes)


def _write(report: PreflightReport, *, as_json: bool, html: Path | None, details: bool) -> None:
    if html is not None:
        when = time.strftime("%Y-%m-%d %H:%M %Z")
        try:
            html.write_text(render_html(report, title="ExaServe preflight", when=when), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{html}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        show(Console(highlight=False), report, details=details)
