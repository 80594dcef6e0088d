# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.preflight import shapes

from exaserve.preflight import CheckVerdict, Context
from exaserve.preflight.counters import judge_counters, parse_counters
from exaserve.preflight.infiniband import judge_ibstat, parse_ibstat

EIGHT = [(f"mlx5_{i}", "Active", "LinkUp", 400) for i in range(8)]
IBSTATUS = """Infiniband device 'mlx5_6' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0000:0000
\tbase lid:\t 0x0
\tsm lid:\t\t 0x0
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 100 Gb/sec (4X EDR)
\tlink_layer:\t Ethernet
"""


def sysfs(port: str, **counters: int) -> str:
    base = f"/sys/class/infiniband/{port}/ports/1"
    lines = [
        f"{base}/state:4: ACTIVE",
        f"{base}/phys_state:5: LinkUp",
        f"{base}/rate:400 Gb/sec (4X NDR)",
        f"{base}/link_layer:InfiniBand",
    ]
    values = {
        "port_rcv_packets": 5_000_000_000,
        "port_xmit_packets": 5_000_000_000,
        "port_rcv_errors": 0,
        "symbol_error": 0,
        "link_downed": 0,
    }
    return (
        "\n".join(lines + [f"{base}/counters/{name}:{value}" for name, value in {**values, **counters}.items()]) + "\n"
    )


SYSFS = sysfs("mlx5_0") + sysfs("mlx5_1")


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


def test_all_ports_up(h100: Context) -> None:
    judgement = judge_ibstat(shapes.ibstat(EIGHT), h100)
    assert judgement.verdict is CheckVerdict.OK
    assert judgement.summary == "8 of 8 ports active (8 x 400 Gbit/s)"


@pytest.mark.parametrize(
    ("port", "code", "word"),
    [
        (("mlx5_8", "Down", "Polling", 10), "PF-IB-002", "no signal"),
        (("mlx5_8", "Initializing", "LinkUp", 400), "PF-IB-002", "subnet manager"),
        (("mlx5_8", "Active", "LinkUp", 200), "PF-IB-003", "200"),
        (("mlx5_8", "Active", "LinkUp", 10), "PF-IB-003", "10"),
    ],
)
def test_a_port_that_is_not_right(port: tuple[str, str, str, int], code: str, word: str, h100: Context) -> None:
    judgement = judge_ibstat(shapes.ibstat([*EIGHT, port]), h100)
    assert (judgement.verdict, codes_of(judgement)) == (CheckVerdict.FAILED, [code])
    assert word in judgement.findings[0].text


def test_a_port_that_nobody_uses_is_a_warning_unless_it_was_chosen(h100: Context) -> None:
    disabled = shapes.ibstat([*EIGHT, ("mlx5_8", "Down", "Disabled", 10)])
    polling = shapes.ibstat([*EIGHT, ("mlx5_8", "Down", "Polling", 10)])
    used = tuple(f"mlx5_{i}" for i in range(8))
    assert judge_ibstat(disabled, h100).verdict is CheckVerdict.WARNING
    assert judge_ibstat(polling, h100).verdict is CheckVerdict.FAILED
    assert judge_ibstat(polling, replace(h100, nics=used)).verdict is CheckVerdict.WARNING
    for text in (disabled, polling):
        chosen = judge_ibstat(text, replace(h100, nics=(*used, "mlx5_8")))
        assert (chosen.verdict, codes_of(chosen)) == (CheckVerdict.FAILED, ["PF-IB-002"])
    gone = judge_ibstat(shapes.ibstat(EIGHT), replace(h100, nics=("mlx5_0", "mlx5_77")))
    assert "mlx5_77 of --nic is not there" in gone.findings[0].text


def test_too_few_ports_for_the_machine(h100: Context) -> None:
    assert "PF-IB-008" in codes_of(judge_ibstat(shapes.ibstat(EIGHT[:7]), h100))


def test_slow_adapters_beside_the_fast_ones_are_not_held_to_their_rate(h100: Context) -> None:
    storage = shapes.ibstat([("mlx5_9", "Active", "LinkUp", 25)], model="MT4117", layer="Ethernet")
    assert judge_ibstat(shapes.ibstat(EIGHT) + storage, h100).verdict is CheckVerdict.OK


def test_without_a_type_the_adapter_s_own_rate_counts(context: Context) -> None:
    half = judge_ibstat(shapes.ibstat([("mlx5_0", "Active", "LinkUp", 200)]), context)
    assert (half.verdict, codes_of(half)) == (CheckVerdict.WARNING, ["PF-IB-003"])


def test_tool_that_gave_up(context: Context) -> None:
    text = (
        shapes.ibstat(EIGHT) + "ibpanic: [1323906] main: stat of IB device 'mlx5_8' failed: No such file or directory\n"
    )
    assert judge_ibstat(text, context).verdict is CheckVerdict.FAILED
    assert judge_ibstat("ibpanic: [1] main: no IB devices\n", context).verdict is CheckVerdict.FAILED


def test_two_ports_of_two_layers(context: Context) -> None:
    text = (
        "CA 'mlx4_0'\n\tCA type: MT4099\n\tNumber of ports: 2\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n"
        "\t\tLink layer: InfiniBand\n\tPort 2:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 56\n\t\tLink layer: Ethernet\n"
    )
    (adapter,), _ = parse_ibstat(text)
    assert [(port.number, port.state, port.layer) for port in adapter.ports] == [
        (1, "Down", "InfiniBand"),
        (2, "Active", "Ethernet"),
    ]
    assert codes_of(judge_ibstat(text, context)) == ["PF-IB-002"]
    assert "PF-IB-005" in codes_of(judge_ibstat(text.split("\tPort 2", maxsplit=1)[0], context))


def test_cut_ports_are_unknown(context: Context) -> None:
    text = shapes.ibstat([("mlx5_0", "Active", "LinkUp", 400)])
    for cut in ("\t\tRate", "\t\tLink layer", "\tPort 1"):
        assert judge_ibstat(text.split(cut)[0], context).verdict >= CheckVerdict.WARNING


def test_active_without_a_subnet_manager(context: Context) -> None:
    assert codes_of(judge_ibstat(shapes.ibstat(EIGHT).replace("SM lid: 1", "SM lid: 0", 1), context)) == ["PF-IB-006"]


def test_firmware_differs_and_hosts_mixed(context: Context) -> None:
    text = shapes.ibstat(EIGHT).replace("28.41.1000", "28.43.2026", 1)
    assert codes_of(judge_ibstat(text, context)) == ["PF-IB-007"]
    assert "PF-IB-010" in codes_of(judge_ibstat(shapes.ibstat(EIGHT[:1]) * 2, context))


def test_ibstatus_on_ethernet(context: Context) -> None:
    judgement = judge_ibstat(IBSTATUS + "\n" + IBSTATUS.replace("mlx5_6", "mlx5_7"), context)
    assert judgement.verdict is CheckVerdict.OK
    assert judgement.facts["ethernet"] is True
    assert judgement.facts["active_gbit_s"] == [100.0, 100.0]


# ------------------------------------------------------------------------------------------------ counters
@pytest.mark.parametrize(
    ("counters", "verdict", "codes"),
    [
        ({}, CheckVerdict.OK, []),
        ({"port_rcv_errors": 9_999}, CheckVerdict.OK, []),  # 10^10 packets: exactly up to 0.0001 % is allowed
        ({"port_rcv_errors": 10_001}, CheckVerdict.FAILED, ["PF-IB-009"]),
        ({"symbol_error": 3}, CheckVerdict.WARNING, ["PF-IB-011"]),
        ({"symbol_error": 5_000}, CheckVerdict.FAILED, ["PF-IB-011"]),
        ({"link_downed": 2}, CheckVerdict.WARNING, ["PF-IB-012"]),
        ({"link_downed": 255}, CheckVerdict.FAILED, ["PF-IB-012"]),
    ],
)
def test_counters(counters: dict[str, int], verdict: CheckVerdict, codes: list[str], context: Context) -> None:
    judgement = judge_counters(sysfs("mlx5_0", **counters), context)
    assert (judgement.verdict, codes_of(judgement)) == (verdict, codes)


def test_counters_as_a_table_with_gaps_in_the_numbering(context: Context) -> None:
    head = "# ca hca_type fw_ver link_layer state phys_state rate link_downed port_xmit_wait\n"
    rows = [
        f'mlx5_{i} MT4129 28.41.1000 InfiniBand "4: ACTIVE" "5: LinkUp" "400 Gb/sec (4X NDR)" {d} {w}'
        for i, d, w in ((0, 0, 4), (4, 255, 7))
    ]
    ports, damaged = parse_counters(head + "\n".join(rows))
    assert ([port.adapter for port in ports], damaged) == (["mlx5_0", "mlx5_4"], 0)
    judgement = judge_counters(head + "\n".join(rows), context)
    assert codes_of(judgement) == ["PF-IB-012", "PF-IB-004"], "such a table cannot tell the loss ratio"
    assert "PF-IB-005" in codes_of(judge_counters(head + rows[0] + "\nmlx5_1 MT4129 28.41", context))


def test_copied_counters_are_not_believed(context: Context) -> None:
    text = "".join(
        sysfs(f"mlx5_{i}", port_xmit_wait=2_489_603_687, port_rcv_packets=10**9 + i, port_xmit_packets=10**9 + 7 * i)
        for i in range(4)
    )
    assert codes_of(judge_counters(text, context)) == ["PF-IB-004"]


def test_perfquery(context: Context) -> None:
    text = "# Port counters: Lid 5 port 1 (CapMask: 0x5A00)\nSymbolErrorCounter:..............12\nPortRcvPkts:.....................1000000000\nPortXmitPkts:....................1000000000\nPortRcvErrors:...................4000\n"
    assert codes_of(judge_counters(text, context)) == ["PF-IB-009", "PF-IB-011"]


def test_state_in_sysfs_counts_too(context: Context) -> None:
    assert judge_counters(SYSFS.replace("state:4: ACTIVE", "state:1: DOWN", 1), context).verdict is CheckVerdict.FAILED


def test_limits_are_data(context: Context, expectations: Any) -> None:
    from msgspec.structs import replace as with_values

    strict = replace(context, limits=with_values(expectations.limits, loss_ratio_max=1e-9))
    assert judge_counters(sysfs("mlx5_0", port_rcv_errors=100), strict).verdict is CheckVerdict.FAILED
