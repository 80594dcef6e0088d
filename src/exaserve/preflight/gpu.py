"""Health of NVIDIA cards (``nvidia-smi --query-gpu``, kernel log), and whether driver, CUDA and engine go together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from exaserve.preflight.machines import find_machine
from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, number, plain_names, strip_launcher

__all__ = ["GPU_QUERY", "judge_cuda", "judge_gpu", "judge_xid", "looks_like_gpu", "parse_gpu_query"]

GPU_QUERY = (
    "index", "name", "driver_version", "memory.total", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total", "ecc.errors.corrected.aggregate.total", "retired_pages.double_bit.count",
    "retired_pages.pending", "power.limit", "power.default_limit", "power.max_limit", "temperature.gpu",
    "clocks_throttle_reasons.active", "persistence_mode", "pcie.link.gen.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max", "compute_mode", "mig.mode.current",
)  # fmt: skip
THROTTLE = {
    0x08: ("hardware slowdown", True), 0x40: ("hardware thermal slowdown", True), 0x80: ("power brake", True),
    0x20: ("software thermal slowdown", False), 0x04: ("software power cap", False), 0x10: ("sync boost", False),
}  # fmt: skip
"""Bits of NVML's clock event reasons: (name, it is a fault). 0x1 (idle) and 0x2 (clocks set) say nothing."""

# Oldest driver branch of each CUDA release, by major.minor; within a major release minor versions are compatible.
CUDA_DRIVER = {(11, 8): (450, 80), (12, 0): (525, 60), (13, 0): (580, 65)}
ENGINE_CUDA = {"vllm": (12, 0), "sglang": (12, 0)}
"""Oldest CUDA major release of an engine's published wheels; PyTorch's own answer, where there is one, goes first."""
_ABSENT = re.compile(
    r"^\[?(?:N/?A|Not Supported|Unknown Error|GPU requires reset|Insufficient Permissions)\]?$", re.IGNORECASE
)


def looks_like_gpu(text: str) -> bool:
    head = clean_lines(text)[:200]
    return any("," in line and "name" in line and "driver_version" in line for line in head)


def parse_gpu_query(text: str) -> list[dict[str, str]]:
    """Rows of a CSV with header; units in the header and in the cells are dropped. Never raises."""
    header: list[str] = []
    rows = []
    for raw in clean_lines(text):
        cells = [cell.strip() for cell in strip_launcher(raw).split(",")]
        if "name" in [cell.split(" [")[0] for cell in cells] and len(cells) > 2:
            header = [cell.split(" [")[0] for cell in cells]
        elif header and len(cells) == len(header):
            rows.append(dict(zip(header, cells, strict=True)))
    return rows


def judge_gpu(text: str, context: Context) -> Judgement:
    """Every card of the machine."""
    dead = re.search(
        r"(NVIDIA-SMI has failed[^\n]*|Unable to determine the device handle[^\n]*|GPU is lost[^\n]*"
        r"|No devices were found|Failed to initialize NVML[^\n]*)",
        text[:100_000],
    )
    rows = parse_gpu_query(text)
    found: list[CheckFinding] = []
    if dead:
        found.append(failed("PF-GPU-001", dead[1].strip()[:200]))
    if not rows:
        return Judgement("no card answers", tuple(found)) if found else not_understood("card")
    products = Counter(row.get("name", "") for row in rows)
    if len(products) > 1:
        found.append(
            warning("PF-GPU-002", "different cards: " + ", ".join(f"{n} x {name}" for name, n in products.items()))
        )
    machine = context.machine
    if machine is not None and machine.cards and len(rows) < machine.cards:
        found.append(failed("PF-TOPO-012", f"{len(rows)} cards answer, but {machine.name} has {machine.cards}"))
    for i, row in enumerate(rows):
        name = f"GPU{row.get('index', i)}"
        found += _memory_errors(name, row) + _power(name, row, context) + _link(name, row)
        if row.get("persistence_mode") == "Disabled":
            found.append(warning("PF-GPU-008", f"{name}: persistence mode is off"))
        if row.get("compute_mode") == "Prohibited":
            found.append(failed("PF-GPU-009", f"{name}: compute mode is Prohibited"))
        if row.get("mig.mode.current") == "Enabled":
            found.append(
                warning("PF-GPU-010", f"{name} is split (MIG): tensor parallelism and NVLink are not available")
            )
    found += _remapped(text)
    drivers = sorted({row["driver_version"] for row in rows if row.get("driver_version")})
    (product, count), *_ = products.most_common(1)
    facts = {
        "products": dict(products),
        "driver": drivers[0] if drivers else None,
        "memory_mib": [_value(row, "memory.total") for row in rows],
        "cards": [dict(row) for row in rows],
    }
    known = machine or find_machine(context.machines, products)
    said = f"{count} x {product}, driver {', '.join(drivers) or 'unknown'}" + (f", type {known.name}" if known else "")
    return Judgement(said, tuple(_merged(found)), facts)


def _value(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name, "")
    return None if _ABSENT.match(text) else number(text.split(" ")[0]) if text else None


def _memory_errors(name: str, row: Mapping[str, str]) -> list[CheckFinding]:
    found = []
    if row.get("ecc.mode.current") == "Disabled":
        found.append(warning("PF-GPU-003", f"{name}: ECC is off"))
    fresh = _value(row, "ecc.errors.uncorrected.volatile.total")
    ever = _value(row, "ecc.errors.uncorrected.aggregate.total")
    if fresh:
        found.append(
            failed("PF-GPU-004", f"{name}: {fresh:.0f} uncorrectable memory errors since the driver was loaded")
        )
    elif ever:
        found.append(warning("PF-GPU-004", f"{name}: {ever:.0f} uncorrectable memory errors in its life"))
    if row.get("retired_pages.pending") in {"Yes", "1"}:
        found.append(failed("PF-GPU-005", f"{name}: retired pages wait for a reset of the card"))
    if retired := _value(row, "retired_pages.double_bit.count"):
        found.append(warning("PF-GPU-005", f"{name}: {retired:.0f} pages retired after double-bit errors"))
    return found


def _remapped(text: str) -> list[CheckFinding]:
    """``remapped,BUS,correctable,uncorrectable,pending,failure`` lines of the second query."""
    found = []
    for line in clean_lines(text):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or cells[0] != "remapped":
            continue
        bus, _, uncorrectable, pending, failure = cells[1:]
        if failure not in {"0", "No", ""} and not _ABSENT.match(failure):
            found.append(failed("PF-GPU-005", f"card {bus}: row remapping has failed"))
        elif pending not in {"0", "No", ""} and not _ABSENT.match(pending):
            found.append(failed("PF-GPU-005", f"card {bus}: remapped rows wait for a reset of the card"))
        elif (count := number(uncorrectable)) and count > 0:
            found.append(warning("PF-GPU-005", f"card {bus}: {count:.0f} rows remapped after uncorrectable errors"))
    return found


def _power(name: str, row: Mapping[str, str], context: Context) -> list[CheckFinding]:
    found = []
    limit, default = _value(row, "power.limit"), _value(row, "power.default_limit")
    if context.machine is not None and context.machine.power_w:
        default = max(default or 0.0, context.machine.power_w)
    if limit and default and limit < default * 0.98:
        found.append(warning("PF-GPU-006", f"{name}: power is capped at {limit:.0f} W of {default:.0f} W"))
    word = row.get("clocks_throttle_reasons.active", row.get("clocks_event_reasons.active", ""))
    bits = int(word, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", word) else 0
    for bit, (what, fault) in THROTTLE.items():
        if bits & bit and what != "sync boost":
            level = failed if fault else warning
            found.append(level("PF-GPU-007", f"{name}: clocks are held down by {what}"))
    hot = _value(row, "temperature.gpu")
    if hot and hot >= 87:
        found.append(warning("PF-GPU-007", f"{name}: {hot:.0f} °C"))
    return found


def _link(name: str, row: Mapping[str, str]) -> list[CheckFinding]:
    width, most = _value(row, "pcie.link.width.current"), _value(row, "pcie.link.width.max")
    # The generation drops when a card idles, the width does not.
    if width and most and width < most:
        return [warning("PF-GPU-011", f"{name}: PCIe x{width:.0f} of x{most:.0f}")]
    return []


def _merged(findings: list[CheckFinding]) -> list[CheckFinding]:
    """One finding for what all cards share: ``GPU0, GPU1: ECC is off``."""
    names: dict[tuple[str, int, str], list[str]] = {}
    single: dict[tuple[str, int, str], CheckFinding] = {}
    for finding in findings:
        name, colon, rest = finding.text.partition(": ")
        key = (finding.code, int(finding.verdict), rest if colon and re.fullmatch(r"GPU\d+", name) else finding.text)
        names.setdefault(key, []).append(name)
        single[key] = finding
    return [
        finding
        if len(names[key]) == 1
        else CheckFinding(finding.code, finding.verdict, f"{plain_names(names[key])}: {key[2]}")
        for key, finding in single.items()
    ]


def _version(text: str) -> tuple[int, int] | None:
    match = re.search(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(match[1]), int(match[2])) if match else None


def judge_cuda(text: str, context: Context) -> Judgement:
    """``nvidia-smi`` (driver and the CUDA it supports), nvcc, and the engine's needs: do they go together?"""
    driver = re.search(r"Driver Version:\s*([\d.]{3,20})", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d{1,3}\.\d{1,2})", text)
    module = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]{3,20})", text)
    torch = re.search(r"torch_cuda=(\d{1,3}\.\d{1,2})", text)
    engine = re.search(r"\b(vllm|sglang)[= ]+v?(\d+\.\d+)", context.engine or text)
    if driver is None and cuda is None:
        return not_understood("driver version")
    has_driver, supports = _version(driver[1] if driver else ""), _version(cuda[1] if cuda else "")
    found: list[CheckFinding] = []
    if module and driver and module[1] != driver[1]:
        found.append(failed("PF-GPU-012", f"kernel module {module[1]} and driver library {driver[1]} differ"))
    wants: dict[str, tuple[int, int]] = {}
    if torch and (need := _version(torch[1])):
        wants["PyTorch"] = need
    elif engine:
        wants[f"{engine[1]} {engine[2]}"] = ENGINE_CUDA[engine[1]]
    for what, need in wants.items():
        if supports is not None and supports[0] < need[0]:
            text_ = f"{what} needs CUDA {need[0]}.{need[1]}, the driver supports up to {supports[0]}.{supports[1]}"
            found.append(failed("PF-GPU-013", text_))
        oldest = max((d for c, d in CUDA_DRIVER.items() if c <= need), default=None)
        if supports is None and oldest and has_driver and has_driver < oldest:
            found.append(
                failed(
                    "PF-GPU-013",
                    f"{what} needs a driver from {oldest[0]}.{oldest[1]}, this is {has_driver[0]}.{has_driver[1]}",
                )
            )
    facts: dict[str, Any] = {"driver": driver[1] if driver else None, "cuda": cuda[1] if cuda else None}
    said = f"driver {facts['driver'] or 'unknown'}, CUDA up to {facts['cuda'] or 'unknown'}"
    if cuda is None:
        found.append(unknown("PF-GPU-013", "the output does not say which CUDA the driver supports"))
    return Judgement(said, tuple(found), facts)


XID_FATAL = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 140, 143, 144, 145, 149})
"""Xids of the hardware: memory, NVLink, bus, firmware processor (vendor's Xid catalogue). Others are the program's."""


def judge_xid(text: str, context: Context) -> Judgement:
    """Kernel log: Xid lines of the driver. No line is a good sign only if the log could be read."""
    del context
    if re.search(r"Operation not permitted|Permission denied|read kernel buffer failed", text[:20_000]):
        return Judgement("kernel log not readable", (unknown("PF-GPU-014", "the kernel log may only be read as root"),))
    seen: Counter[int] = Counter()
    for line in clean_lines(text):
        if match := re.search(r"Xid \(PCI:[0-9a-fA-F:.]+\):\s*(\d{1,4})", line):
            seen[int(match[1])] += 1
    bad = {xid: count for xid, count in seen.items() if xid in XID_FATAL}
    found = []
    if bad:
        said = ", ".join(f"Xid {xid} x {count}" for xid, count in sorted(bad.items()))
        found.append(failed("PF-GPU-014", f"the driver reported hardware faults: {said}"))
    elif seen:
        said = ", ".join(f"Xid {xid} x {count}" for xid, count in sorted(seen.items()))
        found.append(warning("PF-GPU-014", f"the driver reported errors: {said}"))
    return Judgement(f"{sum(seen.values())} Xid lines", tuple(found), {"xids": dict(seen)})
