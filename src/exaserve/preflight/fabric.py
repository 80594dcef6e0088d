"""Ethernet and RoCE settings, MTU end to end, latencies, adaptive routing."""

from __future__ import annotations

import re
from statistics import median

from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, count_of, number, plain_names, strip_launcher, whole

__all__ = [
    "judge_adaptive_routing",
    "judge_ib_latency",
    "judge_interfaces",
    "judge_link_latency",
    "judge_mtu_ping",
    "judge_roce",
    "looks_like_ib_latency",
]

_LINK = re.compile(r"^\s*\d{1,6}:\s+([^\s:@]{1,32})(?:@[^\s:]+)?:\s+<([^>]*)>.*?\bmtu\s+(\d{1,6})\b(.*)$")
_ADDRESS = re.compile(r"^\s*\d{1,6}:\s+(\S{1,32})\s+inet\s+([\d.]+)/(\d{1,2})\b")
_VIRTUAL = re.compile(
    r"^(?:lo|docker|veth|virbr|br-|cni|flannel|cali|tunl|vxlan|dummy|bonding_masters|kube|nodelocal|tailscale|wg|ovs)"
)


def judge_interfaces(text: str, context: Context) -> Judgement:
    """``ip -o link; ip -o -4 addr``: MTU of the interfaces that carry traffic."""
    del context
    links: dict[str, dict[str, object]] = {}
    for raw in clean_lines(text):
        line = strip_launcher(raw) if not _LINK.match(raw) and not _ADDRESS.match(raw) else raw
        if link := _LINK.match(line):
            flags = link[2].split(",")
            up = "UP" in flags and "state DOWN" not in link[4] and "NO-CARRIER" not in flags
            links[link[1]] = {"mtu": int(link[3]), "up": up, "virtual": bool(_VIRTUAL.match(link[1])), "addresses": []}
        elif (address := _ADDRESS.match(line)) and address[1] in links:
            held = links[address[1]]["addresses"]
            assert isinstance(held, list)
            held.append(f"{address[2]}/{address[3]}")
    if not links:
        return not_understood("interface")
    real = {name: link for name, link in links.items() if link["up"] and not link["virtual"] and name != "lo"}
    found: list[CheckFinding] = []
    if not real:
        found.append(failed("PF-NET-001", "no interface but the loopback is up"))
    mtus = {name: link["mtu"] for name, link in real.items()}
    fast = {name: mtu for name, mtu in mtus.items() if name.startswith("ib")}
    small = [f"{name} ({mtu})" for name, mtu in fast.items() if isinstance(mtu, int) and mtu < 2044]
    if small:
        found.append(warning("PF-NET-002", f"small MTU on {plain_names(small)}"))
    jumbo = [name for name, mtu in mtus.items() if isinstance(mtu, int) and mtu >= 9000]
    plain = [name for name, mtu in mtus.items() if mtu == 1500]
    if jumbo and plain and len(jumbo) >= len(plain):
        found.append(
            warning("PF-NET-002", f"MTU 1500 on {plain_names(plain)}, but {plain_names(jumbo)} have jumbo frames")
        )
    said = ", ".join(f"{name} {mtu}" for name, mtu in list(mtus.items())[:6])
    return Judgement(
        f"{count_of(len(real), 'interface')} up: {said}" if real else "none up", tuple(found), {"interfaces": links}
    )


def judge_mtu_ping(text: str, context: Context) -> Judgement:
    """``ping -M do -s 8972``: 9000 bytes arrive in one piece, or the path tells how much does."""
    del context
    lines = clean_lines(text)
    joined = "\n".join(lines)
    sent = re.search(r"(\d{1,9}) packets transmitted, (?:\d+ packets )?(\d{1,9}) (?:packets )?received", joined)
    mtu = re.search(r"mtu\s*=\s*(\d{1,6})", joined)
    too_long = "message too long" in joined.lower() or "frag needed" in joined.lower()
    if too_long:
        size = f" {mtu[1]}" if mtu else ""
        text_ = f"8972 bytes do not pass in one piece: the path's MTU is{size or ' smaller'}"
        return Judgement(
            f"MTU{size or ' too small'}", (failed("PF-NET-003", text_),), {"mtu": int(mtu[1]) if mtu else None}
        )
    if re.search(
        r"unknown host|name or service not known|network is unreachable|no route to host", joined, re.IGNORECASE
    ):
        return Judgement("peer not reached", (failed("PF-NET-004", "the peer cannot be reached at all"),))
    if sent is None:
        return not_understood("ping statistics")
    total, got = int(sent[1]), int(sent[2])
    if got == 0:
        found = failed(
            "PF-NET-003", f"none of {total} unfragmented packets of 8972 bytes arrived: a hop drops them silently"
        )
        return Judgement("nothing arrived", (found,), {"received": 0})
    if got < total:
        text_ = f"{total - got} of {total} packets of 8972 bytes were lost"
        return Judgement(text_, (warning("PF-NET-005", text_),), {"received": got})
    return Judgement(f"8972 bytes unfragmented, {got} of {total}", (), {"received": got, "mtu_at_least": 9000})


def judge_ib_latency(text: str, context: Context) -> Judgement:
    """``ib_write_lat`` (or ``ib_send_lat``, ``ib_read_lat``) and ``ibping``: one-way time of the smallest message."""
    limits = context.limits
    value: float | None = None
    what = "ib_write_lat"
    lines = [strip_launcher(line) for line in clean_lines(text)]
    columns: list[str] = []
    for line in lines:
        if "#bytes" in line and "#iterations" in line:
            columns = re.sub(r"(\d[\d.]*%)\s+percentile", r"\1_percentile", line).split()
        elif columns and value is None:
            words = line.split()
            size = whole(words[0]) if len(words) == len(columns) else None
            typical = next((i for i, name in enumerate(columns) if name.startswith("t_typical")), None)
            average = next((i for i, name in enumerate(columns) if name.startswith("t_avg")), None)
            at = typical if typical is not None else average
            if size is not None and at is not None:
                value = number(words[at])
        elif rtt := re.search(r"rtt min/avg/max = [\d.]+/([\d.]+)/[\d.]+ ms", line):
            round_trip = number(rtt[1])
            if round_trip is not None:
                value, what = round_trip * 1000 / 2, "ibping"
    if value is None:
        return not_understood("latency row")
    found: tuple[CheckFinding, ...] = ()
    said = f"{value:.2f} µs one way ({what})"
    # ibping goes through the kernel: tens of microseconds of it are the software's.
    if what == "ibping":
        if value > 100:
            found = (warning("PF-NET-006", f"{said}, over 100"),)
    elif value >= limits.ib_latency_failed_us:
        found = (failed("PF-NET-006", f"{said}, at most {limits.ib_latency_good_us:g} wanted"),)
    elif value >= limits.ib_latency_good_us:
        found = (warning("PF-NET-006", f"{said}, below {limits.ib_latency_good_us:g} wanted"),)
    return Judgement(said, found, {"latency_us": value, "tool": what})


def looks_like_ib_latency(text: str) -> bool:
    return "t_typical[usec]" in text or "t_avg[usec]" in text or "--- ibping" in text or "Pong from" in text


def judge_link_latency(text: str, context: Context) -> Judgement:
    """p2pBandwidthLatencyTest: what the link adds to a card's own write latency (the diagonal), per pair."""
    limits = context.limits
    rows: list[list[float]] = []
    inside = False
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        if "Latency" in line and "Matrix" in line:
            inside = "P2P=Enabled" in line
            continue
        words = line.split()
        if inside and words and words[0] == "GPU":
            rows = []
        elif inside and words and words[0] == "CPU":
            inside = False
        elif inside and words and whole(words[0]) == len(rows):
            values = [number(word) for word in words[1:]]
            if values and all(value is not None for value in values):
                rows.append([value for value in values if value is not None])
    size = max((len(row) for row in rows), default=0)
    if not rows:
        return not_understood("matrix of latencies with peer access")
    if len(rows) != size or any(len(row) != size for row in rows):
        return Judgement("matrix cut", (unknown("PF-NET-007", f"the matrix has {len(rows)} rows of {size} columns"),))
    if size < 2:
        return Judgement("one card", (), {"cards": 1})
    extra = {(a, b): rows[a][b] - rows[a][a] for a in range(size) for b in range(size) if a != b}
    slow = [f"GPU{a}-GPU{b} {us:.2f} µs" for (a, b), us in extra.items() if us > limits.nvlink_latency_failed_us]
    fair = [
        f"GPU{a}-GPU{b} {us:.2f} µs"
        for (a, b), us in extra.items()
        if limits.nvlink_latency_good_us < us <= limits.nvlink_latency_failed_us
    ]
    found = []
    if slow and len(slow) == len(extra):
        found.append(
            failed("PF-NET-007", f"every pair is over {limits.nvlink_latency_failed_us:g} µs: no direct links in use")
        )
    elif slow:
        found.append(failed("PF-NET-007", f"over {limits.nvlink_latency_failed_us:g} µs: {plain_names(slow, 6)}"))
    if fair:
        found.append(warning("PF-NET-007", f"over {limits.nvlink_latency_good_us:g} µs: {plain_names(fair, 6)}"))
    middle = median(extra.values())
    facts = {"cards": size, "median_us": round(middle, 3), "worst_us": round(max(extra.values()), 3)}
    return Judgement(f"{size} cards, link adds {middle:.2f} µs (median)", tuple(found), facts)


def judge_roce(text: str, context: Context) -> Judgement:
    """``mlnx_qos`` per interface and the ECN switches of sysfs: PFC on one priority, DSCP trust, DCQCN both ways."""
    if context.facts.get("ibstat", {}).get("ethernet") is False:
        return Judgement("InfiniBand: flow control is part of the link", (), {"needed": False})
    trust: dict[str, str] = {}
    pfc: dict[str, list[int]] = {}
    ecn: dict[str, dict[str, dict[int, int]]] = {}
    name, inside = "", False
    for raw in clean_lines(text):
        line = raw.strip()
        if head := re.match(r"(?:==\s*|interface:?\s+)(\S{1,32})", line):
            name, inside = head[1], False
        elif state := re.match(r"(?:Priority t|T)rust state:\s*(\w+)", line):
            trust[name] = state[1].lower()
        elif line.startswith("PFC configuration"):
            inside = True
        elif inside and line.startswith("enabled"):
            pfc[name] = [i for i, word in enumerate(line.split()[1:9]) if word == "1"]
            inside = False
        elif switch := re.match(r"\S*/net/([\w.-]+)/ecn/roce_(np|rp)/enable/(\d{1,2}):\s*([01])\b", line):
            ecn.setdefault(switch[1], {}).setdefault(switch[2], {})[int(switch[3])] = int(switch[4])
    names = sorted(set(trust) | set(pfc) | set(ecn))
    if not names:
        return not_understood("RoCE setting (mlnx_qos, ecn/roce_np)")
    found = [finding for each in names for finding in _roce_findings(each, trust, pfc, ecn)]
    facts = {"trust": trust, "pfc": pfc, "ecn": sorted(ecn)}
    return Judgement(count_of(len(names), "RoCE interface"), tuple(found), facts)


def _roce_findings(
    name: str, trust: dict[str, str], pfc: dict[str, list[int]], ecn: dict[str, dict[str, dict[int, int]]]
) -> list[CheckFinding]:
    found: list[CheckFinding] = []
    lossless = pfc.get(name)
    if lossless is None:
        found.append(unknown("PF-NET-008", f"the flow control of {name} is not in the output"))
    elif not lossless:
        found.append(failed("PF-NET-008", f"{name}: priority flow control is off on all priorities"))
    elif len(lossless) > 2:
        found.append(warning("PF-NET-008", f"{name}: flow control on {len(lossless)} priorities ({lossless})"))
    if trust.get(name) == "pcp":
        found.append(warning("PF-NET-009", f"{name} trusts the VLAN priority (pcp), not DSCP"))
    sides = ecn.get(name)
    if sides is None:
        return [*found, unknown("PF-NET-010", f"the ECN switches of {name} are not in the output")]
    off = [
        f"{side} on priority {p}" for side in ("np", "rp") for p in lossless or [3] if sides.get(side, {}).get(p) != 1
    ]
    if off:
        found.append(failed("PF-NET-010", f"{name}: DCQCN is off ({plain_names(off)})"))
    return found


def judge_adaptive_routing(text: str, context: Context) -> Judgement:
    """``mlxreg … ROCE_ACCL --get`` (Ethernet), or a subnet manager's ``ar_enable``-like settings (InfiniBand)."""
    del context
    states: list[tuple[str, bool]] = []
    name = "adapter"
    for raw in clean_lines(text):
        line = raw.strip()
        if head := re.match(r"==\s*(\S{1,64})", line):
            name = head[1]
        elif entry := re.match(r"adaptive_routing_forced_en\s*\|\s*(0x[0-9a-fA-F]{1,8}|\d{1,4})\b", line):
            states.append((name, (whole(entry[1]) or 0) != 0))
        elif entry := re.match(r"(?:ar_enable|armgr_enable|routing_engine)\s+(\S+)", line, re.IGNORECASE):
            states.append(("subnet manager", entry[1].lower() in {"true", "1", "yes"} or "ar_" in entry[1].lower()))
    if not states:
        return not_understood("adaptive routing setting")
    off = [each for each, on in states if not on]
    found = (warning("PF-NET-011", f"adaptive routing is off: {plain_names(off)}"),) if off else ()
    return Judgement(f"{len(states) - len(off)} of {len(states)} with adaptive routing", found, {"on": not off})
