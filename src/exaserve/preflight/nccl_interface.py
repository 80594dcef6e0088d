"""Which interface and adapters NCCL takes, and which it should: environment, configuration files, NCCL's own log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, unknown, warning
from exaserve.preflight.text import clean_lines, plain_names, strip_launcher

__all__ = ["judge_nccl_interface", "looks_like_nccl_log", "recommended"]

_SETTING = re.compile(r"^(?:export\s+)?(NCCL_[A-Z0-9_]{1,40}|GLOO_SOCKET_IFNAME)\s*=\s*(.*?)\s*$")
_NETWORK = re.compile(r"NCCL INFO (?:Using network|NET/\w+\s*: Using network)\s+(\S+)")
_DEVICE = re.compile(r"\[(\d{1,3})\]([\w.-]{1,64}):(\d{1,3})/(IB|RoCE|SHARP)")
_SOCKET = re.compile(
    r"NCCL INFO (?:NET/Socket : Using|Bootstrap\s*: Using)\s+(?:\[\d+\])?([\w.-]{1,32}?):([\d.a-fA-F:]+)<\d+>"
)
_GDR_OFF = re.compile(r"GPU Direct RDMA Disabled for (?:GPU|HCA)", re.IGNORECASE)
_UNUSABLE = ("docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "lo", "tunl")


def looks_like_nccl_log(text: str) -> bool:
    head = text[:2_000_000]
    return "NCCL INFO" in head or bool(re.search(r"^(?:export\s+)?NCCL_[A-Z_]+\s*=", head, re.MULTILINE))


def judge_nccl_interface(text: str, context: Context) -> Judgement:
    """An empty output is a sound one here: nothing is set, and NCCL chooses by itself."""
    settings: dict[str, str] = {}
    network, socket, gdr_off = "", "", False
    devices: dict[str, str] = {}
    for raw in clean_lines(text):
        line = strip_launcher(raw).strip()
        if setting := _SETTING.match(line):
            settings[setting[1]] = setting[2].strip("\"'")
        if taken := _NETWORK.search(line):
            network = taken[1]
        devices.update({name: kind for _, name, _, kind in _DEVICE.findall(line)})
        if used := _SOCKET.search(line):
            socket = socket or used[1]
        gdr_off |= bool(_GDR_OFF.search(line))
    should = recommended(context.facts)
    found = _interface_findings(settings, socket, context) + _adapter_findings(
        settings, network, devices, should, context
    )
    if gdr_off:
        found.append(
            warning("PF-NET-015", "NCCL's log says that GPUDirect RDMA is disabled: copies pass through the host")
        )
    said = network or ("as set" if settings else "NCCL chooses by itself")
    matters = bool(
        devices or network or any(context.facts.get(check) for check in ("gpu", "rocm", "ibstat", "topology"))
    )
    want = " ".join(f'{name}="{value}"' for name, value in should.items()) if matters else ""
    summary = f"{said}; should be {want}" if want else said
    facts = {"settings": settings, "network": network or None, "socket": socket or None, "recommended": should}
    return Judgement(summary, tuple(found), {**facts, "devices": devices})


def recommended(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Values for NCCL_SOCKET_IFNAME and NCCL_IB_HCA from the host's other checks; none where they tell nothing.

    The adapters are those nearest to a card (topology) or, without that, all active ones of the fastest rate (ibstat).
    """
    found = {}
    tables = facts.get("topology", {}).get("tables") or []
    near = [nic.get("name") or nic.get("nic") for table in tables for nic in table.get("nic_of", {}).values()]
    near = [name for name in near if isinstance(name, str) and not name.startswith("NIC")]
    adapters = facts.get("ibstat", {}).get("adapters") or {}
    rates = {
        name: max((port["gbit_s"] or 0 for port in each["ports"] if port["state"] == "Active"), default=0)
        for name, each in adapters.items()
    }
    fastest = max(rates.values(), default=0)
    active = [name for name, rate in rates.items() if rate and rate == fastest]
    chosen = [name for name in dict.fromkeys(near) if not rates or rates.get(name)] or active
    if chosen:
        found["NCCL_IB_HCA"] = "=" + ",".join(chosen)
    links = facts.get("interfaces", {}).get("interfaces") or {}
    usable = [
        name
        for name, link in links.items()
        if link["up"] and link["addresses"] and not link["virtual"] and name != "lo"
    ]
    if len(links) > len(usable) and usable:
        found["NCCL_SOCKET_IFNAME"] = "=" + usable[0]
    return found


def _interface_findings(settings: Mapping[str, str], socket: str, context: Context) -> list[CheckFinding]:
    links = context.facts.get("interfaces", {}).get("interfaces") or {}
    found = []
    wanted = settings.get("NCCL_SOCKET_IFNAME", "")
    if wanted and links:
        names = [name for name in links if _matches(name, wanted)]
        down = [name for name in names if not links[name]["up"]]
        if not names:
            found.append(failed("PF-NET-012", f"NCCL_SOCKET_IFNAME={wanted} matches no interface of this host"))
        elif len(down) == len(names):
            found.append(failed("PF-NET-012", f"NCCL_SOCKET_IFNAME={wanted}: {plain_names(down)} is down"))
    if socket.startswith(_UNUSABLE):
        found.append(failed("PF-NET-012", f"NCCL took {socket}, which other hosts cannot reach"))
    virtual = [
        name for name, link in links.items() if link["virtual"] and link["up"] and link["addresses"] and name != "lo"
    ]
    if virtual and not wanted and not socket and len(links) > 2:
        text = f"NCCL_SOCKET_IFNAME is not set and {plain_names(virtual)} could be taken"
        found.append(warning("PF-NET-013", text))
    return found


def _matches(name: str, setting: str) -> bool:
    """NCCL's rule: prefixes separated by commas; ``^`` excludes, ``=`` wants the exact name."""
    exclude, exact = setting.startswith("^"), setting.lstrip("^").startswith("=")
    parts = [part for part in setting.lstrip("^=").split(",") if part]
    hit = any(name == part if exact else name.startswith(part) for part in parts)
    return hit != exclude


def _adapter_findings(
    settings: Mapping[str, str], network: str, devices: Mapping[str, str], should: Mapping[str, str], context: Context
) -> list[CheckFinding]:
    adapters = context.facts.get("ibstat", {}).get("adapters") or {}
    active: Sequence[str] = context.facts.get("ibstat", {}).get("active") or []
    found = []
    if settings.get("NCCL_IB_DISABLE") == "1" and active:
        found.append(failed("PF-NET-014", f"NCCL_IB_DISABLE=1 although {plain_names(active)} are active"))
    if network == "Socket":
        found.append(failed("PF-NET-014", "NCCL's log says 'Using network Socket': TCP instead of RDMA"))
    wanted = settings.get("NCCL_IB_HCA", "")
    if wanted and adapters:
        names = [name for name in adapters if _matches(name, re.sub(r":\d+", "", wanted))]
        if not names:
            found.append(failed("PF-NET-014", f"NCCL_IB_HCA={wanted} matches no adapter of this host"))
        elif down := [name for name in names if name not in active]:
            found.append(
                failed("PF-NET-014", f"NCCL_IB_HCA={wanted} includes {plain_names(down)}, which is not active")
            )
        if not wanted.lstrip("^").startswith("=") and any(
            sum(name.startswith(part) for name in adapters) > 1 for part in wanted.lstrip("^").split(",") if part
        ):
            found.append(
                warning(
                    "PF-NET-014", f"NCCL_IB_HCA={wanted} matches by prefix: mlx5_1 is also mlx5_10", "Write =mlx5_1."
                )
            )
    right = should.get("NCCL_IB_HCA", "").lstrip("=").split(",") if should.get("NCCL_IB_HCA") else []
    unused = [name for name in right if devices and name not in devices]
    if unused:
        found.append(warning("PF-NET-014", f"NCCL did not take {plain_names(unused)}, the NIC nearest to a card"))
    kinds = set(devices.values())
    if len(kinds - {"SHARP"}) > 1:
        found.append(
            unknown("PF-NET-014", "NCCL took InfiniBand and RoCE adapters together; they are rarely one network")
        )
    return found
