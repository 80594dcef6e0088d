"""Counters of RDMA ports, from sysfs (``path:value`` lines or a table) or ``perfquery``: losses, errors, link downs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from exaserve.preflight.infiniband import Port, port_findings, state_name
from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, count_of, number, plain_names, strip_launcher, whole

__all__ = ["PortCounters", "judge_counters", "looks_like_counters", "parse_counters"]

_SYSFS = re.compile(r"\S*?/class/infiniband/([\w.-]{1,64})/(?:ports/(\d{1,3})/)?([\w/.-]{1,80}):(.*)$")
_TABLE = re.compile(r"\s*#?\s*(?:ca|device)\s+\S+.*\b(?:state|link_downed)\b")
_CELL = re.compile(r'"([^"]*)"|(\S+)')
_PERFQUERY = re.compile(r"\s*([A-Z][A-Za-z0-9]{2,40}):\.{2,}(\d{1,20})\s*$")
_PERF_HEAD = re.compile(r"#\s*Port (?:extended )?counters:.*?(\S+\s+\S+|Lid \d+)?\s*port (\d+)", re.IGNORECASE)
_PERF_NAMES = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "PortXmitWait": "port_xmit_wait",
    "PortXmitPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
}
LOST = (
    "port_rcv_errors", "port_xmit_discards", "port_rcv_remote_physical_errors", "excessive_buffer_overrun_errors",
    "packet_seq_err", "out_of_sequence", "rx_icrc_encapsulated", "local_ack_timeout_err",
)  # fmt: skip
"""Packets that had to be sent again or were dropped: the physical layer's, and RoCE's own (hw_counters)."""


@dataclass(slots=True)
class PortCounters:
    """One port: state as text, counters as numbers (none that was not in the output)."""

    adapter: str
    port: int = 1
    words: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.adapter} port {self.port}"


def looks_like_counters(text: str) -> bool:
    lines = [strip_launcher(line) for line in clean_lines(text)[:5000]]
    return any(_SYSFS.match(line) or _PERFQUERY.match(line) or _TABLE.match(line) for line in lines)


def parse_counters(text: str) -> tuple[list[PortCounters], int]:
    """Ports in order, and the number of rows that did not fit their table. Never raises."""
    ports: dict[tuple[str, int], PortCounters] = {}
    header: list[str] = []
    current: PortCounters | None = None
    damaged = 0
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        if path := _SYSFS.match(line):
            key = (path[1], int(path[2] or 1))
            port = ports.setdefault(key, PortCounters(*key))
            _store(port, path[3].rsplit("/", 1)[-1], path[4].strip())
        elif head := _PERF_HEAD.search(line):
            key = ((head[1] or "port").strip(), int(head[2][:4]))
            current = ports.setdefault(key, PortCounters(*key))
        elif (entry := _PERFQUERY.match(line)) and entry[1] in _PERF_NAMES:
            current = current or ports.setdefault(("port", 1), PortCounters("port"))
            current.counters[_PERF_NAMES[entry[1]]] = int(entry[2])
        elif _TABLE.match(line):
            header = line.replace("#", " ").split()
        elif header and line.strip() and not line.lstrip().startswith("#"):
            cells = [quoted or plain for quoted, plain in _CELL.findall(line)]
            if len(cells) != len(header):
                damaged += 1
                continue
            port = ports.setdefault((cells[0], 1), PortCounters(cells[0]))
            for name, value in zip(header[1:], cells[1:], strict=True):
                _store(port, name, value)
    return list(ports.values()), damaged


def _store(port: PortCounters, name: str, value: str) -> None:
    count = whole(value)
    if count is not None and name not in {"state", "phys_state", "rate", "link_layer", "fw_ver", "hca_type"}:
        port.counters[name] = count
    else:
        port.words[name] = value[:200]


def judge_counters(text: str, context: Context) -> Judgement:
    """Losses per packet, symbol errors, links that went down, and counters that cannot be right."""
    ports, damaged = parse_counters(text)
    if not ports:
        return not_understood("RDMA port")
    findings: list[CheckFinding] = []
    if damaged:
        findings.append(unknown("PF-IB-005", f"{damaged} rows do not fit the table"))
    counted = 0
    for port in ports:
        if "state" in port.words:
            state = Port(
                port.port,
                state_name(port.words["state"]),
                re.sub(r"^\d+:\s*", "", port.words.get("phys_state", "")),
                number(port.words.get("rate", "").split(" ")[0]),
                port.words.get("link_layer", ""),
            )
            findings += port_findings(port.name, port.words.get("hca_type", ""), state, context)
        counted += bool(port.counters)
        findings += _port_findings(port, context)
    findings += _copied(ports)
    if counted < len(ports):
        without = [port.name for port in ports if not port.counters]
        findings.append(unknown("PF-IB-004", f"no counters for {plain_names(without)}"))
    blind = [port.name for port in ports if port.counters and _loss(port.counters) is None]
    if blind:
        findings.append(unknown("PF-IB-004", f"the loss ratio of {plain_names(blind)} needs packet and error counters"))
    known = [ratio for port in ports if (ratio := _loss(port.counters)) is not None]
    said = f", worst loss {max(known) * 100:.2g} %" if known else ", loss ratio unknown (no packet counters)"
    facts = {port.name: {"counters": port.counters, **port.words} for port in ports}
    return Judgement(f"{count_of(len(ports), 'port')}{said}", tuple(findings), {"ports": facts})


def _loss(counters: Mapping[str, int]) -> float | None:
    packets = [counters[name] for name in ("port_rcv_packets", "port_xmit_packets") if name in counters]
    lost = [counters[name] for name in LOST if name in counters]
    if not packets or not lost or sum(packets) <= 0:
        return None
    return max(0, sum(lost)) / sum(packets)


def _port_findings(port: PortCounters, context: Context) -> list[CheckFinding]:
    limits, counters, found = context.limits, port.counters, []
    ratio = _loss(counters)
    if ratio is not None and ratio > limits.loss_ratio_max:
        lost = ", ".join(f"{name} {counters[name]:,}" for name in LOST if counters.get(name))
        text = (
            f"{port.name} loses {ratio * 100:.3g} % of its packets (at most {limits.loss_ratio_max * 100:g} %): {lost}"
        )
        found.append(failed("PF-IB-009", text))
    symbols = counters.get("symbol_error", 0) + counters.get("local_link_integrity_errors", 0)
    if symbols:
        level = failed if symbols >= limits.symbol_errors_failed else warning
        found.append(level("PF-IB-011", f"{port.name}: {symbols:,} symbol errors since the counters were cleared"))
    downs = counters.get("link_downed", 0)
    if downs >= limits.link_downs_failed:
        more = " or more (the counter stops at 255)" if downs == 255 else ""
        found.append(failed("PF-IB-012", f"{port.name} went down {downs}{more} times"))
    elif downs:
        found.append(warning("PF-IB-012", f"{port.name} went down {downs} time{'s' if downs > 1 else ''}"))
    if counters.get("link_error_recovery", 0):
        found.append(
            warning("PF-IB-012", f"{port.name} recovered from link errors {counters['link_error_recovery']:,} times")
        )
    return found


def _copied(ports: list[PortCounters]) -> list[CheckFinding]:
    """Busy counters are never alike on several ports: such a text was copied, or the driver lies."""
    found = []
    for name in sorted({name for port in ports for name in port.counters}):
        values = [port.counters[name] for port in ports if name in port.counters]
        if len(values) > 2 and len(set(values)) == 1 and values[0] > 255:
            found.append(
                unknown("PF-IB-004", f"{name} is {values[0]:,} on all {len(values)} ports, which no real ports show")
            )
    return found
