# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

import json
import re
import subprocess

from tests.preflight import shapes
from tests.preflight.test_fabric import IB_WRITE_LAT, INTERFACES, P2P_LATENCY, PING, ROCE
from tests.preflight.test_host import CHRONY, GOVERNOR, LIMITS, LSCPU, SYSCTLS
from tests.preflight.test_infiniband import IBSTATUS, SYSFS
from tests.preflight.test_storage import listing

from exaserve.preflight import (
    CHECKS,
    CheckResult,
    CheckVerdict,
    CodeEntry,
    Context,
    Output,
    build_report,
    compare_hosts,
    judge_host,
    recognise,
    render_html,
    script,
    split,
    unreachable,
)

GPUS = "\n".join((shapes.GPU_HEADER, *map(shapes.gpu_row, range(8)))) + "\n"
HEALTHY = {
    "cpu": Output(LSCPU, 0),
    "gpu": Output(GPUS, 0),
    "topology": Output(shapes.topology(8, 8, shapes.hgx()), 0),
    "interfaces": Output(INTERFACES, 0),
    "clock": Output(CHRONY, 0),
    "ibstat": Output(shapes.ibstat([(f"mlx5_{i}", "Active", "LinkUp", 400) for i in range(8)]), 0),
}


def by_check(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.check: result for result in results}


def test_a_healthy_host(context: Context, codes: dict[str, CodeEntry]) -> None:
    results = judge_host("n1", HEALTHY, context)
    report = build_report(results, codes)
    assert (report.verdict, report.exit_code) == (CheckVerdict.OK, 0), [f for r in results for f in r.findings]


def test_the_type_found_from_the_cards_sharpens_later_checks(context: Context) -> None:
    worn = {**HEALTHY, "topology": Output(shapes.topology(8, 8, shapes.hgx("NV16")), 0)}
    assert by_check(judge_host("n1", worn, context))["topology"].verdict is CheckVerdict.FAILED
    del worn["gpu"]
    assert by_check(judge_host("n1", worn, context))["topology"].verdict is CheckVerdict.OK


def test_what_became_of_the_command(context: Context, h100: Context) -> None:
    def one(check: str, output: Output, given: Context = context) -> CheckResult:
        return judge_host("n1", {check: output}, given)[0]

    missing = Output(missing="nvidia-smi")
    assert one("topology", missing).verdict is CheckVerdict.NOT_RUN
    assert one("topology", missing).summary == "not run: nvidia-smi not found"
    assert one("topology", missing, h100).verdict is CheckVerdict.WARNING, "the type must have it"
    assert one("topology", Output(problem="no answer in time")).verdict is CheckVerdict.NOT_RUN
    assert one("rdma_counters", Output("\n", 0)).verdict is CheckVerdict.NOT_RUN
    assert one("rdma_counters", Output("\n", 0), h100).verdict is CheckVerdict.WARNING
    assert [f.code for f in one("cpu", Output(LSCPU, 1)).findings] == ["PF-RUN-004"]
    assert one("cpu", Output("segfault", 139)).verdict is CheckVerdict.WARNING


def test_exit_codes(codes: dict[str, CodeEntry], context: Context) -> None:
    def code(**outputs: Output) -> int:
        return build_report(judge_host("n1", outputs, context), codes).exit_code

    ok, missing = Output(LSCPU, 0), Output(missing="x")
    assert code(cpu=ok) == 0
    assert code(cpu=ok, ibstat=missing) == 0
    assert code(cpu=Output("?", 0)) == 3
    assert code(ibstat=Output(shapes.ibstat([("mlx5_0", "Down", "Polling", 10)]), 0), cpu=Output("?", 0)) == 1
    assert code(ibstat=missing) == 4
    assert build_report([unreachable("n1", "no route")], codes).exit_code == 1


def test_every_finding_has_a_repair(codes: dict[str, CodeEntry], context: Context) -> None:
    bad = {**HEALTHY, "topology": Output(shapes.topology(7, 8, shapes.everywhere("SYS")), 0), "limits": Output("", 0)}
    report = build_report(judge_host("n1", bad, context), codes)
    findings = [finding for result in report.results for finding in result.findings]
    assert findings
    assert all(finding.repair for finding in findings)


def test_report_is_json(codes: dict[str, CodeEntry], context: Context) -> None:
    document = json.loads(json.dumps(build_report(judge_host("n1", HEALTHY, context), codes).as_dict()))
    assert document["verdict"] == "ok"
    topology = next(each for each in document["results"] if each["check"] == "topology")
    assert topology["facts"]["tables"][0]["nic_of"]["GPU5"]["name"] == "mlx5_5"


# ------------------------------------------------------------------------------------------------ hosts compared
def test_hosts_that_differ_are_named(context: Context) -> None:
    hosts = {f"n{i}": dict(HEALTHY) for i in range(4)}
    hosts["n2"]["gpu"] = Output(GPUS.replace("550.54.15", "535.104.05"), 0)
    hosts["n3"]["interfaces"] = Output(INTERFACES.replace("mtu 9000", "mtu 1500"), 0)
    results = [result for host, outputs in hosts.items() for result in judge_host(host, outputs, context)]
    (fleet,) = compare_hosts(results, context)
    assert [finding.code for finding in fleet.findings] == ["PF-FLEET-001", "PF-FLEET-002"]
    assert "n2 (535.104.05)" in fleet.findings[0].text
    assert fleet.verdict is CheckVerdict.FAILED


def test_like_hosts_and_single_hosts(context: Context) -> None:
    one = judge_host("n1", HEALTHY, context)
    assert compare_hosts(one, context) == []
    (fleet,) = compare_hosts(one + judge_host("n2", HEALTHY, context), context)
    assert fleet.verdict is CheckVerdict.OK
    assert fleet.lines == (
        "bandwidth between hosts: mpirun -np 16 -H n1:8,n2:8 all_reduce_perf -b 256M -e 8G -f 2 -g 1",
    )


def test_start_command_has_the_recommended_settings() -> None:
    from exaserve.preflight.nccl import start_command

    command = start_command({"n1": 4}, {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "=eno1"})
    assert command.startswith(
        "mpirun -np 4 -H n1:4 -x NCCL_IB_HCA==mlx5_0,mlx5_1 -x NCCL_SOCKET_IFNAME==eno1 all_reduce_perf"
    )


def test_clocks_apart(context: Context) -> None:
    late = {**HEALTHY, "clock": Output(CHRONY.replace("0.000012345", "0.150000000"), 0)}
    results = judge_host("n1", late, context) + judge_host("n2", HEALTHY, context)
    (fleet,) = compare_hosts(results, context)
    assert [finding.code for finding in fleet.findings] == ["PF-FLEET-003"]


# ------------------------------------------------------------------------------------------------ the bundle
def run(text: str) -> dict[str, Output]:
    done = subprocess.run(["sh", "-s"], input=text.encode(), capture_output=True, check=True, timeout=60)
    return split(done.stdout.decode(errors="replace"))


def test_script_runs_and_is_cut_up_again() -> None:
    from dataclasses import replace

    base = CHECKS[0]
    checks = [
        replace(base, id="plain", program="", command="printf 'a\\nb'; echo oops >&2; exit 3"),
        replace(base, id="absent", program="no-such-program-here", command="true"),
        replace(base, id="slow", program="", command="sleep 5", timeout_s=0.2),
        replace(base, id="hungry", program="", command='cat; echo "it\'s fed: $0"'),
        replace(base, id="silent", program="", command="true"),
    ]
    found = run(script(checks, {}))
    assert found["plain"] == Output("a\nboops", 3)
    assert found["absent"].missing == "no-such-program-here"
    assert found["slow"].problem == "no answer in time"
    assert found["hungry"].text.startswith("it's fed")
    assert found["silent"] == Output("", 0)


def test_a_session_that_ends_early_keeps_what_came() -> None:
    text = "@@exaserve-preflight begin cpu\nArch\n@@exaserve-preflight end cpu 0\n@@exaserve-preflight begin topology\n\tGPU0"
    assert split(text) == {"cpu": Output("Arch", 0), "topology": Output(problem="the session ended during this check")}


def test_placeholders_are_quoted() -> None:
    from exaserve.preflight.bundle import fill

    assert fill("df {weights}", {"weights": "/a b;rm -rf $HOME"}) == "df '/a b;rm -rf $HOME'"


def test_outputs_are_recognised_by_their_contents() -> None:
    samples = {
        "topology": HEALTHY["topology"].text, "rocm": shapes.rocm(4, lambda a, b: "XGMI", lambda a, b: 15), "cpu": LSCPU,
        "nccl": shapes.nccl(8, 470), "ibstat": HEALTHY["ibstat"].text, "rdma_counters": SYSFS, "gpu": GPUS, "clock": CHRONY,
        "limits": LIMITS, "connections": SYSCTLS, "governor": GOVERNOR, "weights": listing(), "roce": ROCE, "mtu_ping": PING,
        "interfaces": INTERFACES, "ib_latency": IB_WRITE_LAT, "link_latency": P2P_LATENCY,
        "nccl_interface": "n1:1:1 [0] NCCL INFO Using network IB", "gpu_xid": "NVRM: Xid (PCI:0000:19:00): 79, pid=1",
    }  # fmt: skip
    for name, text in samples.items():
        found = recognise("# saved by hand\n$ command\n" + text if name != "weights" else text)
        assert found is not None and found.id == name, name
    found = recognise(IBSTATUS)
    assert found is not None and found.id == "ibstat"
    assert recognise("hello") is None


# ------------------------------------------------------------------------------------------------ HTML
def test_page_is_self_contained_and_escaped(codes: dict[str, CodeEntry], context: Context) -> None:
    results = judge_host("<b>n1</b>", HEALTHY, context) + judge_host("n2", {"cpu": Output("x", 0)}, context)
    page = render_html(build_report(results, codes), title="T", when="today")
    assert "<b>n1" not in page
    assert "&lt;b&gt;n1" in page
    assert not re.search(r"(?:src|href)=|url\(|<script|@import|http", page)
    assert "PF-RUN-003" in page
    assert render_html(build_report(results, codes), title="T", when="today") == page
