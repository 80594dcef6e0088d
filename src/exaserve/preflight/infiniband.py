"""``ibstat`` and ``ibstatus``: is every port up, at its full rate, and managed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, number, plain_names, strip_launcher, whole

__all__ = [
    "MODEL_GBIT_S",
    "Adapter",
    "Port",
    "judge_ibstat",
    "looks_like_ibstat",
    "parse_ibstat",
    "port_findings",
    "state_name",
]

MODEL_GBIT_S: Mapping[str, int] = {
    "MT4099": 56, "MT4103": 56, "MT4113": 56, "MT4115": 100, "MT4117": 50, "MT4119": 100, "MT4121": 100, "MT4123": 200,
    "MT4125": 100, "MT4127": 50, "MT4129": 400, "MT4131": 800, "MT41686": 200, "MT41692": 400,
}  # fmt: skip
"""Fastest port of each adapter by device id: ConnectX-3 to ConnectX-8, BlueField-2 and -3 (vendor's device list)."""

_CA = re.compile(r"\s*CA '([\w.-]{1,64})'\s*$")
_PORT = re.compile(r"\s*Port (\d{1,3}):\s*$")
_FIELD = re.compile(r"\s*([A-Za-z][A-Za-z _]{0,40}?):\s*(.*?)\s*$")
_STATUS = re.compile(r"\s*Infiniband device '([\w.-]{1,64})' port (\d{1,3}) status:")
_PANIC = re.compile(r"(?:ibpanic|ibwarn|ibstat)\b.*|.*stat of IB device '([^']+)' failed.*", re.IGNORECASE)


@dataclass(slots=True)
class Port:
    """One port; empty strings and None where the field was not in the output."""

    number: int
    state: str = ""
    physical: str = ""
    rate_gbit_s: float | None = None
    layer: str = ""
    base_lid: int | None = None
    sm_lid: int | None = None


@dataclass(slots=True)
class Adapter:
    """One adapter ("CA")."""

    name: str
    model: str = ""
    firmware: str = ""
    ports_said: int | None = None
    ports: list[Port] = field(default_factory=list)


def looks_like_ibstat(text: str) -> bool:
    return any(
        _CA.match(strip_launcher(line)) or _STATUS.match(strip_launcher(line)) for line in clean_lines(text)[:5000]
    )


def parse_ibstat(text: str) -> tuple[list[Adapter], list[str]]:
    """Adapters in order, and the lines by which the tool gave up. Reads both tools; never raises."""
    adapters: list[Adapter] = []
    panics: list[str] = []
    port: Port | None = None
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        if ca := _CA.match(line):
            adapters.append(Adapter(ca[1]))
            port = None
        elif status := _STATUS.match(line):
            last = adapters[-1] if adapters and adapters[-1].name == status[1] else None
            if last is None or any(each.number == int(status[2]) for each in last.ports):
                last = Adapter(status[1])
                adapters.append(last)
            port = Port(int(status[2]))
            last.ports.append(port)
        elif (found := _PORT.match(line)) and adapters:
            port = Port(int(found[1]))
            adapters[-1].ports.append(port)
        elif _PANIC.match(line.strip()):
            panics.append(line.strip()[:200])
        elif (entry := _FIELD.match(line)) and adapters:
            _set(adapters[-1], port, entry[1].strip().lower().replace("_", " "), entry[2])
    return adapters, panics


def _set(adapter: Adapter, port: Port | None, key: str, value: str) -> None:
    if key == "ca type":
        adapter.model = value
    elif key == "firmware version":
        adapter.firmware = value
    elif key == "number of ports":
        adapter.ports_said = whole(value)
    elif port is None:
        return
    elif key == "state":
        port.state = state_name(value)
    elif key in {"physical state", "phys state"}:
        port.physical = re.sub(r"^\d+:\s*", "", value)
    elif key == "rate":
        port.rate_gbit_s = number(value.split(maxsplit=1)[0]) if value.split() else None
    elif key == "link layer":
        port.layer = value
    elif key == "base lid":
        port.base_lid = whole(value)
    elif key == "sm lid":
        port.sm_lid = whole(value)


def state_name(text: str) -> str:
    """``4: ACTIVE`` and ``Active`` are one; ``2: INIT`` is what ibstat calls Initializing."""
    name = re.sub(r"^\d+:\s*", "", text).strip().capitalize()
    return "Initializing" if name == "Init" else name


def judge_ibstat(text: str, context: Context) -> Judgement:
    """Every port of every adapter."""
    adapters, panics = parse_ibstat(text)
    if not adapters:
        if panics:
            return Judgement("ibstat failed", (failed("PF-IB-001", f"the tool gave up: {panics[0]}"),))
        return not_understood("adapter")
    findings: list[CheckFinding] = [failed("PF-IB-001", f"the tool gave up: {panic}") for panic in panics[:4]]
    names = Counter(adapter.name for adapter in adapters)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        findings.append(
            unknown("PF-IB-010", f"{plain_names(twice)} occurs twice: outputs of several hosts in one text")
        )
    for adapter in adapters:
        findings += _adapter_findings(adapter, context)
    findings += _firmware(adapters)
    active = [p for a in adapters for p in a.ports if _is_active(p)]
    ports = [port for adapter in adapters for port in adapter.ports]
    machine = context.machine
    lost = [name for name in context.nics if name not in {adapter.name for adapter in adapters}]
    if lost:
        findings.append(failed("PF-IB-008", f"{plain_names(lost)} of --nic is not there"))
    if machine is not None and machine.nics and not context.nics and len(active) < machine.nics:
        findings.append(failed("PF-IB-008", f"{len(active)} active ports, but {machine.name} has {machine.nics} NICs"))
    if not ports:
        findings.append(unknown("PF-IB-005", "the output has no port"))
    rates = Counter(port.rate_gbit_s for port in active if port.rate_gbit_s is not None)
    said = ", ".join(f"{count} x {rate:g} Gbit/s" for rate, count in rates.most_common())
    summary = f"{len(active)} of {len(ports)} ports active" + (f" ({said})" if said else "")
    return Judgement(summary, tuple(findings), _facts(adapters, active))


def _facts(adapters: Sequence[Adapter], active: Sequence[Port]) -> dict[str, Any]:
    return {
        "adapters": {
            adapter.name: {
                "model": adapter.model or None,
                "firmware": adapter.firmware or None,
                "ports": [
                    {
                        "port": p.number,
                        "state": p.state,
                        "physical": p.physical,
                        "gbit_s": p.rate_gbit_s,
                        "layer": p.layer,
                    }
                    for p in adapter.ports
                ],
            }
            for adapter in adapters
        },
        "active": [adapter.name for adapter in adapters if any(_is_active(port) for port in adapter.ports)],
        "active_gbit_s": [port.rate_gbit_s for port in active if port.rate_gbit_s],
        "ethernet": any(port.layer == "Ethernet" for port in active),
        "firmware": sorted({f"{a.model} {a.firmware}" for a in adapters if a.firmware}),
    }


def _is_active(port: Port) -> bool:
    return port.state == "Active" and port.physical in {"LinkUp", ""}


def _adapter_findings(adapter: Adapter, context: Context) -> list[CheckFinding]:
    found = []
    if (adapter.ports_said is not None and len(adapter.ports) < adapter.ports_said) or not adapter.ports:
        because = f"{adapter.name} has {adapter.ports_said or 'its'} ports, {len(adapter.ports)} of them in the output"
        found.append(unknown("PF-IB-005", because))
    for port in adapter.ports:
        found += port_findings(f"{adapter.name} port {port.number}", adapter.model, port, context)
    return found


def port_findings(name: str, model: str, port: Port, context: Context) -> list[CheckFinding]:
    """What is wrong with one port."""
    if not port.state:
        return [unknown("PF-IB-005", f"the state of {name} is not in the output")]
    if port.state != "Active" or port.physical not in {"LinkUp", ""}:
        why = {
            "Polling": "no signal: cable, transceiver or the port at the other end",
            "Disabled": "switched off",
            "Sleep": "asleep",
            "LinkErrorRecovery": "the link keeps failing",
        }.get(port.physical, "")
        hint = ""
        if port.state == "Initializing":
            why, hint = "no subnet manager has taken it", "Start a subnet manager (opensm, or the one of the switch)."
        rest = f": {why}" if why else ""
        used = context.uses(name.split(" ", maxsplit=1)[0])
        # Nobody switches a port off by mistake; one without a signal may have lost its cable.
        unused = used is False or (used is None and port.physical == "Disabled")
        if unused:
            rest += " (no --nic names it)" if used is False else " (if it is used, say so with --nic)"
        level = warning if unused else failed
        return [level("PF-IB-002", f"{name} is {port.state}/{port.physical or 'unknown'}{rest}", hint)]
    found = []
    if not port.physical or port.rate_gbit_s is None or not port.layer:
        fields = (("physical state", port.physical), ("rate", port.rate_gbit_s), ("link layer", port.layer))
        missing = [what for what, value in fields if not value]
        found.append(unknown("PF-IB-005", f"{', '.join(missing)} of {name} not in the output"))
    if port.layer == "InfiniBand" and (port.sm_lid == 0 or port.base_lid in {0, 65535}):
        found.append(
            failed(
                "PF-IB-006", f"{name} is active without a subnet manager (SM lid {port.sm_lid}, lid {port.base_lid})"
            )
        )
    if port.rate_gbit_s is not None:
        found += _rate(name, model, port.rate_gbit_s, context)
    return found


def _rate(name: str, model: str, rate: float, context: Context) -> list[CheckFinding]:
    machine, possible = context.machine, MODEL_GBIT_S.get(model)
    wanted = machine.nic_gbit_s if machine is not None else 0.0
    # Storage and management ports of an adapter that cannot go faster are not held to the machine's rate.
    if wanted and rate < wanted and (possible is None or possible >= wanted):
        return [
            failed("PF-IB-003", f"{name} runs at {rate:g} Gbit/s, {machine.name if machine else ''} has {wanted:g}")
        ]
    if rate <= 10 and possible is not None and possible > 10:
        return [
            failed(
                "PF-IB-003", f"{name} ({model}) runs at {rate:g} Gbit/s of {possible}: it fell back to the slowest rate"
            )
        ]
    if possible is not None and rate < possible and not wanted:
        return [warning("PF-IB-003", f"{name} ({model}) runs at {rate:g} Gbit/s of the {possible} it can")]
    return []


def _firmware(adapters: Sequence[Adapter]) -> list[CheckFinding]:
    found = []
    for model in sorted({adapter.model for adapter in adapters if adapter.model}):
        versions = sorted({adapter.firmware for adapter in adapters if adapter.model == model and adapter.firmware})
        if len(versions) > 1:
            found.append(warning("PF-IB-007", f"{model} with different firmware: {plain_names(versions)}"))
    return found
