# ruff: noqa: E501 - lines of real tools' outputs are long
"""Properties: no text makes a judge raise, and none that lost its rows is called ok."""

from __future__ import annotations

import functools
import re
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.preflight import shapes
from tests.preflight.test_ethernet import GOOD, IPERF, connection
from tests.preflight.test_fabric import IB_WRITE_LAT, INTERFACES, P2P_LATENCY, PING, ROCE
from tests.preflight.test_host import CHRONY, GOVERNOR, LIMITS, LSCPU, SYSCTLS
from tests.preflight.test_infiniband import SYSFS
from tests.preflight.test_software import FIRMWARE, NODES, SOFTWARE, memory
from tests.preflight.test_storage import listing

from exaserve.cli.preflight import load_expectations
from exaserve.preflight import (
    CHECKS,
    CheckVerdict,
    Context,
    Output,
    build_report,
    judge_host,
    judge_output,
    recognise,
    render_html,
    split,
)
from exaserve.preflight.counters import judge_counters
from exaserve.preflight.infiniband import judge_ibstat
from exaserve.preflight.judge_topology import judge_topology
from exaserve.preflight.nccl import judge_nccl
from exaserve.preflight.rocm import judge_rocm

LIGHT = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@functools.cache
def context() -> Context:
    found = load_expectations()
    machine = next(each for each in found.machines if each.name == "hgx-h100-8")
    return Context(machine=machine, machines=found.machines, limits=found.limits)


TOPOLOGIES = [
    shapes.topology(8, 8, shapes.hgx(), style=style, header=header)
    for style in ("tabs", "spaces", "glued")
    for header in (True, False)
] + [shapes.topology(2, 0, shapes.everywhere("NV12"), affinity=None), shapes.topology(1, 1, shapes.everywhere("PIX"))]
XGMI = shapes.rocm(8, lambda a, b: "XGMI", lambda a, b: 15)
SAMPLES = {
    "topology": TOPOLOGIES[0], "rocm": XGMI, "nccl": shapes.nccl(8, 470), "ibstat": shapes.ibstat([("mlx5_0", "Active", "LinkUp", 400)]),
    "rdma_counters": SYSFS, "cpu": LSCPU, "gpu": shapes.GPU_HEADER + "\n" + shapes.gpu_row(0) + "\n" + shapes.gpu_row(1),
    "limits": LIMITS, "connections": SYSCTLS, "clock": CHRONY, "governor": GOVERNOR, "weights": listing(), "roce": ROCE,
    "ethernet": GOOD, "iperf": IPERF.format(rate="93.7"), "software": SOFTWARE, "gpu_firmware": FIRMWARE,
    "retransmissions": connection(100_000_000, 10), "rank_memory": memory(70_000, 70_000), "kubernetes": NODES,
    "interfaces": INTERFACES, "mtu_ping": PING, "ib_latency": IB_WRITE_LAT, "link_latency": P2P_LATENCY,
}  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """Cuts, deletions, doubled and swapped pieces, foreign characters, joined and dropped lines."""
    for _ in range(draw(st.integers(1, 6))):
        if not text:
            return text
        a = draw(st.integers(0, len(text)))
        b = min(len(text), a + draw(st.sampled_from([0, 1, 2, 8, 40, 200])))
        piece = draw(
            st.sampled_from(
                ["", "\t", " ", "\n", "X", "GPU1", "NV", "SYS", "0", "9" * 40, "-", ",", "\x1b[4m", "é", "\x00"]
            )
        )
        kind = draw(st.integers(0, 4))
        if kind == 0:
            text = text[:a]
        elif kind == 1:
            text = text[:a] + text[b:]
        elif kind == 2:
            text = text[:a] + piece + text[b:]
        elif kind == 3:
            text = text[:b] + text[a:]
        else:
            lines = text.split("\n")
            i = draw(st.integers(0, len(lines) - 1))
            j = draw(st.integers(0, len(lines) - 1))
            lines[i], lines[j] = lines[j], lines[i]
            text = "\n".join(lines)
    return text


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
@LIGHT
@given(data=st.data())
def test_no_text_makes_a_judge_raise(check, data) -> None:
    sample = SAMPLES.get(check.id, "")
    text = data.draw(
        st.one_of(mutated(sample), st.text(max_size=300), st.text(alphabet=string.printable, max_size=300))
    )
    code = data.draw(st.sampled_from([0, 1, None]))
    result = judge_output(check, Output(text, code), context(), "host")
    assert result.summary
    recognise(text)
    for finding in result.findings:
        assert finding.text


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_truncation_of_every_sample(name: str) -> None:
    check = next(each for each in CHECKS if each.id == name)
    text = SAMPLES[name]
    for cut in range(0, len(text), max(1, len(text) // 150)):
        judge_output(check, Output(text[:cut], 0), context(), "host")
    assert judge_output(check, Output("", 0), context(), "host").verdict is not CheckVerdict.OK


@LIGHT
@given(data=st.data())
def test_a_topology_that_lost_rows_is_never_ok(data) -> None:
    text = data.draw(st.sampled_from(TOPOLOGIES))
    lines = text.split("\n")
    rows = [
        i
        for i, line in enumerate(lines)
        if line.split() and line.split()[0][:3] in {"GPU", "NIC"} and ":" not in line and "X" in line
    ]
    gone = set(data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True)))
    left = "\n".join(line for i, line in enumerate(lines) if i not in gone)
    assert judge_topology(left, Context()).verdict is not CheckVerdict.OK


@LIGHT
@given(data=st.data())
def test_a_truncated_topology_is_never_ok_before_its_last_row(data) -> None:
    text = data.draw(st.sampled_from(TOPOLOGIES[:4]))
    end = text.index("Legend:")
    last_cell = len(text[:end].rstrip()) - 2
    assert judge_topology(text[: data.draw(st.integers(0, last_cell - 1))], Context()).verdict is not CheckVerdict.OK


@LIGHT
@given(data=st.data())
def test_a_mutated_topology_is_ok_only_with_all_its_rows(data) -> None:
    text = data.draw(mutated(data.draw(st.sampled_from(TOPOLOGIES))))
    judgement = judge_topology(text, Context())
    if judgement.verdict is CheckVerdict.OK:
        assert judgement.facts["tables"]
        for table in judgement.facts["tables"]:
            assert table["rows_missing"] == []
            assert table["cards"]


@LIGHT
@given(data=st.data())
def test_an_amd_topology_that_lost_rows_is_never_ok(data) -> None:
    lines = XGMI.split("\n")
    rows = [i for i, line in enumerate(lines) if re.match(r"GPU\d", line)]
    gone = set(data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True)))
    assert (
        judge_rocm("\n".join(line for i, line in enumerate(lines) if i not in gone), Context()).verdict
        is not CheckVerdict.OK
    )


@pytest.mark.parametrize(
    ("judge", "text"),
    [(judge_nccl, shapes.nccl(8, 470)), (judge_ibstat, SAMPLES["ibstat"]), (judge_counters, SYSFS)],
    ids=["nccl", "ibstat", "counters"],
)
def test_results_that_lost_all_rows_are_never_ok(judge, text: str) -> None:
    kept = "\n".join(
        line
        for line in text.split("\n")
        if not any(word in line for word in ("float", "Port", "State", "state", "counters"))
    )
    machines = Context(machines=context().machines)
    assert judge(text, machines).verdict is CheckVerdict.OK
    assert judge(kept, machines).verdict is not CheckVerdict.OK


@LIGHT
@given(text=st.text(max_size=600))
def test_bundles_of_any_text(text: str) -> None:
    outputs = split(text)
    results = judge_host("<host>", outputs, context())
    assert "<host>" not in render_html(build_report(results, {}), title="t", when="w")
