"""The host itself: processor, sleep states, clocks, NUMA, huge pages, IOMMU and ACS."""

from __future__ import annotations

import re
from collections import Counter

from exaserve.preflight.model import (
    CheckFinding,
    Context,
    Judgement,
    failed,
    not_told,
    not_understood,
    unknown,
    warning,
)
from exaserve.preflight.text import clean_lines, count_of, cpu_list, number, plain_names, strip_launcher, whole

__all__ = [
    "judge_clock",
    "judge_cpu",
    "judge_governor",
    "judge_huge_pages",
    "judge_iommu",
    "judge_numa_balancing",
    "looks_like_clock",
    "looks_like_lscpu",
    "paths",
]

_PATH = re.compile(r"^(/(?:proc|sys)/[^:\s]{1,200}):(.*)$")


def paths(text: str) -> dict[str, str]:
    """``path:value`` lines, as ``grep -H . FILE…`` prints them; the first value of a path counts."""
    found: dict[str, str] = {}
    for raw in clean_lines(text):
        if match := _PATH.match(strip_launcher(raw).strip()):
            found.setdefault(match[1], match[2].strip())
    return found


def looks_like_lscpu(text: str) -> bool:
    return any(
        re.match(r"\s*(?:NUMA node\d* ?(?:CPU\(s\)|\(s\))|Architecture|Socket\(s\)):", line)
        for line in clean_lines(text)[:500]
    )


def judge_cpu(text: str, context: Context) -> Judgement:
    """``lscpu``: NUMA nodes that have processors (others are accelerators' memory), and whether it is a guest."""
    del context
    fields: dict[str, str] = {}
    nodes: dict[int, str] = {}
    for raw in clean_lines(text):
        name, colon, value = strip_launcher(raw).partition(":")
        if not colon:
            continue
        if node := re.fullmatch(r"\s*NUMA node(\d{1,4}) CPU\(s\)\s*", name):
            nodes.setdefault(int(node[1]), value.strip())
        else:
            fields.setdefault(name.strip(), value.strip())
    said_nodes = whole(fields.get("NUMA node(s)", ""))
    if not nodes and said_nodes is None and "Architecture" not in fields and "Socket(s)" not in fields:
        return not_understood("processor")
    with_cpus = [node for node, cpus in nodes.items() if cpu_list(cpus)]
    found: list[CheckFinding] = []
    if said_nodes is None:
        found.append(unknown("PF-HOST-001", "the NUMA nodes are not in the output"))
    elif len(nodes) < said_nodes:
        found.append(
            unknown("PF-HOST-001", f"{said_nodes} NUMA nodes are named, {len(nodes)} of them are in the output")
        )
    elif said_nodes and not with_cpus:
        found.append(unknown("PF-HOST-001", "no NUMA node has a processor in the output"))
    sockets = whole(fields.get("Socket(s)", ""))
    # Cards of one socket share a node only while a socket is one node; lscpu cannot say which card is where.
    if not found and sockets and len(with_cpus) < sockets:
        found.append(
            warning(
                "PF-HOST-002", f"{sockets} sockets in {len(with_cpus)} NUMA node: memory is interleaved over sockets"
            )
        )
    hypervisor = fields.get("Hypervisor vendor", "")
    # Without the flags (a cut output) nothing says that there is no hypervisor.
    told = bool(hypervisor) or "Flags" in fields
    virtual = (bool(hypervisor) or "hypervisor" in fields.get("Flags", "").split()) if told else None
    if said_nodes is not None and len(nodes) > len(with_cpus) and with_cpus:
        extra = f", {len(nodes) - len(with_cpus)} nodes without processors (memory of accelerators)"
    else:
        extra = ""
    count = whole(fields.get("CPU(s)", ""))
    model = fields.get("Model name", "")
    guest = f", guest of {hypervisor}" if hypervisor else ""
    numa = f"{len(with_cpus)} NUMA node{'s' if len(with_cpus) != 1 else ''}" if with_cpus else "NUMA nodes unknown"
    facts = {
        "cpus": count,
        "sockets": sockets,
        "model": model or None,
        "virtual": virtual,
        "numa_nodes": len(with_cpus) if with_cpus else None,
        "numa_nodes_named": said_nodes,
        "memory_nodes": sorted(set(nodes) - set(with_cpus)),
        "node_cpus": {str(node): nodes[node] for node in with_cpus},
    }
    seats = count_of(sockets, "socket") if sockets else "sockets unknown"
    summary = f"{count or 'unknown number of'} CPUs, {seats}, {numa}{extra}{guest}"
    return Judgement(summary, tuple(found), facts)


def judge_governor(text: str, context: Context) -> Judgement:
    """Governor, energy preference, deepest enabled sleep state of CPU 0, and the driver behind them."""
    values = paths(text)
    governors = Counter(value for path, value in values.items() if path.endswith("/scaling_governor"))
    states: dict[str, dict[str, str]] = {}
    for path, value in values.items():
        if match := re.search(r"/cpuidle/state(\d{1,2})/(name|latency|disable)$", path):
            states.setdefault(match[1], {})[match[2]] = value
    driver = next((value for path, value in values.items() if path.endswith("cpuidle/current_driver")), "")
    if not governors and not states and not driver:
        return not_understood("frequency or sleep setting")
    found: list[CheckFinding] = []
    slow = {name: count for name, count in governors.items() if name != "performance"}
    if slow:
        said = ", ".join(f"{name} on {count} CPUs" for name, count in slow.items())
        found.append(warning("PF-HOST-003", f"the frequency governor is not performance: {said}"))
    deep = []
    for number_, state in sorted(states.items(), key=lambda each: int(each[0])):
        latency = whole(state.get("latency", ""))
        if latency is not None and latency > context.limits.cstate_latency_us and state.get("disable") != "1":
            deep.append(f"{state.get('name', 'state' + number_)} ({latency} µs to wake)")
    if deep:
        found.append(warning("PF-HOST-004", f"deep sleep states are on: {plain_names(deep)}"))
    if not governors and not states:
        why = f"the kernel offers no setting (driver {driver or 'none'}): the host below decides"
        return Judgement(f"not run: {why}", (not_told(why),), {"driver": driver})
    said = ", ".join(governors) or "no governor"
    return Judgement(
        f"{said}, {len(deep)} deep sleep states on", tuple(found), {"governors": dict(governors), "deep": deep}
    )


def looks_like_clock(text: str) -> bool:
    return bool(
        re.search(
            r"^\s*(?:System time\s*:|System clock synchronized:|Leap status\s*:|NTP synchronized:)",
            text[:50_000],
            re.MULTILINE,
        )
    )


def judge_clock(text: str, context: Context) -> Judgement:
    """``chronyc tracking`` and ``timedatectl``: is the clock in step, and how far off."""
    limits = context.limits
    offset: float | None = None
    if match := re.search(r"System time\s*:\s*([\d.]{1,30}) seconds (slow|fast)", text):
        offset = number(match[1])
    elif match := re.search(r"Offset:\s*([+-]?[\d.]{1,30})(us|µs|ms|s)\b", text):
        value = number(match[1])
        offset = None if value is None else abs(value) * {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]
    leap = re.search(r"Leap status\s*:\s*([^\n]{1,40})", text)
    synced = re.search(r"(?:System clock|NTP) synchronized:\s*(yes|no)", text)
    service = re.search(r"NTP service:\s*([\w/-]{1,30})", text)
    reference = re.search(r"Reference ID\s*:\s*([0-9A-F]{8})", text)
    if offset is None and leap is None and synced is None:
        return not_understood("clock state (chronyc tracking, timedatectl)")
    found: list[CheckFinding] = []
    good_leap = leap is not None and leap[1].strip().lower() == "normal"
    if (leap is not None and not good_leap) or (reference and reference[1] == "00000000"):
        found.append(
            failed("PF-HOST-005", f"chrony is not synchronised ({leap[1].strip() if leap else 'no reference'})")
        )
    elif leap is None and synced is not None and synced[1] == "no":
        found.append(
            failed("PF-HOST-005", f"the clock is not synchronised (NTP service {service[1] if service else 'unknown'})")
        )
    if offset is not None and offset > limits.clock_offset_failed_s:
        found.append(failed("PF-HOST-006", f"the clock is {offset * 1000:.1f} ms off"))
    elif offset is not None and offset > limits.clock_offset_good_s:
        found.append(warning("PF-HOST-006", f"the clock is {offset * 1000:.2f} ms off"))
    elif offset is None and not found:
        found.append(
            unknown("PF-HOST-006", "synchronised, but how far it is off is not in the output (chronyc tracking)")
        )
    said = (
        f"{offset * 1e6:.0f} µs off"
        if offset is not None
        else "synchronised"
        if not found or synced
        else "not synchronised"
    )
    return Judgement(
        said, tuple(found), {"offset_s": offset, "synchronised": good_leap or bool(synced and synced[1] == "yes")}
    )


def judge_numa_balancing(text: str, context: Context) -> Judgement:
    """Automatic NUMA balancing moves pages under a pinned engine; zone reclaim evicts caches."""
    values = paths(text)
    balancing = values.get("/proc/sys/kernel/numa_balancing")
    reclaim = values.get("/proc/sys/vm/zone_reclaim_mode")
    if balancing is None and reclaim is None:
        return not_understood("NUMA setting")
    found: list[CheckFinding] = []
    nodes = context.facts.get("cpu", {}).get("numa_nodes")
    if balancing not in {None, "0"} and nodes != 1:
        found.append(warning("PF-HOST-007", f"automatic NUMA balancing is on ({balancing})"))
    if reclaim not in {None, "0"}:
        found.append(
            warning("PF-HOST-007", f"zone_reclaim_mode is {reclaim}: local memory is reclaimed before remote is used")
        )
    said = f"balancing {'off' if balancing == '0' else 'on' if balancing else 'not in this kernel'}"
    return Judgement(said, tuple(found), {"balancing": balancing, "zone_reclaim": reclaim})


def judge_huge_pages(text: str, context: Context) -> Judgement:
    """Transparent huge pages, reserved pages, and what is free for pinned buffers."""
    del context
    values = paths(text)
    mode = values.get("/sys/kernel/mm/transparent_hugepage/enabled", "")
    memory = {m[1]: int(m[2]) for m in re.finditer(r"(\w+(?:\(\w+\))?):\s+(\d{1,15})(?: kB)?", text[:100_000])}
    chosen = re.search(r"\[(\w+)\]", mode)
    if chosen is None and "MemTotal" not in memory:
        return not_understood("memory setting")
    found: list[CheckFinding] = []
    if chosen is None:
        found.append(unknown("PF-HOST-008", "the mode of transparent huge pages is not in the output"))
    elif chosen[1] == "never":
        found.append(warning("PF-HOST-008", "transparent huge pages are off"))
    total, free = memory.get("MemTotal"), memory.get("MemAvailable")
    reserved = memory.get("HugePages_Total", 0) * memory.get("Hugepagesize", 0)
    if total and reserved > total * 0.2:
        found.append(
            warning("PF-HOST-008", f"{reserved / 2**20:.0f} GiB are reserved as huge pages, which engines do not use")
        )
    if total and memory.get("SwapTotal", 0) > memory.get("SwapFree", 0) + 1_048_576:
        found.append(warning("PF-HOST-009", "more than 1 GiB is swapped out"))
    said = f"transparent {chosen[1] if chosen else 'unknown'}"
    if total:
        said += f", {total / 2**20:.0f} GiB memory"
    return Judgement(
        said, tuple(found), {"transparent": chosen[1] if chosen else None, "memory_kib": total, "available_kib": free}
    )


def judge_iommu(text: str, context: Context) -> Judgement:
    """IOMMU (command line, groups) and ACS of PCIe bridges: both make peer-to-peer traffic a detour or break it."""
    command = re.search(r"(?:BOOT_IMAGE|root|console|ro|quiet)=?[^\n]{0,2000}", text)
    groups = re.search(r"^iommu_groups[ =](\d{1,6})", text, re.MULTILINE)
    acs_on = len(re.findall(r"ACSCtl:\s+SrcValid\+", text))
    acs_seen = len(re.findall(r"ACSCtl:", text))
    hidden = "<access denied>" in text
    if groups is None and not acs_seen and (command is None or "iommu" not in command[0]):
        return not_understood("IOMMU or ACS state")
    words = command[0] if command else ""
    off = re.search(r"\b(?:intel_|amd_)?iommu=off\b", words) is not None
    passthrough = re.search(r"\biommu=pt\b|\biommu\.passthrough=1\b", words) is not None
    active = groups is not None and int(groups[1]) > 0 and not off
    found: list[CheckFinding] = []
    if active and not passthrough and not context.virtual:
        found.append(
            warning("PF-HOST-010", "the IOMMU translates every transfer (no iommu=pt on the kernel's command line)")
        )
    if acs_on and not context.virtual:
        found.append(
            warning("PF-HOST-011", f"ACS is on at {acs_on} PCIe bridges: peer-to-peer passes through the processor")
        )
    elif hidden and not acs_seen:
        found.append(unknown("PF-HOST-011", "the ACS state may only be read as root"))
    mode = "off" if not active else "passthrough" if passthrough else "translating"
    said = f"IOMMU {mode}, ACS on at {acs_on} of {acs_seen} bridges" if acs_seen else f"IOMMU {mode}"
    return Judgement(said, tuple(found), {"iommu": mode, "acs_on": acs_on, "acs_seen": acs_seen})
