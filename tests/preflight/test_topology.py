# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.preflight import shapes

from exaserve.preflight import CheckVerdict, Context, Judgement
from exaserve.preflight.judge_topology import judge_topology
from exaserve.preflight.links import choose_nics, pack_units
from exaserve.preflight.topology import RANK, looks_like_topology, parse_topology

CUBE = {  # the hybrid mesh of eight Volta cards: four links of a card to its quad, the rest across
    (0, 1): "NV1", (0, 2): "NV1", (0, 3): "NV2", (0, 4): "NV2", (1, 2): "NV2", (1, 3): "NV1", (1, 5): "NV2", (2, 3): "NV1",
    (2, 6): "NV2", (3, 7): "NV2", (4, 5): "NV1", (4, 6): "NV1", (4, 7): "NV2", (5, 6): "NV2", (5, 7): "NV1", (6, 7): "NV1",
}  # fmt: skip


def cube(a: str, b: str) -> str:
    i, j = sorted((int(a[3:]), int(b[3:])))
    return CUBE.get((i, j), "SYS")


def pairs(a: str, b: str) -> str:
    return "NV12" if int(a[3:]) // 2 == int(b[3:]) // 2 else "SYS"


def table(judgement: Judgement, i: int = 0) -> dict[str, Any]:
    found = judgement.facts["tables"][i]
    assert isinstance(found, dict)
    return found


def codes_of(judgement: Judgement) -> set[str]:
    return {finding.code for finding in judgement.findings}


def units(judgement: Judgement) -> list[list[str]]:
    return [unit["cards"] for unit in table(judgement)["units"]]


# ------------------------------------------------------------------------------------------------ shapes
@pytest.mark.parametrize("style", ["tabs", "spaces", "narrow", "glued"])
@pytest.mark.parametrize("nics", [0, 8, 12])
def test_every_spacing_reads_the_same(style: str, nics: int, context: Context) -> None:
    link = shapes.hgx() if nics <= 8 else (lambda a, b: shapes.hgx()(a, b) if int(b[3:]) < 8 else "NODE")
    judgement = judge_topology(shapes.topology(8, nics, link, style=style), context)
    found = table(judgement)
    assert (len(found["cards"]), len(found["nics"])) == (8, nics)
    assert found["rows_missing"] == []
    assert found["fully_connected"] is True
    assert units(judgement) == [[f"GPU{i}" for i in range(4)], [f"GPU{i}" for i in range(4, 8)]]
    assert [unit["numa"] for unit in found["units"]] == [[0], [1]]


def test_a_healthy_machine_is_ok(h100: Context) -> None:
    judgement = judge_topology(shapes.topology(8, 8, shapes.hgx()), h100)
    assert judgement.verdict is CheckVerdict.OK, judgement.findings


def test_cards_that_share_a_switch_get_a_nic_each(context: Context) -> None:
    judgement = judge_topology(shapes.topology(8, 8, shapes.hgx()), context)
    chosen = table(judgement)["nic_of"]
    assert [chosen[f"GPU{i}"]["name"] for i in range(8)] == [f"mlx5_{i}" for i in range(8)]
    assert {each["level"] for each in chosen.values()} == {"PXB"}
    assert chosen["GPU1"]["nearest"] == ["NIC0", "NIC1"]


def test_a_nic_for_two_cards_is_said(context: Context) -> None:
    judgement = judge_topology(shapes.topology(4, 2, lambda a, b: "NV4" if a[0] == b[0] == "G" else "PIX"), context)
    assert "PF-TOPO-009" in codes_of(judgement)
    assert [each["nic"] for each in table(judgement)["nic_of"].values()] == ["NIC0", "NIC1", "NIC0", "NIC1"]


def test_terminal_escapes_prompt_prefixes_and_line_ends(context: Context) -> None:
    plain = shapes.topology(8, 8, shapes.hgx())
    dressed = "$ nvidia-smi topo -m\n" + plain.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1", 1).replace(
        "GPU NUMA ID", "GPU NUMA ID\x1b[0m"
    )
    for text in (
        dressed,
        plain.replace("\n", "\r\n"),
        "".join(f"[1,0]<stdout>:{line}\n" for line in plain.splitlines()),
    ):
        assert table(judge_topology(text, context)) == table(judge_topology(plain, context))


def test_rows_and_header_wrapped_by_a_terminal(context: Context) -> None:
    wide = shapes.topology(8, 8, shapes.hgx(), style="spaces", legend=False)
    wrapped = "\n".join(
        line[i : i + 96] for line in wide.splitlines() for i in range(0, max(1, len(line.rstrip())), 96)
    )
    found = table(judge_topology(wrapped, context))
    assert found["rows_missing"] == []
    assert found["affinity"]["GPU7"]["numa"] == [1]
    assert found["nic_of"]["GPU7"]["nic"] == "NIC7"


def test_wrapped_legend_is_no_row(context: Context) -> None:
    text = (
        shapes.topology(2, 0, shapes.everywhere("NODE"))
        + "  NODE = Connection traversing PCIe between Host Bridges within a\nNUMA node\nQPI/UPI)\n"
    )
    assert table(judge_topology(text, context))["cards"] == ["GPU0", "GPU1"]


def test_old_drivers_and_containers_leave_the_affinity_unknown(context: Context) -> None:
    for affinity in (None, lambda _i: ("", "")):
        judgement = judge_topology(shapes.topology(4, 0, shapes.everywhere("NV4"), affinity=affinity), context)
        assert "PF-TOPO-010" in codes_of(judgement)
        assert table(judgement)["units"][0]["numa"] is None
        assert judgement.verdict is CheckVerdict.WARNING


def test_comma_lists_and_several_nodes_per_socket(context: Context) -> None:
    nodes = [("6,14,22,30", "3"), ("4,12,20,28", "1"), ("7,15,23,31", "7"), ("5,13,21,29", "5")]
    judgement = judge_topology(shapes.topology(4, 0, shapes.everywhere("NV6"), affinity=nodes.__getitem__), context)
    assert table(judgement)["affinity"]["GPU0"] == {
        "cpus": "6,14,22,30",
        "cpus_cut": False,
        "numa": [3],
        "gpu_numa": None,
    }
    assert table(judgement)["units"][0]["numa"] == [1, 3, 5, 7]


def test_columns_named_by_adapter(context: Context) -> None:
    text = shapes.topology(
        4, 4, lambda a, b: "NV4" if a[0] == b[0] == "G" else "PXB" if a[3:] == b[3:] else "NODE", legend=False
    )
    found = table(judge_topology(text.replace("NIC", "mlx5_"), context))
    assert found["nic_of"]["GPU2"]["nic"] == "mlx5_2"


def test_two_machines_in_one_text(context: Context) -> None:
    judgement = judge_topology(
        shapes.topology(8, 0, shapes.hgx()) + shapes.topology(4, 0, shapes.everywhere("NV4")), context
    )
    assert [len(each["cards"]) for each in judgement.facts["tables"]] == [8, 4]


def test_peer_table_after_the_links(context: Context) -> None:
    text = shapes.topology(2, 0, shapes.everywhere("PHB"), legend=False)
    text += "\n$ nvidia-smi topo -p2p rw\n\tGPU0\tGPU1\nGPU0\t X \tGNS\nGPU1\tGNS\t X \n\nLegend:\n\n  OK = Status Ok\n  GNS = GPU not supported\n"
    assert {"PF-TOPO-006", "PF-TOPO-013"} <= codes_of(judge_topology(text, context))


# ------------------------------------------------------------------------------------------------ groups and units
def test_pairs_carry_no_unit_of_four(context: Context) -> None:
    judgement = judge_topology(shapes.topology(4, 0, pairs), context)
    assert table(judgement)["groups"] == [["GPU0", "GPU1"], ["GPU2", "GPU3"]]
    assert table(judgement)["no_unit"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert table(judgement)["fully_connected"] is False
    (finding,) = (each for each in judgement.findings if each.code == "PF-TOPO-005")
    assert "--unit 2" in finding.repair
    assert units(judge_topology(shapes.topology(4, 0, pairs), replace(context, unit=2))) == [
        ["GPU0", "GPU1"],
        ["GPU2", "GPU3"],
    ]


def test_hybrid_mesh_is_one_group_of_two_units_and_not_full(context: Context) -> None:
    judgement = judge_topology(shapes.topology(8, 0, cube), context)
    assert len(table(judgement)["groups"]) == 1
    assert units(judgement) == [["GPU0", "GPU1", "GPU2", "GPU3"], ["GPU4", "GPU5", "GPU6", "GPU7"]]
    assert "PF-TOPO-004" in codes_of(judgement)
    assert "PF-TOPO-003" not in codes_of(judgement), "a hybrid mesh is built like that"


def test_units_over_pcie_stay_on_a_socket(context: Context) -> None:
    def link(a: str, b: str) -> str:
        return "SYS" if "GPU0" in {a, b} else "PHB"

    judgement = judge_topology(shapes.topology(5, 0, link, affinity=lambda i: ("0-7", "1" if i == 0 else "0")), context)
    assert units(judgement) == [["GPU1", "GPU2", "GPU3", "GPU4"]]
    assert table(judgement)["no_unit"] == ["GPU0"]


def test_unit_search_ends_on_hostile_groups() -> None:
    cards = [f"GPU{i}" for i in range(48)]
    linked = lambda a, b: (int(a[3:]) * int(b[3:])) % 3 != 1  # noqa: E731
    found = pack_units(cards, 8, linked, lambda a, b: 1.0, cards.index)
    assert len({card for unit in found for card in unit}) == sum(map(len, found))


def test_nics_are_matched_even_when_greed_would_fail() -> None:
    level = {("A", "n0"): "PIX", ("A", "n1"): "PIX", ("B", "n0"): "PIX"}
    assert {card: choice.nic for card, choice in choose_nics(["A", "B"], ["n0", "n1"], level, RANK).items()} == {
        "A": "n1",
        "B": "n0",
    }


# ------------------------------------------------------------------------------------------------ faults
def test_asymmetry_is_a_fault(context: Context) -> None:
    text = shapes.topology(8, 8, shapes.but(shapes.hgx(), {("GPU2", "GPU5"): "NV17"}))
    judgement = judge_topology(text, context)
    assert judgement.verdict is CheckVerdict.FAILED
    assert {"PF-TOPO-002", "PF-TOPO-003"} <= codes_of(judgement)


@pytest.mark.parametrize("word", ["NV17", "NV1", "SYS", "NODE"])
def test_lost_link_without_knowing_the_machine(word: str, context: Context) -> None:
    both = {("GPU2", "GPU5"): word, ("GPU5", "GPU2"): word}
    judgement = judge_topology(shapes.topology(8, 0, shapes.but(shapes.hgx(), both)), context)
    assert judgement.verdict is CheckVerdict.FAILED
    assert any("GPU2-GPU5" in finding.text for finding in judgement.findings if finding.code == "PF-TOPO-003")


def test_all_links_weak_needs_the_type_to_be_seen(context: Context, h100: Context) -> None:
    text = shapes.topology(8, 0, shapes.hgx("NV16"))
    assert judge_topology(text, context).verdict is CheckVerdict.OK
    assert judge_topology(text, h100).verdict is CheckVerdict.FAILED


def test_cards_that_fell_out_of_the_fabric(context: Context) -> None:
    out = {"GPU3", "GPU6"}

    def link(a: str, b: str) -> str:
        return "NV18" if not out & {a, b} else "NODE"

    judgement = judge_topology(shapes.topology(8, 0, link), context)
    assert judgement.verdict is CheckVerdict.FAILED
    assert {"PF-TOPO-003", "PF-TOPO-004", "PF-TOPO-005"} <= codes_of(judgement)


def test_missing_card_and_no_links_at_all_against_the_type(h100: Context) -> None:
    assert "PF-TOPO-012" in codes_of(judge_topology(shapes.topology(7, 0, shapes.hgx()), h100))
    assert judge_topology(shapes.topology(8, 0, shapes.everywhere("SYS")), h100).verdict is CheckVerdict.FAILED


def test_pairs_of_a_bridged_type(context: Context, expectations: Any) -> None:
    nvl = replace(context, machine=next(m for m in expectations.machines if m.name == "h100-nvl"))
    assert "PF-TOPO-003" not in codes_of(judge_topology(shapes.topology(4, 0, pairs), nvl))
    broken = shapes.but(pairs, {("GPU0", "GPU1"): "NODE", ("GPU1", "GPU0"): "NODE"})
    assert "PF-TOPO-003" in codes_of(judge_topology(shapes.topology(4, 0, broken), nvl))


def test_sys_inside_a_node_is_a_contradiction(context: Context) -> None:
    judgement = judge_topology(
        shapes.topology(4, 0, shapes.everywhere("SYS"), affinity=lambda _i: ("0-31", "0")),
        replace(context, facts={"cpu": {"virtual": False}}),
    )
    assert "PF-TOPO-011" in codes_of(judgement)


# ------------------------------------------------------------------------------------------------ what cannot be told
def test_virtual_machines_say_nothing_about_nics(context: Context) -> None:
    link = lambda a, b: "NV18" if a[0] == b[0] == "G" else "PHB"  # noqa: E731
    text = shapes.topology(4, 8, link)
    judgement = judge_topology(text, context)
    assert "PF-TOPO-007" in codes_of(judgement)
    assert all(each["nic"] is None and "because" in each for each in table(judgement)["nic_of"].values())
    metal = judge_topology(text, replace(context, facts={"cpu": {"virtual": False}}))
    assert table(metal)["nic_of"]["GPU0"]["level"] == "PHB"


def test_virtual_machines_say_nothing_about_links(context: Context) -> None:
    text = shapes.topology(4, 0, shapes.everywhere("PHB"), affinity=lambda _i: ("0-79", "0"))
    judgement = judge_topology(text, context)
    assert "PF-TOPO-007" in codes_of(judgement)
    assert judgement.verdict is CheckVerdict.WARNING


@pytest.mark.parametrize("gone", ["GPU0", "GPU3", "GPU7", "NIC0", "NIC7"])
def test_a_lost_row_is_never_ok(gone: str, h100: Context) -> None:
    lines = shapes.topology(8, 8, shapes.hgx()).splitlines()
    text = "\n".join(line for line in lines if not line.startswith(gone + "\t"))
    judgement = judge_topology(text, h100)
    assert judgement.verdict >= CheckVerdict.WARNING
    assert table(judgement)["rows_missing"] == [gone]
    if gone.startswith("GPU"):
        assert table(judgement)["nic_of"][gone]["nic"] is not None, "the NICs' own rows still tell"


def test_lost_header_is_inferred_and_said(context: Context) -> None:
    judgement = judge_topology(shapes.topology(8, 8, shapes.hgx(), header=False, legend=False), context)
    assert codes_of(judgement) == {"PF-TOPO-014"}
    assert (len(table(judgement)["cards"]), len(table(judgement)["nics"])) == (8, 8)


def test_rows_of_a_part_only(context: Context) -> None:
    lines = shapes.topology(8, 8, shapes.hgx(), legend=False).splitlines()
    judgement = judge_topology("\n".join(lines[:2]), context)
    found = table(judgement)
    assert found["fully_connected"] is None
    assert all(unit["presumed"] for unit in found["units"]), "switched links make it likely, not certain"
    assert found["nic_of"]["GPU5"] == {
        "nic": None,
        "name": None,
        "level": None,
        "nearest": [],
        "shared": False,
        "because": "its row is missing",
    }


def test_a_row_with_a_cell_too_few_gives_nothing(context: Context) -> None:
    text = shapes.topology(8, 0, shapes.hgx(), legend=False).replace("GPU4\tNV18\tNV18", "GPU4\tNV18", 1)
    judgement = judge_topology(text, context)
    assert table(judgement)["rows_missing"] == ["GPU4"]
    assert judgement.verdict is CheckVerdict.WARNING


@pytest.mark.parametrize("text", ["", "\n", "No devices were found", "GPU0", "GPU0\tGPU1", "CA 'mlx5_0'", "\x00\xff"])
def test_nothing_to_read_is_not_ok(text: str, context: Context) -> None:
    assert judge_topology(text, context).verdict >= CheckVerdict.WARNING


def test_other_tables_are_not_taken_for_a_topology() -> None:
    assert not looks_like_topology("mlx5_0 MT4129 28.41.1000 InfiniBand")
    assert not looks_like_topology(shapes.rocm(4, lambda a, b: "XGMI", lambda a, b: 15))
    assert looks_like_topology(shapes.topology(1, 0, shapes.everywhere("SYS")))


def test_glued_names_and_cells_are_noted() -> None:
    (found,) = parse_topology(
        shapes.topology(8, 10, lambda a, b: "NV18" if a[0] == b[0] == "G" else "NODE", style="glued")
    )
    assert [note.kind for note in found.notes] == ["glued", "glued"]
