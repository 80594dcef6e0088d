from __future__ import annotations

from typing import Any

from tests.preflight import shapes

from exaserve.preflight import CheckVerdict, Context
from exaserve.preflight.rocm import judge_rocm, parse_rocm


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


def xgmi(a: int, b: int) -> str:
    return "XGMI"


def table(judgement: Any) -> Any:
    return judgement.facts["tables"][0]


def test_eight_cards_on_xgmi(context: Context) -> None:
    judgement = judge_rocm(shapes.rocm(8, xgmi, lambda a, b: 15), context)
    assert judgement.verdict is CheckVerdict.OK, judgement.findings
    assert table(judgement)["fully_connected"] is True
    assert [unit["cards"][0] for unit in table(judgement)["units"]] == ["GPU0", "GPU4"]
    assert [unit["numa"] for unit in table(judgement)["units"]] == [[0], [1]]


def test_weights_alone_tell_islands_not_links(context: Context) -> None:
    text = shapes.rocm(8, xgmi, lambda a, b: 40 if a // 4 == b // 4 else 61, numa=False)
    judgement = judge_rocm(text[: text.index("= Hops")], context)
    assert set(codes_of(judgement)) == {"PF-ROCM-002", "PF-ROCM-003"}
    assert table(judgement)["islands"] == [["GPU0", "GPU1", "GPU2", "GPU3"], ["GPU4", "GPU5", "GPU6", "GPU7"]]
    assert table(judgement)["fully_connected"] is None


def test_pcie_only(context: Context) -> None:
    judgement = judge_rocm(shapes.rocm(4, lambda a, b: "PCIE", lambda a, b: 52), context)
    assert "PF-ROCM-006" in codes_of(judgement)
    assert table(judgement)["fully_connected"] is False


def test_lost_link_and_asymmetry(context: Context) -> None:
    lost = judge_rocm(shapes.rocm(8, lambda a, b: "PCIE" if {a, b} == {2, 5} else "XGMI", lambda a, b: 15), context)
    assert lost.verdict is CheckVerdict.FAILED
    assert "GPU2-GPU5" in lost.findings[0].text
    one_way = judge_rocm(shapes.rocm(8, xgmi, lambda a, b: 40 if (a, b) == (2, 5) else 15), context)
    assert codes_of(one_way) == ["PF-ROCM-004"]


def test_numa_list_with_tabs_alone(context: Context) -> None:
    text = "".join(
        f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 4}\nGPU[{i}]\t\t: (Topology) Numa Affinity: {i // 4}\n"
        for i in range(8)
    )
    judgement = judge_rocm(text, context)
    assert judgement.verdict is CheckVerdict.WARNING
    assert table(judgement)["numa"] == {f"GPU{i}": i // 4 for i in range(8)}


def test_lost_row_and_lost_node(context: Context) -> None:
    text = shapes.rocm(8, xgmi, lambda a, b: 15)
    lines = text.splitlines()
    i = next(i for i, line in enumerate(lines) if line.startswith("GPU3 "))
    assert "PF-ROCM-001" in codes_of(judge_rocm("\n".join(lines[:i] + lines[i + 1 :]), context))
    assert "PF-ROCM-003" in codes_of(
        judge_rocm(text.replace("GPU[7]\t\t: (Topology) Numa Node: 1", "GPU[7]\t\t: (Topology) Numa Node: -1"), context)
    )


def test_newer_tool_with_bus_addresses(context: Context) -> None:
    buses = ["0000:0c:00.0", "0000:22:00.0"]

    def block(title: str, word: str) -> str:
        return (
            f"{title}:\n"
            + " " * 13
            + " ".join(buses)
            + "\n"
            + "".join(f"{a} " + " ".join("SELF" if a == b else word for b in buses) + "\n" for a in buses)
        )

    text = (
        block("WEIGHT TABLE", "15").replace("SELF", "0")
        + block("HOPS TABLE", "1").replace("SELF", "0")
        + block("LINK TYPE TABLE", "XGMI")
    )
    assert parse_rocm(text).cards == buses
    assert table(judge_rocm(text, context))["fully_connected"] is True


def test_product_names(expectations: Any) -> None:
    from exaserve.preflight import find_machine

    found = parse_rocm(
        "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X\nGPU[1]\t\t: Card Series: \t\tAMD Instinct MI300X\n"
    )
    assert found.products == {"GPU0": "AMD Instinct MI300X", "GPU1": "AMD Instinct MI300X"}
    machine = find_machine(expectations.machines, {"AMD Instinct MI300X": 8})
    assert machine is not None and machine.name == "mi300x-8"


def test_weights_rank_cards_where_link_types_are_missing(context: Context) -> None:
    def weight(a: int, b: int) -> int:
        return 30 if a // 4 == b // 4 else 45

    text = shapes.rocm(8, lambda _a, _b: "XGMI", weight)
    cut = text[: text.index("Link Type")].rsplit("\n", 1)[0]
    judgement = judge_rocm(cut, context)
    assert "nearest, weight 30 x 12" in judgement.summary
    assert "farther, weight 45 x 16" in judgement.summary
    assert "unknown" not in judgement.summary
    units = judgement.facts["tables"][0]["units"]
    assert [u["cards"] for u in units] == [["GPU0", "GPU1", "GPU2", "GPU3"], ["GPU4", "GPU5", "GPU6", "GPU7"]]
