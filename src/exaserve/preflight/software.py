"""What must be alike on all hosts and on all ranks: operating system, C library, engine, card firmware, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
from exaserve.preflight.text import clean_lines, count_of, number, plain_names, strip_launcher

__all__ = [
    "judge_firmware",
    "judge_kubernetes",
    "judge_rank_memory",
    "judge_software",
    "looks_like_firmware",
    "looks_like_nodes",
    "looks_like_ranks",
]

BALANCE_MAX = 0.05
"""Ranks of one replica hold the same share of weights and cache: more apart is a wrong cut, or memory of others."""

USED_LEAST_MIB = 1024.0
"""A card with less in use runs no engine."""


def judge_software(text: str, context: Context) -> Judgement:
    """Versions for the comparison of hosts; by themselves they are neither good nor bad."""
    del context
    lines = [strip_launcher(line).strip() for line in clean_lines(text)]
    joined = "\n".join(lines)
    system = re.search(r'^PRETTY_NAME="?([^"\n]{1,80})', joined, re.MULTILINE)
    library = re.search(r"(?:GLIBC|GNU libc|ldd \([^)]*\)).*?(\d+\.\d+)\s*$", joined, re.MULTILINE)
    kernel = re.search(r"^Linux\s+(?:\S+\s+)?(\d+\.\d+\S*)", joined, re.MULTILINE)
    engines = dict(re.findall(r"^(vllm|sglang|tensorrt_llm|torch|nccl)=(\S{1,40})$", joined, re.MULTILINE))
    if system is None and library is None and kernel is None:
        return not_understood("operating system, C library or kernel")
    facts: dict[str, Any] = {
        "os": system[1] if system else None,
        "glibc": library[1] if library else None,
        "kernel": kernel[1] if kernel else None,
        "engine": ", ".join(f"{k} {v}" for k, v in sorted(engines.items())) or None,
    }
    parts = [facts["os"] or "system unknown", f"glibc {facts['glibc'] or 'unknown'}", f"kernel {facts['kernel']}"]
    return Judgement(", ".join(parts + ([facts["engine"]] if facts["engine"] else [])), (), facts)


def looks_like_firmware(text: str) -> bool:
    return re.search(r"vbios_version|VBIOS Version", text[:100_000]) is not None


def judge_firmware(text: str, context: Context) -> Judgement:
    """``nvidia-smi``'s VBIOS and GSP firmware: one of each for one kind of card."""
    del context
    rows: list[tuple[str, str, str]] = []
    gsp: set[str] = set()
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        cells = [cell.strip() for cell in line.split(",")]
        if found := re.search(r"GSP Firmware Version\s*:\s*([\d.]{3,40})", line):
            gsp.add(found[1])
        elif len(cells) == 3 and cells[0].isdigit():
            rows.append((f"GPU{cells[0]}", cells[1], cells[2]))
    if not rows:
        return not_understood("card with its VBIOS version")
    findings: list[CheckFinding] = []
    for product in sorted({name for _, name, _ in rows}):
        versions = Counter(version for _, name, version in rows if name == product)
        if len(versions) > 1:
            usual = versions.most_common(1)[0][0]
            odd = [f"{card} ({v})" for card, name, v in rows if name == product and v != usual]
            findings.append(warning("PF-GPU-015", f"{product}: {plain_names(odd)}, the others have {usual}"))
    silent = [card for card, _, version in rows if not re.search(r"\d", version)]
    if silent:
        findings.append(unknown("PF-GPU-015", f"no firmware version of {plain_names(silent)}"))
    shown = sorted({f"{name} {version}" for _, name, version in rows})
    facts = {"firmware": shown, "gsp": sorted(gsp) or None}
    said = plain_names(sorted({v for _, _, v in rows}), 4) + (f", GSP {', '.join(sorted(gsp))}" if gsp else "")
    return Judgement(f"{count_of(len(rows), 'card')}: {said}", tuple(findings), facts)


def looks_like_ranks(text: str) -> bool:
    return re.search(r"^\s*(?:ranks,)?index,\s*memory\.used", text[:100_000], re.MULTILINE) is not None


def judge_rank_memory(text: str, context: Context) -> Judgement:
    """Memory in use of the cards of each unit, while engines run: at most 5 % apart."""
    used: dict[str, float] = {}
    for raw in clean_lines(text):
        cells = [cell.strip() for cell in strip_launcher(raw).split(",")]
        value = number(cells[1].split(" ")[0]) if len(cells) >= 2 and cells[0].isdigit() and cells[1] else None
        if value is not None:
            used[f"GPU{cells[0]}"] = value
    if not used:
        return not_understood("card with its memory in use")
    busy = [card for card, mib in used.items() if mib >= USED_LEAST_MIB]
    facts: dict[str, Any] = {"used_mib": used}
    if not busy:
        return Judgement("no engine runs", (not_told("no card has an engine's memory in use"),), facts)
    findings: list[CheckFinding] = []
    shares = []
    for unit in _units(list(used), context):
        sizes = [used[card] for card in unit if card in used]
        if len(sizes) < 2 or max(sizes) < USED_LEAST_MIB:
            continue
        apart = (max(sizes) - min(sizes)) / max(sizes)
        shares.append(apart)
        if apart >= BALANCE_MAX:
            level = failed if min(sizes) < USED_LEAST_MIB else warning
            shown = ", ".join(f"{card} {used[card]:,.0f}" for card in unit if card in used)
            text_ = f"ranks of one replica are {apart:.1%} apart (at most {BALANCE_MAX:.0%}), MiB: {shown}"
            findings.append(level("PF-GPU-016", text_))
    said = f", at most {max(shares):.1%} apart" if shares else ", one rank each"
    return Judgement(f"{count_of(len(busy), 'card')} in use{said}", tuple(findings), {**facts, "apart": shares})


_NODES = re.compile(r"^\s*NODE\s+READY\s+CAPACITY\s+ALLOCATABLE\b")


def looks_like_nodes(text: str) -> bool:
    return any(_NODES.match(line) for line in clean_lines(text)[:5000])


def judge_kubernetes(text: str, context: Context) -> Judgement:
    """Cards that each Kubernetes node offers to pods, against those it has."""
    del context
    rows: list[tuple[str, str, int, int]] = []
    inside = False
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        cells = line.split()
        if _NODES.match(line):
            inside = True
        elif inside and len(cells) == 4:
            rows.append((cells[0], cells[1], int(number(cells[2]) or 0), int(number(cells[3]) or 0)))
    if not inside or not rows:
        return not_understood("node with its capacity and allocatable cards")
    having = [row for row in rows if row[2] or row[3]]
    facts = {"allocatable": {name: free for name, _, _, free in rows}}
    if not having:
        return Judgement("no node offers cards", (not_told("no node has cards that pods may ask for"),), facts)
    findings: list[CheckFinding] = []
    short = [f"{name} ({free} of {has})" for name, _, has, free in having if free < has]
    if short:
        findings.append(failed("PF-HOST-012", f"cards that are not offered to pods: {plain_names(short)}"))
    unready = [name for name, ready, _, _ in having if ready != "True"]
    if unready:
        findings.append(failed("PF-HOST-012", f"not ready: {plain_names(unready)}"))
    usual = Counter(has for _, _, has, _ in having).most_common(1)[0][0]
    odd = [f"{name} ({has})" for name, _, has, _ in having if has < usual]
    if odd:
        findings.append(warning("PF-HOST-012", f"fewer cards than the others' {usual}: {plain_names(odd)}"))
    total = sum(free for *_, free in having)
    return Judgement(
        f"{count_of(total, 'card')} allocatable on {count_of(len(having), 'node')}", tuple(findings), facts
    )


def _units(cards: Sequence[str], context: Context) -> list[list[str]]:
    """The units of the topology, else cards in their order."""
    tables: Sequence[Mapping[str, Any]] = context.facts.get("topology", {}).get("tables") or ()
    for table in tables:
        units = [list(unit["cards"]) for unit in table.get("units") or ()]
        if units:
            return units
    size = context.unit_for(len(cards))
    return [list(cards[i : i + size]) for i in range(0, len(cards), size)]
