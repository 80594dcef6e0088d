# ruff: noqa: E501 - lines of real tools' outputs are long
"""Outputs in the shapes that the real tools print, built from what the machine is."""

from __future__ import annotations

from collections.abc import Callable

Link = Callable[[str, str], str]


def names(cards: int, nics: int) -> list[str]:
    return [f"GPU{i}" for i in range(cards)] + [f"NIC{i}" for i in range(nics)]


def topology(
    cards: int,
    nics: int,
    link: Link,
    *,
    style: str = "tabs",
    affinity: Callable[[int], tuple[str, str]] | None = lambda i: (
        ("0-31,64-95", "0") if i < 4 else ("32-63,96-127", "1")
    ),
    legend: bool = True,
    header: bool = True,
) -> str:
    """``nvidia-smi topo -m``. Styles: tabs, spaces (8 columns), narrow (single spaces), glued (no gap after GPU rows' NIC8)."""
    columns = names(cards, nics)
    extra = [] if affinity is None else ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]

    def join(cells: list[str]) -> str:
        if style == "tabs":
            return "\t".join(cells)
        if style == "narrow":
            return " ".join(cells)
        if style == "glued":
            return (
                "\t".join(cells)
                .replace("NIC8\tNIC9", "NIC8NIC9")
                .replace("NODE\tNODE", "NODENODE")
                .replace("SYS\tSYS", "SYSSYS")
            )
        fixed = 1 + len(columns)
        return "".join(cell.ljust(8 if i < fixed else 16) for i, cell in enumerate(cells))

    lines = []
    if header:
        lines.append(join(["", *columns, *extra]))
    for name in columns:
        cells = [name] + [" X " if other == name else link(name, other) for other in columns]
        if name.startswith("GPU") and affinity is not None:
            cpus, numa = affinity(int(name[3:]))
            cells += [cpus, numa, "", "N/A"] if style == "tabs" else [c for c in (cpus, numa, "N/A") if c]
        lines.append(join(cells))
    if legend:
        lines += [
            "",
            "Legend:",
            "",
            "  X    = Self",
            "  SYS  = Connection traversing PCIe as well as the SMP interconnect",
        ]
        lines += ["  NV#  = Connection traversing a bonded set of # NVLinks", "", "NIC Legend:", ""]
        lines += [f"  NIC{i}: mlx5_{i}" for i in range(nics)]
    return "\n".join(lines) + "\n"


def hgx(nv: str = "NV18") -> Link:
    """Eight cards on switches, eight NICs: two cards and two NICs per PCIe switch, four of each per socket."""

    def link(a: str, b: str) -> str:
        if a.startswith("GPU") and b.startswith("GPU"):
            return nv
        i, j = int(a[3:]), int(b[3:])
        same_switch, same_socket = i // 2 == j // 2, i // 4 == j // 4
        return "PXB" if same_switch else "NODE" if same_socket else "SYS"

    return link


def but(base: Link, changes: dict[tuple[str, str], str]) -> Link:
    """``base`` with some cells changed (one direction each)."""
    return lambda a, b: changes.get((a, b)) or base(a, b)


def everywhere(word: str) -> Link:
    return lambda a, b: word


def rocm(cards: int, kind: Callable[[int, int], str], weight: Callable[[int, int], int], *, numa: bool = True) -> str:
    """``rocm-smi --showtopo``."""
    head = "       " + "".join(f"GPU{i}".ljust(13) for i in range(cards))

    def table(title: str, cell: Callable[[int, int], object]) -> list[str]:
        rows = [
            f"GPU{a:<4d}" + "".join(str(0 if a == b else cell(a, b)).ljust(13) for b in range(cards))
            for a in range(cards)
        ]
        return [f"{' ' + title + ' ':=^90}", head, *rows, ""]

    lines = [
        f"{' ROCm System Management Interface ':=^90}",
        "WARNING: AMD GPU device(s) is/are in a low-power state.",
        "",
    ]
    lines += table("Weight between two GPUs", weight)
    lines += table("Hops between two GPUs", lambda a, b: 1 if kind(a, b) == "XGMI" else 2)
    lines += table("Link Type between two GPUs", kind)
    if numa:
        lines.append(f"{' Numa Nodes ':=^90}")
        for i in range(cards):
            lines += [
                f"GPU[{i}]\t\t: (Topology) Numa Node: {i * 2 // cards}",
                f"GPU[{i}]\t\t: (Topology) Numa Affinity: {i * 2 // cards}",
            ]
    lines.append(f"{' End of ROCm SMI Log ':=^90}")
    return "\n".join(lines) + "\n"


def ibstat(ports: list[tuple[str, str, str, int]], *, model: str = "MT4129", layer: str = "InfiniBand") -> str:
    """``ibstat`` of (name, state, physical state, rate)."""
    return "".join(
        f"CA '{name}'\n\tCA type: {model}\n\tNumber of ports: 1\n\tFirmware version: 28.41.1000\n\tNode GUID: 0x0\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tBase lid: 7\n\t\tSM lid: 1\n"
        f"\t\tLink layer: {layer}\n"
        for name, state, physical, rate in ports
    )


NCCL_HEAD = """# nThread 1 nGpus 1 minBytes 268435456 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
"""


def nccl(
    ranks: int,
    busbw: float,
    *,
    hosts: int = 1,
    product: str = "NVIDIA H100 80GB HBM3",
    wrong: int = 0,
    devices: bool = True,
) -> str:
    """``all_reduce_perf`` from 256 MiB to 8 GiB at one bus bandwidth, 10^9 bytes/s."""
    lines = NCCL_HEAD.splitlines()
    per_host = ranks // hosts
    if devices:
        lines += [
            f"#  Rank {r:2d} Group  0 Pid {100 + r:6d} on node-{r // per_host} device {r % per_host:2d} [0x19] {product}"
            for r in range(ranks)
        ]
    lines += [
        "#",
        "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
    ]
    for power in range(28, 34):
        size = 1 << power
        algbw = busbw / (2 * (ranks - 1) / ranks) if ranks > 1 else busbw
        time = size / algbw / 1000
        cell = f"{time:9.1f} {algbw:7.2f} {busbw if ranks > 1 else 0:7.2f} {wrong:6d}"
        lines.append(f"{size:13d} {size // 4:13d}     float     sum      -1 {cell} {cell}")
    lines += [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {busbw:.3f} ",
        "#",
    ]
    return "\n".join(lines) + "\n"


GPU_HEADER = (
    "index, name, driver_version, memory.total [MiB], ecc.mode.current, ecc.errors.uncorrected.volatile.total, "
    "ecc.errors.uncorrected.aggregate.total, ecc.errors.corrected.aggregate.total, retired_pages.double_bit.count, "
    "retired_pages.pending, power.limit [W], power.default_limit [W], power.max_limit [W], temperature.gpu, "
    "clocks_throttle_reasons.active, persistence_mode, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, "
    "pcie.link.width.max, compute_mode, mig.mode.current"
)


def gpu_row(index: int, *, name: str = "NVIDIA H100 80GB HBM3", **changes: str) -> str:
    """One card of ``nvidia-smi --query-gpu``; ``changes`` by the field's name with dots as underscores."""
    fields = {
        "index": str(index), "name": name, "driver": "550.54.15", "memory": "81559", "ecc": "Enabled", "volatile": "0",
        "aggregate": "0", "corrected": "0", "retired": "[N/A]", "pending": "[N/A]", "limit": "700.00", "default": "700.00",
        "max": "700.00", "temperature": "34", "throttle": "0x0000000000000001", "persistence": "Enabled", "gen": "5",
        "gen_max": "5", "width": "16", "width_max": "16", "compute": "Default", "mig": "Disabled",
    }  # fmt: skip
    return ", ".join({**fields, **changes}.values())
