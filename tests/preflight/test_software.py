"""Versions, firmware, memory of ranks, and what a topology means for an engine's start."""

from __future__ import annotations

from tests.preflight import shapes

from exaserve.preflight import CheckVerdict, Context, Output, compare_hosts, judge_host, recognise, unit_bindings
from exaserve.preflight.judge_topology import judge_topology
from exaserve.preflight.software import judge_firmware, judge_kubernetes, judge_rank_memory, judge_software

SOFTWARE = """\
PRETTY_NAME="Ubuntu 24.04.1 LTS"
VERSION_ID="24.04"
ldd (Ubuntu GLIBC 2.39-0ubuntu8.3) {glibc}
Linux 6.8.0-45-generic
vllm={vllm}
torch=2.9.0
"""
FIRMWARE = "index, name, vbios_version\n" + "".join(f"{i}, NVIDIA H100 80GB HBM3, 96.00.89.00.01\n" for i in range(8))


def test_versions_are_read() -> None:
    facts = judge_software(SOFTWARE.format(glibc="2.39", vllm="0.26.0"), Context()).facts
    assert facts == {
        "os": "Ubuntu 24.04.1 LTS",
        "glibc": "2.39",
        "kernel": "6.8.0-45-generic",
        "engine": "torch 2.9.0, vllm 0.26.0",
    }
    assert judge_software("nothing", Context()).findings[0].code == "PF-RUN-003"


def test_hosts_with_other_versions_are_named() -> None:
    results = []
    for host, glibc, engine in (("a", "2.39", "0.26.0"), ("b", "2.39", "0.26.0"), ("c", "2.35", "0.21.0")):
        outputs = {"software": Output(SOFTWARE.format(glibc=glibc, vllm=engine)), "gpu_firmware": Output(FIRMWARE)}
        results += judge_host(host, outputs, Context())
    (fleet,) = compare_hosts(results, Context())
    said = " ".join(f.text for f in fleet.findings)
    assert "software.glibc: c (2.35)" in said
    assert "software.engine: c" in said
    assert "software.os" not in said
    assert "gpu_firmware" not in said


def test_cards_with_other_firmware_are_named() -> None:
    assert judge_firmware(FIRMWARE, Context()).verdict is CheckVerdict.OK
    odd = FIRMWARE.replace("5, NVIDIA H100 80GB HBM3, 96.00.89.00.01", "5, NVIDIA H100 80GB HBM3, 96.00.74.00.01")
    assert "GPU5 (96.00.74.00.01)" in judge_firmware(odd, Context()).findings[0].text
    assert "no firmware version" in judge_firmware("0, NVIDIA H100, [N/A]\n", Context()).findings[0].text
    assert recognise(FIRMWARE).id == "gpu_firmware"  # type: ignore[union-attr]


def memory(*mib: int) -> str:
    return "index, memory.used [MiB]\n" + "".join(f"{i}, {size}\n" for i, size in enumerate(mib))


def test_ranks_of_a_replica_hold_alike() -> None:
    unit4 = Context(unit=4)
    assert judge_rank_memory(memory(*[72_000] * 4, *[71_000] * 4), unit4).verdict is CheckVerdict.OK
    apart = judge_rank_memory(memory(72_000, 72_100, 66_000, 72_000, *[71_000] * 4), unit4)
    assert apart.verdict is CheckVerdict.WARNING
    assert "8.5% apart" in apart.findings[0].text
    assert judge_rank_memory(memory(72_000, 72_000, 4, 72_000), unit4).verdict is CheckVerdict.FAILED
    assert judge_rank_memory(memory(3, 4, 4, 3), unit4).verdict is CheckVerdict.NOT_RUN
    assert judge_rank_memory("x", unit4).findings[0].code == "PF-RUN-003"


def test_ranks_are_those_of_the_topology() -> None:
    tables = [{"units": [{"cards": ["GPU0", "GPU2"]}, {"cards": ["GPU1", "GPU3"]}]}]
    context = Context(unit=2, facts={"topology": {"tables": tables}})
    assert judge_rank_memory(memory(70_000, 40_000, 70_000, 40_000), context).verdict is CheckVerdict.OK
    assert judge_rank_memory(memory(70_000, 70_000, 40_000, 40_000), context).verdict is not CheckVerdict.OK


NODES = """\
NODE    READY   CAPACITY   ALLOCATABLE
gpu-1   True    8          8
gpu-2   True    8          8
cpu-1   True    <none>     <none>
"""


def test_cards_that_kubernetes_offers() -> None:
    good = judge_kubernetes(NODES, Context())
    assert (good.verdict, good.summary) == (CheckVerdict.OK, "16 cards allocatable on 2 nodes")
    short = judge_kubernetes(NODES.replace("gpu-2   True    8          8", "gpu-2   True    8          7"), Context())
    assert "gpu-2 (7 of 8)" in short.findings[0].text
    assert judge_kubernetes(NODES.replace("gpu-1   True", "gpu-1   False"), Context()).verdict is CheckVerdict.FAILED
    fewer = judge_kubernetes(NODES + "gpu-3   True    4          4\n", Context())
    assert "gpu-3 (4)" in fewer.findings[0].text
    none = "NODE READY CAPACITY ALLOCATABLE\na True <none> <none>\n"
    assert judge_kubernetes(none, Context()).verdict is CheckVerdict.NOT_RUN
    assert recognise(NODES).id == "kubernetes"  # type: ignore[union-attr]
    assert judge_kubernetes("", Context()).findings[0].code == "PF-RUN-003"


def test_units_for_an_agent() -> None:
    units = unit_bindings(shapes.topology(8, 8, shapes.hgx()), 4)
    assert [u.devices for u in units] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [u.numa_nodes for u in units] == [(0,), (1,)]
    assert units[0].cpus == frozenset([*range(32), *range(64, 96)])
    assert all(len(set(u.adapters)) == 4 and "" not in u.adapters for u in units)
    assert all(u.sure for u in units)
    assert unit_bindings("nothing", 4) == ()


def test_units_follow_the_links_and_not_the_numbers() -> None:
    def bridged(a: str, b: str) -> str:
        pairs = ({"GPU0", "GPU2"}, {"GPU1", "GPU3"})
        return "NV4" if {a, b} in pairs else "SYS"

    text = shapes.topology(4, 0, bridged, affinity=None)
    assert [u.devices for u in unit_bindings(text, 2)] == [(0, 2), (1, 3)]
    assert unit_bindings(text, 4) == ()


def test_groups_are_always_named_and_a_pair_across_nodes_is_flagged() -> None:
    def bridged(a: str, b: str) -> str:
        pairs = ({"GPU0", "GPU2"}, {"GPU1", "GPU3"})
        return "NV4" if {a, b} in pairs else "SYS"

    nodes = [("0-15", "0"), ("0-15", "0"), ("16-31", "1"), ("16-31", "1")]
    judgement = judge_topology(shapes.topology(4, 0, bridged, affinity=nodes.__getitem__), Context(unit=4))
    assert "NVLink groups: GPU0 GPU2 (NV4); GPU1 GPU3 (NV4)" in judgement.lines
    crossing = next(f for f in judgement.findings if f.code == "PF-TOPO-016")
    assert "GPU0 GPU2 (NUMA 0, 1)" in crossing.text


def test_cut_rows_do_not_mean_that_there_is_no_nvlink() -> None:
    whole = shapes.topology(8, 0, shapes.everywhere("NV18")).splitlines()
    rows = [i for i, line in enumerate(whole) if line.startswith("GPU")]
    for i in rows:
        whole[i] = "\t".join(whole[i].split("\t")[:5])
    judgement = judge_topology("\n".join(whole), Context())
    said = " ".join(f.text for f in judgement.findings)
    assert "no NVLink between" not in said
    assert "whether NVLink joins them is not told" in said


def test_a_blank_cpu_column_leaves_the_node_a_node() -> None:
    rows = [
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \tNV4\t\t0\t\tN/A",
        "GPU1\tNV4\t X \t\t1\t\tN/A",
    ]
    judgement = judge_topology("\n".join(rows), Context(unit=2))
    assert "unit 1: GPU0 GPU1; NV4; NUMA 0, 1" in judgement.lines


def test_a_cut_list_of_processors_is_not_shown_as_whole() -> None:
    lists = [("0-31,64-95", "0"), ("0-31,64-95", "0"), ("0-31,6", "0"), ("0-31,64-", "0")]
    judgement = judge_topology(shapes.topology(4, 0, shapes.everywhere("NV6"), affinity=lists.__getitem__), Context())
    cut = next(f for f in judgement.findings if f.code == "PF-TOPO-010")
    assert "GPU2, GPU3" in cut.text
    assert any("(cut)" in line for line in judgement.lines)
    text = shapes.topology(4, 0, shapes.everywhere("NV6"), affinity=lists.__getitem__)
    assert unit_bindings(text, 4)[0].cpus == frozenset()
