"""What one machine has, as far as starting engines needs to know: accelerators and NUMA nodes, read from sysfs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["VISIBILITY", "Binding", "NodeMachine", "allowed_cpus", "bind", "cpu_list", "read_machine", "visibility"]

VISIBILITY: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    "rocm": ("HIP_VISIBLE_DEVICES", {}),
    "xpu": ("ZE_AFFINITY_MASK", {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}),
    "cpu": ("", {}),
}
"""Accelerator family → the variable that shows a process only its own cards, and what makes their order the PCI bus's,
which is the order of :attr:`NodeMachine.devices`."""
_PCI = {"cuda": ("0x10de", ("0x0302", "0x0300")), "rocm": ("0x1002", ("0x0380", "0x0302", "0x1200")),
        "xpu": ("0x8086", ("0x0380", "0x0302"))}  # fmt: skip
"""Family → PCI vendor, and classes (3D, display, accelerator controllers) of its cards."""


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """What was found.

    Attributes:
        family: key of :data:`VISIBILITY`; "cpu" where there is no accelerator.
        devices: NUMA node of each accelerator in PCI order, -1 where the machine does not say.
        numa: NUMA node → its CPUs; empty where all memory is equally near.
    """

    family: str = "cpu"
    devices: tuple[int, ...] = ()
    numa: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    """CPUs and memory nodes of one unit; empty binds nothing."""

    cpus: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()


def cpu_list(text: str) -> tuple[int, ...]:
    """``0-3,8`` as numbers (cpuset(7), list format)."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.strip().isdigit():
            cpus += range(int(low), int(high or low) + 1)
    return tuple(cpus)


def read_machine(root: Path = Path("/"), allowed: frozenset[int] | None = None) -> NodeMachine:
    """Reads ``root``'s sysfs.

    Args:
        allowed: CPUs this process may use (a container's share), all unless given.
    """
    found = {family: _devices(root, family) for family in _PCI}
    family = "cpu"
    if found["cuda"] and ((root / "dev/nvidiactl").exists() or (root / "proc/driver/nvidia").exists()):
        family = "cuda"
    elif found["rocm"] and (root / "dev/kfd").exists():
        family = "rocm"
    elif found["xpu"] and (root / "dev/dri").exists():
        family = "xpu"
    return NodeMachine(family, found.get(family, ()), _numa(root, allowed))


def _devices(root: Path, family: str) -> tuple[int, ...]:
    vendor, classes = _PCI[family]
    nodes = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor") == vendor and _text(device / "class")[:6] in classes:
            node = _text(device / "numa_node")
            nodes.append(int(node) if node.lstrip("-").isdigit() else -1)
    return tuple(nodes)


def _numa(root: Path, allowed: frozenset[int] | None) -> dict[int, tuple[int, ...]]:
    numa = {}
    for path in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cpus = tuple(cpu for cpu in cpu_list(_text(path / "cpulist")) if allowed is None or cpu in allowed)
        if cpus:
            numa[int(path.name[4:])] = cpus
    return dict(sorted(numa.items())) if len(numa) > 1 else {}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def visibility(family: str, devices: Sequence[int]) -> dict[str, str]:
    """Environment that shows a process these accelerators only."""
    variable, order = VISIBILITY[family]
    return {variable: ",".join(map(str, devices)), **order} if variable and devices else {}


def bind(machine: NodeMachine, devices: Sequence[int], index: int, units: int) -> Binding:
    """Where unit ``index`` of ``units`` belongs: beside its accelerators, else evenly over the NUMA nodes.

    Units that share a NUMA node share its CPUs: engines' helper threads are few, and a split would leave some idle. A
    unit whose accelerators hang on several nodes is bound to all of these.
    """
    if not machine.numa:
        return Binding()
    near = sorted({machine.devices[d] for d in devices if d < len(machine.devices) and machine.devices[d] >= 0})
    if not near:
        nodes = list(machine.numa)
        near = [nodes[index * len(nodes) // max(1, units)]]
    near = [node for node in near if node in machine.numa]
    return Binding(tuple(cpu for node in near for cpu in machine.numa[node]), tuple(near))


def allowed_cpus() -> frozenset[int]:
    """CPUs that this process may use."""
    return frozenset(os.sched_getaffinity(0))
