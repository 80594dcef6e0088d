"""Limits of files and memory, and the kernel's connection settings against the streams that the plan wants."""

from __future__ import annotations

import math
import re

from exaserve.preflight.host import paths
from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, whole

__all__ = ["judge_connections", "judge_limits"]

UNLIMITED = math.inf


def judge_limits(text: str, context: Context) -> Judgement:
    """``/proc/self/limits``, ``fs.file-max``, ``fs.nr_open``, and the shared memory of the container or host."""
    limits: dict[str, float] = {}
    for line in clean_lines(text):
        if match := re.match(r"\s*(Max [a-z ]{3,30}?)\s{2,}(\d{1,20}|unlimited)\s+(\d{1,20}|unlimited)", line):
            limits[match[1].strip()] = UNLIMITED if match[2] == "unlimited" else float(match[2])
        elif match := re.match(r"\s*(open files|max locked memory)\s+.*?\(.*?\)\s+(\d{1,20}|unlimited)\s*$", line):
            # bash's ulimit -a counts locked memory in KiB.
            scale = 1024.0 if match[1].startswith("max locked") else 1.0
            name = "Max open files" if match[1] == "open files" else "Max locked memory"
            limits[name] = UNLIMITED if match[2] == "unlimited" else float(match[2]) * scale
    values = paths(text)
    if not limits and not values:
        return not_understood("limit")
    found: list[CheckFinding] = []
    wanted = context.streams * context.limits.open_files_per_stream + context.limits.open_files_spare
    files = limits.get("Max open files")
    if files is None:
        found.append(unknown("PF-KERN-001", "the limit of open files is not in the output"))
    elif files < wanted:
        level = failed if files < context.streams else warning
        carries = max(0, int(files - context.limits.open_files_spare) // context.limits.open_files_per_stream)
        text_ = f"{files:.0f} open files carry about {carries:,} streams; {context.streams:,} need {wanted:,}"
        found.append(level("PF-KERN-001", text_))
    for path, name in (("/proc/sys/fs/file-max", "fs.file-max"), ("/proc/sys/fs/nr_open", "fs.nr_open")):
        value = whole(values.get(path, ""))
        if value is not None and value < wanted:
            found.append(failed("PF-KERN-001", f"{name} is {value:,}, {context.streams:,} streams need {wanted:,}"))
    locked = limits.get("Max locked memory")
    rdma = bool(context.facts.get("ibstat", {}).get("active"))
    if locked is not None and locked < UNLIMITED and (rdma or context.facts.get("gpu")):
        found.append(
            warning(
                "PF-KERN-002", f"locked memory is limited to {locked / 2**20:,.0f} MiB: RDMA registration will fail"
            )
        )
    shared = re.search(r"^shm_kib[ =](\d{1,15})", text, re.MULTILINE)
    if shared and int(shared[1]) < 1_048_576 and context.facts.get("gpu"):
        found.append(
            warning(
                "PF-KERN-003",
                f"shared memory has {int(shared[1]) / 1024:.0f} MiB; ranks of one engine want 1 GiB and more",
            )
        )
    processes = limits.get("Max processes")
    if processes is not None and processes < 4096:
        found.append(warning("PF-KERN-004", f"{processes:.0f} processes and threads at most"))
    said = "unlimited" if files == UNLIMITED else "unknown" if files is None else f"{files:,.0f}"
    facts = {name: (None if value == UNLIMITED else value) for name, value in limits.items()}
    return Judgement(f"{said} open files", tuple(found), facts)


# Key, least value for n streams, code of the finding. An eighth of the streams may come at once, as when a gateway
# restarts and its clients return; beyond 65,535 the kernel cuts.
_WANTED = (
    ("net/core/somaxconn", lambda n: min(65_535, max(1024, n // 8)), "PF-KERN-005"),
    ("net/ipv4/tcp_max_syn_backlog", lambda n: min(65_535, max(1024, n // 8)), "PF-KERN-005"),
    ("net/core/netdev_max_backlog", lambda n: 1000 if n < 20_000 else 5000, "PF-KERN-005"),
)


def judge_connections(text: str, context: Context) -> Judgement:
    """Every stream through a gateway is one connection in and one out, here and at the engines."""
    values = {
        path.removeprefix("/proc/sys/"): value for path, value in paths(text).items() if path.startswith("/proc/sys/")
    }
    for line in clean_lines(text):
        if match := re.match(r"\s*([a-z0-9_]+(?:\.[a-z0-9_-]+)+)\s*=\s*(.*?)\s*$", line):
            values.setdefault(match[1].replace(".", "/"), match[2])
    values = {key: value for key, value in values.items() if key.startswith(("net/", "fs/", "vm/"))}
    if not any(key.startswith("net/") for key in values):
        return not_understood("kernel connection setting")
    streams, found = context.streams, []
    for key, least, code in _WANTED:
        value = whole(values.get(key, ""))
        wanted = least(streams)
        if value is not None and value < wanted:
            found.append(
                warning(code, f"{_dotted(key)} is {value:,}; {streams:,} streams want {wanted:,}", _set(key, wanted))
            )
    found += _ports(values, context)
    tracked, most = (
        whole(values.get("net/netfilter/nf_conntrack_count", "")),
        whole(values.get("net/netfilter/nf_conntrack_max", "")),
    )
    if most is not None and most < 2 * streams * 2:
        level = failed if most < 2 * streams else warning
        wanted = 1 << (4 * streams - 1).bit_length()
        text_ = f"connection tracking holds {most:,} entries; {streams:,} streams are {2 * streams:,} and more"
        found.append(level("PF-KERN-007", text_, _set("net/netfilter/nf_conntrack_max", wanted)))
    elif most and tracked and tracked > 0.8 * most:
        found.append(warning("PF-KERN-007", f"connection tracking is {100 * tracked / most:.0f} % full"))
    if values.get("net/ipv4/tcp_slow_start_after_idle") == "1":
        found.append(
            warning(
                "PF-KERN-008",
                "tcp_slow_start_after_idle is 1: kept-alive connections start slowly again after each pause",
                _set("net/ipv4/tcp_slow_start_after_idle", 0),
            )
        )
    if values.get("net/ipv4/tcp_tw_reuse") == "0" and streams > 20_000:
        found.append(warning("PF-KERN-006", "tcp_tw_reuse is 0: ports of closed connections stay taken for a minute"))
    shown = {_dotted(key): value for key, value in values.items()}
    return Judgement(f"settings for {streams:,} streams", tuple(found), {"settings": shown})


def _ports(values: dict[str, str], context: Context) -> list[CheckFinding]:
    words = values.get("net/ipv4/ip_local_port_range", "").split()
    bounds = [whole(word) for word in words]
    if len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
        return [unknown("PF-KERN-006", "net.ipv4.ip_local_port_range is not in the output")]
    count = bounds[1] - bounds[0] + 1
    # A port may be used once per destination, so the busiest destination counts: all streams where there is one engine.
    busiest = math.ceil(context.streams / max(1, context.engines))
    if count < busiest:
        text = f"{count:,} local ports; a gateway opens up to {busiest:,} connections to one engine"
        return [failed("PF-KERN-006", text, _set("net/ipv4/ip_local_port_range", "1024 65535"))]
    if count < 2 * busiest:
        text = f"{count:,} local ports for up to {busiest:,} connections to one engine; closed ones linger for a minute"
        return [warning("PF-KERN-006", text, _set("net/ipv4/ip_local_port_range", "1024 65535"))]
    return []


def _dotted(key: str) -> str:
    return key.replace("/", ".")


def _set(key: str, value: object) -> str:
    return (
        f"sysctl -w {_dotted(key)}={value if isinstance(value, int) else repr(value)}, and the same in /etc/sysctl.d/."
    )
