"""``ethtool``: link, flow control and statistics of each interface; losses and pauses between two samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, count_of, plain_names, strip_launcher, whole

__all__ = ["Interface", "judge_ethernet", "looks_like_ethtool", "parse_ethtool"]

_SETTINGS = re.compile(r"^\s*Settings for (\S{1,32}?):\s*$")
_PAUSE = re.compile(r"^\s*Pause parameters for (\S{1,32}?):\s*$")
_MARK = re.compile(r"^\s*==\s*(\S{1,32})(?:\s+after (\d{1,4}) s)?\s*$")
_SPEED = re.compile(r"Speed:\s*(\d{1,9})\s*Mb/s")
_MODE = re.compile(r"\b(\d{2,7})base")
# Keys carry prefixes: queue, port, ring, or the launcher's host ("[3]: ", "p0_", "mac_").
_BYTES = re.compile(r"(rx|tx)_(?:prio(\d)_bytes|bytes_pri(\d))(?:_phy)?$")
_PAUSES = re.compile(
    r"(rx|tx)_(?:prio(\d)_pause|pfc_ena_frames_pri(\d)|priority_(\d)_xoff(?:\.nic)?|pause(?:_ctrl_phy|_frames)?)$"
)
_LOST = re.compile(r"(?:rx_out_of_buffer|rx_discards(?:_phy)?|tx_discards(?:_phy)?|rx_(?:crc_errors|symbol_err)_phy)$")
_RDMA = re.compile(r"vport_rdma_\w*(?:bytes|packets)$|_roce_\w+$")
SAMPLES_MAX = 16


@dataclass(slots=True)
class Interface:
    """One interface.

    Attributes:
        gbit_s: of the link; None where it was not told. possible_gbit_s: fastest mode it supports, 0 if not listed.
        up: whether a link is detected; None where it was not told.
        pauses: whether link-level flow control is on, (received, sent); None where ``ethtool -a`` was not there.
        samples: statistics, each in the order taken. seconds: between the first two, 0 where it was not said.
        bonded: the speed is the sum of several ports.
    """

    gbit_s: float | None = None
    possible_gbit_s: float = 0.0
    duplex: str = ""
    up: bool | None = None
    pauses: tuple[bool, bool] | None = None
    samples: list[dict[str, int]] = field(default_factory=list)
    seconds: int = 0
    bonded: bool = False

    def delta(self, key: str) -> int:
        """Growth of a counter between the first and the last sample."""
        return self.samples[-1].get(key, 0) - self.samples[0].get(key, 0) if len(self.samples) > 1 else 0


def looks_like_ethtool(text: str) -> bool:
    lines = (strip_launcher(line) for line in clean_lines(text)[:5000])
    return any(_SETTINGS.match(line) or _PAUSE.match(line) or line.strip() == "NIC statistics:" for line in lines)


def parse_ethtool(text: str) -> dict[str, Interface]:
    """Interfaces by name, from ``ethtool DEV``, ``-a`` and ``-S`` in any order. Never raises."""
    found: dict[str, Interface] = {}
    name, inside, seconds = "", "", 0
    receive: bool | None = None
    for raw in clean_lines(text):
        line = strip_launcher(raw)
        if head := _SETTINGS.match(line):
            name, inside = head[1], "settings"
            found.setdefault(name, Interface())
        elif head := _PAUSE.match(line):
            name, inside = head[1], "pause"
            found.setdefault(name, Interface())
        elif head := _MARK.match(line):
            name, inside, seconds = head[1], "", int(head[2] or 0)
            found.setdefault(name, Interface())
        elif line.strip() == "NIC statistics:":
            inside = "statistics"
            each = found.setdefault(name or "interface", Interface())
            if len(each.samples) < SAMPLES_MAX:
                each.samples.append({})
            each.seconds = each.seconds or seconds
        elif inside == "settings":
            _setting(found[name], name, line)
        elif inside == "pause" and (entry := re.match(r"\s*(RX|TX):\s*(on|off)\b", line)):
            if entry[1] == "RX":
                receive = entry[2] == "on"
            else:
                found[name].pauses = (bool(receive), entry[2] == "on")
        elif inside == "statistics" and (entry := re.match(r"\s*(\S.{0,80}?)\s*:\s*(-?\d{1,20})\s*$", line)):
            found[name or "interface"].samples[-1][entry[1]] = int(entry[2])
    return found


def _setting(each: Interface, name: str, line: str) -> None:
    if speed := _SPEED.search(line):
        each.gbit_s = int(speed[1]) / 1000
        each.bonded = each.bonded or name.startswith("bond")
    elif entry := re.match(r"\s*Duplex:\s*(\w+)", line):
        each.duplex = entry[1]
    elif entry := re.match(r"\s*Link detected:\s*(yes|no)", line):
        each.up = entry[1] == "yes"
    elif entry := re.match(r"\s*Port:\s*(\w+)", line):
        each.bonded = each.bonded or (name.startswith(("bond", "team")) and entry[1] == "Other")
    elif "Advertised" not in line and "artner" not in line:
        for mode in _MODE.findall(line):
            each.possible_gbit_s = max(each.possible_gbit_s, (whole(mode) or 0) / 1000)


def judge_ethernet(text: str, context: Context) -> Judgement:
    """Links at their rate, pauses and losses between two samples, and whether RDMA's traffic class is lossless."""
    interfaces = parse_ethtool(text)
    if not interfaces:
        return not_understood("interface of ethtool")
    findings: list[CheckFinding] = []
    for name, each in interfaces.items():
        findings += _link(name, each) + _traffic(name, each) + _lossless(name, each, context)
    alone = [name for name, each in interfaces.items() if len(each.samples) == 1 and _keys(each, _PAUSES)]
    if alone:
        why = f"one sample of {plain_names(alone)}: counters since the driver was loaded tell nothing of now"
        findings.append(unknown("PF-NET-017", why))
    up = {name: each.gbit_s for name, each in interfaces.items() if each.gbit_s and each.up is not False}
    bonds = {name for name in up if interfaces[name].bonded}
    said = ", ".join(
        f"{name} {rate:g} Gbit/s{' (bond)' if name in bonds else ''}" for name, rate in list(up.items())[:6]
    )
    facts = {
        "gbit_s": up,
        "flow_control": {name: list(each.pauses) for name, each in interfaces.items() if each.pauses is not None},
        "bytes_by_priority": {name: _by_priority(each) for name, each in interfaces.items() if _keys(each, _BYTES)},
        "samples": {name: len(each.samples) for name, each in interfaces.items()},
    }
    return Judgement(f"{count_of(len(interfaces), 'interface')}{f': {said}' if said else ''}", tuple(findings), facts)


def _keys(each: Interface, pattern: re.Pattern[str]) -> list[str]:
    return [key for key in (each.samples[-1] if each.samples else ()) if pattern.search(key)]


def _link(name: str, each: Interface) -> list[CheckFinding]:
    found = []
    if each.duplex == "Half":
        found.append(failed("PF-NET-018", f"{name} runs half duplex"))
    # A bond shows the sum of its ports: its modes say nothing about that.
    if each.gbit_s and not each.bonded and each.up is not False and each.gbit_s < each.possible_gbit_s:
        text = f"{name} runs at {each.gbit_s:g} Gbit/s of the {each.possible_gbit_s:g} it can"
        found.append(warning("PF-NET-018", text))
    return found


def _traffic(name: str, each: Interface) -> list[CheckFinding]:
    found = []
    over = f" in {each.seconds} s" if each.seconds else " between the samples"
    paused = {key: grown for key in _keys(each, _PAUSES) if (grown := each.delta(key)) > 0}
    for side, meaning in (("rx", "the other end asks to stop"), ("tx", "this host cannot take what comes")):
        mine = {key: grown for key, grown in paused.items() if (match := _PAUSES.search(key)) and match[1] == side}
        if mine:
            shown = ", ".join(f"{key} {grown:,}" for key, grown in list(mine.items())[:3])
            found.append(warning("PF-NET-017", f"{name} pauses, {meaning}: +{shown}{over}"))
    lost = {key: grown for key in _keys(each, _LOST) if (grown := each.delta(key)) > 0}
    if lost:
        shown = ", ".join(f"{key} {grown:,}" for key, grown in list(lost.items())[:3])
        found.append(warning("PF-NET-019", f"{name} loses packets: +{shown}{over}"))
    return found


def _by_priority(each: Interface) -> dict[str, int]:
    """Bytes on each priority: of the time between the samples, or since the driver was loaded where there is one."""
    sums: dict[str, int] = {}
    for key in _keys(each, _BYTES):
        match = _BYTES.search(key)
        if match is not None:
            priority = match[2] or match[3]
            value = each.delta(key) if len(each.samples) > 1 else each.samples[-1][key]
            sums[priority] = sums.get(priority, 0) + value
    if not any(sums.values()) and len(each.samples) > 1:
        return _by_priority(Interface(samples=[each.samples[-1]]))
    return dict(sorted(sums.items()))


def _uses_rdma(each: Interface, context: Context) -> bool | None:
    """Whether RDMA runs over an interface; None where nothing tells."""
    if any(value > 0 for sample in each.samples for key, value in sample.items() if _RDMA.search(key)):
        return True
    ethernet = context.facts.get("ibstat", {}).get("ethernet")
    return ethernet if isinstance(ethernet, bool) else None


def _lossless(name: str, each: Interface, context: Context) -> list[CheckFinding]:
    pfc: Mapping[str, list[int]] = context.facts.get("roce", {}).get("pfc") or {}
    protected = {str(priority) for priority in pfc.get(name, [])}
    found = []
    sums, rdma = _by_priority(each), _uses_rdma(each, context)
    only_0 = len(sums) > 1 and sums.get("0") and not any(value for key, value in sums.items() if key != "0")
    if only_0 and rdma is not False and "0" not in protected and not (each.pauses and all(each.pauses)):
        because = f"all bytes of {name} are on priority 0"
        if rdma:
            found.append(failed("PF-NET-016", f"RDMA is not lossless: {because}, which no flow control protects"))
        else:
            found.append(unknown("PF-NET-016", f"{because}: if RDMA runs over it, it is not lossless"))
    if each.pauses and any(each.pauses) and protected:
        text = f"{name}: link-level flow control is on beside that of priorities {', '.join(sorted(protected))}"
        found.append(warning("PF-NET-016", f"{text}: it stops all traffic for one class"))
    elif rdma and each.pauses == (False, False) and name in pfc and not protected:
        found.append(failed("PF-NET-016", f"RDMA is not lossless: {name} has neither kind of flow control"))
    return found
