"""TCP between hosts: bandwidth by ``iperf3``, retransmissions by ``ss -i``."""

from __future__ import annotations

import re

from exaserve.preflight.model import Context, Judgement, failed, not_told, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, count_of, number, strip_launcher, whole

__all__ = ["judge_iperf", "judge_retransmissions", "looks_like_iperf", "looks_like_ss"]

_ROW = re.compile(
    r"\[\s*(SUM|\d+)\]\s+[\d.]+-[\d.]+\s+sec\s+[\d.]+\s+[KMGT]?Bytes\s+([\d.]+)\s+([KMGT]?)bits/sec(?:\s+(\d+))?.*?"
    r"(sender|receiver)"
)
_SCALE = {"": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
SHARE_GOOD, SHARE_FAILED = 0.85, 0.5
"""Of the link's rate that TCP reaches over several streams with large frames; half of it is a fault."""

RETRANS_GOOD, RETRANS_FAILED = 0.001, 0.01
"""Share of bytes sent again: in a data centre next to none."""

SENT_LEAST_BYTES = 10_000_000
"""Connections that have sent less say nothing."""


def looks_like_iperf(text: str) -> bool:
    return any(_ROW.search(line) for line in clean_lines(text)[:5000]) or '"sum_received"' in text[:2_000_000]


def judge_iperf(text: str, context: Context) -> Judgement:
    """The receiver's rate over all streams against the interface's."""
    rates: dict[str, float] = {}
    retries = 0
    summed = False
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        if row := _ROW.search(line):
            rate = (number(row[2]) or 0.0) * _SCALE[row[3]]
            if row[1] == "SUM" or not summed:
                first = row[1] == "SUM" and not summed
                summed |= row[1] == "SUM"
                rates[row[5]] = rate if first or row[1] == "SUM" else rates.get(row[5], 0.0) + rate
                if row[5] == "sender":
                    retries = int(row[4] or 0) if row[1] == "SUM" else retries + int(row[4] or 0)
    if found := re.search(r'"sum_received":\s*\{[^{}]{0,400}?"bits_per_second":\s*([\d.e+]+)', text[:5_000_000]):
        rates["receiver"] = (number(found[1]) or 0.0) / 1e9
    if problem := re.search(r"iperf3: error - ([^\n]{1,200})", text[:200_000]):
        return Judgement("the run failed", (failed("PF-NET-020", f"iperf3 failed: {problem[1]}"),))
    rate = rates.get("receiver", rates.get("sender", 0.0))
    if not rates:
        return not_understood("result of iperf3 (its sender and receiver lines)")
    said = f"{rate:.1f} Gbit/s" + (f", {count_of(retries, 'retransmission')}" if retries else "")
    facts = {"gbit_s": rate, "retransmissions": retries}
    links = [r for r in (context.facts.get("ethernet", {}).get("gbit_s") or {}).values() if r]
    if not links:
        because = "the rate of the interface is not known (run ethtool on it)"
        return Judgement(said, (unknown("PF-NET-020", because),), facts)
    wanted = max(links)
    share = rate / wanted
    text_ = f"{rate:.1f} Gbit/s of a {wanted:g} Gbit/s link"
    if share < SHARE_FAILED:
        return Judgement(said, (failed("PF-NET-020", f"far too slow: {text_}"),), facts)
    return Judgement(said, (warning("PF-NET-020", f"slow: {text_}"),) if share < SHARE_GOOD else (), facts)


def looks_like_ss(text: str) -> bool:
    return re.search(r"\bcwnd:\d+.*\b(?:bytes_sent|segs_out):\d+", text[:2_000_000]) is not None


def judge_retransmissions(text: str, context: Context) -> Judgement:
    """Bytes sent again by the connections that are open now."""
    del context
    sent = again = segments = 0
    worst: tuple[float, str] = (0.0, "")
    peer, counted, seen = "", 0, 0
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        if "cwnd:" not in line:
            words = line.split()
            ends = [word for word in words if re.fullmatch(r"\S+:\d{1,5}", word)]
            peer = ends[1] if len(ends) > 1 else peer
            continue
        seen += 1
        values = {k: whole(v) or 0 for k, v in re.findall(r"\b(bytes_sent|bytes_retrans|segs_out):(\d+)", line)}
        lost = re.search(r"\bretrans:\d+/(\d+)", line)
        if values.get("bytes_sent", 0) >= SENT_LEAST_BYTES:
            counted += 1
            sent += values["bytes_sent"]
            again += values.get("bytes_retrans", 0)
            worst = max(worst, (values.get("bytes_retrans", 0) / values["bytes_sent"], peer))
        segments += whole(lost[1]) or 0 if lost else 0
    if not seen:
        return not_understood("connection with its figures (ss -i)")
    facts = {"connections": seen, "bytes_sent": sent, "bytes_again": again, "segments_again": segments}
    if not counted:
        return Judgement(
            f"{count_of(seen, 'connection')}, none busy",
            (not_told(f"no open connection has sent {SENT_LEAST_BYTES // 1_000_000} MB yet"),),
            facts,
        )
    share = again / sent
    said = f"{share:.3%} of {sent / 1e9:.1f} GB sent again over {count_of(counted, 'connection')}"
    detail = f"{said}; the worst, to {worst[1]}, {worst[0]:.2%}"
    if max(share, worst[0] / 10) > RETRANS_FAILED:
        return Judgement(said, (failed("PF-NET-021", detail),), facts)
    return Judgement(said, (warning("PF-NET-021", detail),) if share > RETRANS_GOOD else (), facts)
