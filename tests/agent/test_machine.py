"""Accelerators and NUMA nodes from a made-up sysfs; visibility and binding."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaserve.agent.machine import Binding, NodeMachine, bind, cpu_list, read_machine, visibility
from exaserve.agent.meters import Counters, network_bytes, rate_mb_s


def put(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def machine_with(root: Path, vendor: str, kind: str, numa: list[int]) -> None:
    for k, node in enumerate(numa):
        base = f"sys/bus/pci/devices/0000:{k + 1:02x}:00.0"
        put(root, f"{base}/vendor", vendor)
        put(root, f"{base}/class", kind)
        put(root, f"{base}/numa_node", f"{node}\n")
    for node in range(2):
        put(root, f"sys/devices/system/node/node{node}/cpulist", f"{node * 8}-{node * 8 + 3},{node * 8 + 6}\n")


@pytest.mark.parametrize(
    ("vendor", "kind", "sign", "family"),
    [
        ("0x10de", "0x030200", "dev/nvidiactl", "cuda"),
        ("0x1002", "0x038000", "dev/kfd", "rocm"),
        ("0x8086", "0x038000", "dev/dri/renderD128", "xpu"),
    ],
)
def test_cards_and_their_numa_nodes_are_found(tmp_path, vendor, kind, sign, family) -> None:
    machine_with(tmp_path, vendor, kind, [0, 0, 1, -1])
    put(tmp_path, sign, "")
    machine = read_machine(tmp_path)
    assert (machine.family, machine.devices) == (family, (0, 0, 1, -1))
    assert machine.numa == {0: (0, 1, 2, 3, 6), 1: (8, 9, 10, 11, 14)}


def test_cards_without_a_driver_are_none_and_one_node_binds_nothing(tmp_path) -> None:
    machine_with(tmp_path, "0x10de", "0x030200", [0])
    assert read_machine(tmp_path).family == "cpu"
    assert read_machine(tmp_path, allowed=frozenset({0, 1})).numa == {}


def test_units_are_bound_beside_their_cards() -> None:
    machine = NodeMachine("cuda", (0, 0, 1, 1), {0: (0, 1), 1: (2, 3)})
    assert bind(machine, (0, 1), 0, 2) == Binding((0, 1), (0,))
    assert bind(machine, (2, 3), 1, 2) == Binding((2, 3), (1,))
    assert bind(machine, (1, 2), 0, 1) == Binding((0, 1, 2, 3), (0, 1))
    assert [bind(machine, (), k, 4).memory for k in range(4)] == [(0,), (0,), (1,), (1,)]
    assert bind(NodeMachine(), (), 0, 1) == Binding()


def test_visibility_is_one_table() -> None:
    assert visibility("cuda", (2, 3)) == {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visibility("rocm", (1,)) == {"HIP_VISIBLE_DEVICES": "1"}
    assert visibility("xpu", (0,))["ZE_AFFINITY_MASK"] == "0"
    assert visibility("cpu", ()) == {}


def test_cpu_lists() -> None:
    assert cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert cpu_list("") == ()


def test_network_counters_of_kernel_and_infiniband(tmp_path) -> None:
    head = "Inter-|   Receive\n face |bytes\n"
    rows = "    lo: 999 0 0 0 0 0 0 0 999 0\n  eth0: 100 1 0 0 0 0 0 0 50 1\n veth1: 7 0 0 0 0 0 0 0 7 0\n"
    put(tmp_path, "proc/net/dev", head + rows)
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "1000\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "500\n")
    assert network_bytes(tmp_path) == Counters(150, 6000)
    assert network_bytes(tmp_path / "none") == Counters(0, 0)


def test_a_rate_needs_two_readings_and_no_reset() -> None:
    assert rate_mb_s([(0.0, 0), (1.0, 1_000_000), (2.0, 6_000_000)]) == 3.0
    assert rate_mb_s([(0.0, 5)]) is None
    assert rate_mb_s([(0.0, 10), (1.0, 5)]) is None
