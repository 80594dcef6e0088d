# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

from dataclasses import replace

import pytest
from tests.preflight import shapes

from exaserve.preflight import CheckVerdict, Context, recognise
from exaserve.preflight.nccl import judge_nccl, parse_nccl


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("busbw", "verdict"),
    [(470, CheckVerdict.OK), (455, CheckVerdict.OK), (420, CheckVerdict.WARNING), (300, CheckVerdict.FAILED)],
)
def test_bandwidth_inside_a_machine(busbw: float, verdict: CheckVerdict, context: Context) -> None:
    judgement = judge_nccl(shapes.nccl(8, busbw), context)  # the type is found from the device lines
    assert judgement.verdict is verdict
    assert judgement.facts["ranks"] == 8


def test_ranks_are_read_from_the_figures_where_the_device_lines_are_cut(h100: Context) -> None:
    judgement = judge_nccl(shapes.nccl(8, 470, devices=False), h100)
    assert (judgement.facts["ranks"], judgement.verdict) == (8, CheckVerdict.OK)


def test_between_machines_the_nics_are_the_limit(context: Context) -> None:
    text = shapes.nccl(16, 196, hosts=2)
    assert codes_of(judge_nccl(text, context)) == ["PF-NCCL-010"]
    eight_of_200 = replace(context, facts={"ibstat": {"active_gbit_s": [200.0] * 8}})
    assert judge_nccl(text, eight_of_200).verdict is CheckVerdict.OK
    half = replace(context, facts={"ibstat": {"active_gbit_s": [400.0] * 8}})
    assert judge_nccl(text, half).verdict is CheckVerdict.FAILED


def test_one_card_uses_one_nic(context: Context) -> None:
    four = replace(context, facts={"ibstat": {"active_gbit_s": [400.0] * 4}})
    assert judge_nccl(shapes.nccl(2, 48, hosts=2), four).verdict is CheckVerdict.OK


def test_the_average_is_never_compared(h100: Context) -> None:
    text = shapes.nccl(8, 470).replace("Avg bus bandwidth    : 470.000", "Avg bus bandwidth    : 66.4834")
    judgement = judge_nccl(text, h100)
    assert (judgement.verdict, judgement.facts["average_gb_s"]) == (CheckVerdict.OK, [66.4834])


def test_damaged_data_is_failed_whatever_the_bandwidth(h100: Context) -> None:
    assert "PF-NCCL-001" in codes_of(judge_nccl(shapes.nccl(8, 470, wrong=24), h100))
    assert "PF-NCCL-001" in codes_of(judge_nccl("# Out of bounds values : 248 FAILED\n", h100))


def test_independent_runs_are_no_measurement(h100: Context) -> None:
    head = shapes.NCCL_HEAD
    text = (
        head
        + head
        + "#   Rank  0 Pid   1320 on host-a device  0 [0x00] Tesla V100\n#   Rank  0 Pid   2066 on host-b device  0 [0x00] Tesla V100\n"
    )
    assert codes_of(judge_nccl(text, h100)) == ["PF-NCCL-003"]


def test_two_tests_after_each_other_are_not_independent_runs(h100: Context) -> None:
    assert judge_nccl(shapes.nccl(8, 470) + shapes.nccl(8, 465), h100).verdict is CheckVerdict.OK


def test_one_rank_and_small_sizes_say_nothing(h100: Context) -> None:
    assert codes_of(judge_nccl(shapes.nccl(1, 900), h100)) == ["PF-NCCL-007"]
    small = "\n".join(
        line for line in shapes.nccl(8, 470).splitlines() if not line.split() or not line.split()[0].isdigit()
    )
    small += "\n     2097152        524288     float     sum      -1    113.2   18.53   32.43      0    93.35   22.46   39.31      0\n"
    assert codes_of(judge_nccl(small, h100)) == ["PF-NCCL-008"]


@pytest.mark.parametrize(
    "row",
    [
        "  1073741824     268435456     float     sum      -1   4027.3  266.61  466.57      0   4029.1  266.50  466.37      0",
        "  1073741824     268435456     float     sum   4027.3  266.61  466.57  0e+00   4029.1  266.50  466.37  0e+00",
        " 1_073_741_824  4027.3  266.61  466.57",
        "[1,0]<stdout>:  1073741824     268435456     float     sum      -1   4027.3  266.61  466.57    N/A   4029.1  266.50  466.37    N/A",
        "worker-0:  1073741824     268435456  bfloat16     sum      -1   4027.3  266.61  466.57      0   4029.1  266.50  466.37      0",
        "# 1073741824 4027.3 266.61 466.57 | 4029.1 266.50",
    ],
)
def test_rows_of_every_layout(row: str) -> None:
    run = parse_nccl("#  size  time  algbw   busbw\n" + row)
    assert [(r.size_bytes, r.time_us, r.algbw, r.busbw) for r in run.rows] == [(1 << 30, 4027.3, 266.61, 466.57)]


def test_other_collectives(h100: Context) -> None:
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    row = "    33554432       8388608     float    none      -1    973.2   34.48   25.86      0    969.7   34.60   25.95      0\n"
    judgement = judge_nccl(head + row, h100)
    assert (judgement.facts["collective"], judgement.facts["ranks"]) == ("all_gather", 4)


def test_lines_that_two_ranks_wrote_into(h100: Context) -> None:
    lines = shapes.nccl(8, 470).splitlines()
    rows = [i for i, line in enumerate(lines) if line.split() and line.split()[0].isdigit()]
    lines[rows[2]] = lines[rows[2]][:60] + lines[rows[3]]
    judgement = judge_nccl("\n".join(lines), h100)
    assert codes_of(judgement) == ["PF-NCCL-004"]
    assert judgement.facts["damaged_lines"] == 1
    assert judgement.facts["rows"] == len(rows)  # the second of them is whole


ROW = "{size:>12} {count:>12}     float     sum      -1 {time:>8} {alg:>6.2f} {bus:>6.2f}      0 {time:>8} {alg:>6.2f} {bus:>6.2f}      0"


def row(size: int, alg: float) -> str:
    return ROW.format(size=size, count=size // 4, time=round(size / alg / 1000, 1), alg=alg, bus=alg * 1.75)


ROWS = [row(1 << p, 260.0) for p in (28, 30, 32)]


def test_rows_without_a_header_are_recognised() -> None:
    found = recognise("\n".join(ROWS))
    assert found is not None
    assert found.id == "nccl"
    assert len(parse_nccl("\n".join(ROWS)).rows) == 3


@pytest.mark.parametrize("prefix", ["[1,3]<stdout>:", "[1,12]<stdout>: ", "node-7: ", "[1,0]:"])
def test_a_rank_s_mark_inside_a_row(prefix: str) -> None:
    text = "\n".join(each.replace(" float ", f" float {prefix} ") for each in ROWS)
    assert recognise(text) is not None or "node" in prefix
    run = parse_nccl(shapes.NCCL_HEAD + text)
    assert (len(run.rows), run.damaged) == (3, 0)


def test_rows_of_several_ranks_in_one_line() -> None:
    run = parse_nccl(shapes.NCCL_HEAD + "   ".join(ROWS))
    assert (len(run.rows), run.damaged) == (3, 0)
    torn = ROWS[0][:45] + "  " + ROWS[1]
    run = parse_nccl(torn + "\n" + ROWS[2])
    assert (len(run.rows), run.damaged) == (2, 1)
    half = "  1073741824    268435456     float \n" + ROWS[2]
    assert parse_nccl(half).damaged == 1


def test_no_rows_no_check_no_bandwidth(h100: Context) -> None:
    assert codes_of(judge_nccl(shapes.NCCL_HEAD + "# size count algbw busbw\n", h100)) == ["PF-NCCL-005"]
    unchecked = shapes.nccl(8, 470).replace("      0", "    N/A").replace("# Out of bounds values : 0 OK\n", "")
    assert codes_of(judge_nccl(unchecked, h100)) == ["PF-NCCL-006"]
    falls = (
        shapes.nccl(8, 470)
        + "  17179869184    4294967296     float     sum      -1   150000  114.53  200.43      0   150000  114.53  200.43      0\n"
    )
    assert {"PF-NCCL-010", "PF-NCCL-011"} <= set(codes_of(judge_nccl(falls, h100)))
    assert "PF-NCCL-002" in codes_of(
        judge_nccl(shapes.NCCL_HEAD + "node-1: Test NCCL failure common.cu:1043 'unhandled cuda error'\n", h100)
    )


def test_unknown_machine_gets_no_verdict(context: Context) -> None:
    assert codes_of(judge_nccl(shapes.nccl(8, 470, product="Some Card"), context)) == ["PF-NCCL-009"]
