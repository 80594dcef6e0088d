# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exaserve.preflight import CheckVerdict, Context, fabric
from exaserve.preflight.nccl_interface import judge_nccl_interface, recommended

INTERFACES = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000\\    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
2: eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP mode DEFAULT group default qlen 1000\\    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
3: eno2: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN mode DEFAULT group default qlen 1000\\    link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff
4: docker0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP mode DEFAULT group default\\    link/ether 02:00:00:00:00:03 brd ff:ff:ff:ff:ff:ff
2: eno1    inet 10.0.0.11/24 brd 10.0.0.255 scope global eno1\\       valid_lft forever preferred_lft forever
4: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\\       valid_lft forever preferred_lft forever
"""
PING = """PING n2 (10.0.0.12) 8972(9000) bytes of data.
8980 bytes from 10.0.0.12: icmp_seq=1 ttl=64 time=0.112 ms
8980 bytes from 10.0.0.12: icmp_seq=2 ttl=64 time=0.101 ms
8980 bytes from 10.0.0.12: icmp_seq=3 ttl=64 time=0.099 ms

--- n2 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 2043ms
rtt min/avg/max/mdev = 0.099/0.104/0.112/0.005 ms
"""
IB_WRITE_LAT = """---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF          Device         : mlx5_0
 Link type       : IB
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          0.71           3.62         0.74               0.75           0.10            0.98                   3.62
---------------------------------------------------------------------------------------
"""
P2P_LATENCY = """P2P=Disabled Latency Matrix (us)
   GPU     0      1      2      3
     0   2.30  14.10  14.20  14.30
     1  14.10   2.31  14.20  14.30
     2  14.10  14.20   2.32  14.30
     3  14.10  14.20  14.30   2.33

   CPU     0      1      2      3
     0   2.30   5.89   5.65   5.55
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2      3
     0   2.30   2.41   2.44   2.43
     1   2.42   2.31   2.44   2.43
     2   2.42   2.41   2.32   2.43
     3   2.42   2.41   2.44   2.33

   CPU     0      1      2      3
     0   2.26   1.59   1.63   1.60
"""
ROCE = """== ens1np0
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:3 dscp:31,30,29,28,27,26,25,24,
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: vendor
/sys/class/net/ens1np0/ecn/roce_np/enable/3:1
/sys/class/net/ens1np0/ecn/roce_rp/enable/3:1
"""


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


def test_interfaces(context: Context) -> None:
    judgement = fabric.judge_interfaces(INTERFACES, context)
    assert judgement.verdict is CheckVerdict.OK
    assert judgement.facts["interfaces"]["eno1"] == {
        "mtu": 9000,
        "up": True,
        "virtual": False,
        "addresses": ["10.0.0.11/24"],
    }
    assert not judgement.facts["interfaces"]["eno2"]["up"]
    mixed = INTERFACES.replace("NO-CARRIER,", "").replace("mtu 1500 qdisc mq state DOWN", "mtu 1500 qdisc mq state UP")
    assert codes_of(fabric.judge_interfaces(mixed, context)) == ["PF-NET-002"]
    assert codes_of(fabric.judge_interfaces(INTERFACES.splitlines()[0], context)) == ["PF-NET-001"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "ping: local error: message too long, mtu=1500\n3 packets transmitted, 0 received, +3 errors, 100% packet loss",
            "PF-NET-003",
        ),
        (
            "From 10.0.0.1 icmp_seq=1 Frag needed and DF set (mtu = 4200)\n3 packets transmitted, 0 received",
            "PF-NET-003",
        ),
        ("3 packets transmitted, 0 received, 100% packet loss, time 2043ms", "PF-NET-003"),
        ("ping: n9: Name or service not known", "PF-NET-004"),
        ("3 packets transmitted, 2 received, 33% packet loss", "PF-NET-005"),
        ("PING n2 (10.0.0.12) 8972(9000) bytes of data.", "PF-RUN-003"),
    ],
)
def test_mtu_end_to_end(text: str, code: str, context: Context) -> None:
    assert codes_of(fabric.judge_mtu_ping(text, context)) == [code]
    assert fabric.judge_mtu_ping(PING, context).verdict is CheckVerdict.OK


def test_path_mtu_is_told(context: Context) -> None:
    assert (
        fabric.judge_mtu_ping("From 10.0.0.1 icmp_seq=1 Frag needed and DF set (mtu = 4200)", context).facts["mtu"]
        == 4200
    )


@pytest.mark.parametrize(
    ("typical", "verdict"),
    [
        ("0.74", CheckVerdict.OK),
        ("0.80", CheckVerdict.WARNING),
        ("1.30", CheckVerdict.WARNING),
        ("5.10", CheckVerdict.FAILED),
    ],
)
def test_latency_between_hosts(typical: str, verdict: CheckVerdict, context: Context) -> None:
    judgement = fabric.judge_ib_latency(IB_WRITE_LAT.replace("0.74", typical), context)
    assert judgement.verdict is verdict
    assert judgement.facts["latency_us"] == float(typical)


def test_ibping_is_judged_as_software(context: Context) -> None:
    text = "Pong from n2 (Lid 5): time 0.020 ms\n--- ibping statistics ---\nrtt min/avg/max = 0.012/0.040/0.080 ms\n"
    assert fabric.judge_ib_latency(text, context).verdict is CheckVerdict.OK
    assert fabric.judge_ib_latency(text.replace("0.040", "0.900"), context).verdict is CheckVerdict.WARNING


def test_latency_between_cards_counts_what_the_link_adds(context: Context) -> None:
    good = fabric.judge_link_latency(P2P_LATENCY, context)
    assert good.verdict is CheckVerdict.OK
    assert good.facts["worst_us"] == pytest.approx(0.14)
    one = fabric.judge_link_latency(P2P_LATENCY.replace("     1   2.42   2.31", "     1   3.02   2.31"), context)
    assert one.verdict is CheckVerdict.FAILED
    assert "GPU1-GPU0" in one.findings[0].text
    fair = fabric.judge_link_latency(P2P_LATENCY.replace("     1   2.42   2.31", "     1   2.86   2.31"), context)
    assert fair.verdict is CheckVerdict.WARNING
    off = P2P_LATENCY.replace("P2P=Enabled", "x").replace("P2P=Disabled", "P2P=Enabled")
    assert "no direct links" in fabric.judge_link_latency(off, context).findings[0].text


def test_cut_matrix_is_unknown(context: Context) -> None:
    cut = P2P_LATENCY.replace("     3   2.42   2.41   2.44   2.33\n", "")
    assert fabric.judge_link_latency(cut, context).verdict is CheckVerdict.WARNING


def test_roce(context: Context) -> None:
    assert fabric.judge_roce(ROCE, context).verdict is CheckVerdict.OK
    assert codes_of(fabric.judge_roce(ROCE.replace("0   1   0", "0   0   0"), context)) == ["PF-NET-008"]
    assert codes_of(fabric.judge_roce(ROCE.replace("state: dscp", "state: pcp"), context)) == ["PF-NET-009"]
    assert codes_of(fabric.judge_roce(ROCE.replace("roce_rp/enable/3:1", "roce_rp/enable/3:0"), context)) == [
        "PF-NET-010"
    ]
    assert codes_of(fabric.judge_roce(ROCE.split("/sys", maxsplit=1)[0], context)) == ["PF-NET-010"]


def test_adaptive_routing(context: Context) -> None:
    text = "== 0000:1a:00.0\nField Name | Data\n====\nadaptive_routing_forced_en_field_select | 0x00000001\nadaptive_routing_forced_en | 0x00000001\n"
    assert fabric.judge_adaptive_routing(text, context).verdict is CheckVerdict.OK
    off = text.replace("forced_en | 0x00000001", "forced_en | 0x00000000")
    assert codes_of(fabric.judge_adaptive_routing(off, context)) == ["PF-NET-011"]


# ------------------------------------------------------------------------------------------------ NCCL's choice
FACTS: dict[str, dict[str, Any]] = {
    "interfaces": {"interfaces": {
        "lo": {"mtu": 65536, "up": True, "virtual": True, "addresses": ["127.0.0.1/8"]},
        "eno1": {"mtu": 9000, "up": True, "virtual": False, "addresses": ["10.0.0.11/24"]},
        "eno2": {"mtu": 1500, "up": False, "virtual": False, "addresses": []},
        "docker0": {"mtu": 1500, "up": True, "virtual": True, "addresses": ["172.17.0.1/16"]},
    }},
    "ibstat": {
        "adapters": {
            "mlx5_0": {"ports": [{"state": "Active", "gbit_s": 400}]}, "mlx5_1": {"ports": [{"state": "Active", "gbit_s": 400}]},
            "mlx5_2": {"ports": [{"state": "Active", "gbit_s": 25}]}, "mlx5_10": {"ports": [{"state": "Down", "gbit_s": 10}]},
        },
        "active": ["mlx5_0", "mlx5_1", "mlx5_2"],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("NCCL_SOCKET_IFNAME=eno1\nNCCL_IB_HCA==mlx5_0,mlx5_1", []),
        ("export NCCL_SOCKET_IFNAME==eno1\nexport NCCL_IB_HCA='=mlx5_0,mlx5_1'", []),
        ("", ["PF-NET-013"]),
        ("NCCL_SOCKET_IFNAME=ib0", ["PF-NET-012"]),
        ("NCCL_SOCKET_IFNAME=eno2", ["PF-NET-012"]),
        ("NCCL_SOCKET_IFNAME=^docker,lo", []),
        ("NCCL_SOCKET_IFNAME=eno1\nNCCL_IB_HCA=mlx5_1", ["PF-NET-014", "PF-NET-014"]),  # mlx5_10 too, and it is down
        ("NCCL_SOCKET_IFNAME=eno1\nNCCL_IB_HCA==mlx4_0", ["PF-NET-014"]),
        ("NCCL_SOCKET_IFNAME=eno1\nNCCL_IB_DISABLE=1", ["PF-NET-014"]),
        (
            "n1:7:7 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nn1:7:7 [0] NCCL INFO Using network Socket",
            ["PF-NET-012", "PF-NET-014"],
        ),
        (
            "NCCL_SOCKET_IFNAME=eno1\nn1 NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eno1:10.0.0.11<0>\nn1 NCCL INFO Using network IB",
            [],
        ),
        (
            "NCCL_SOCKET_IFNAME=eno1\nn1 NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE ; OOB eno1:10.0.0.11<0>",
            ["PF-NET-014"],
        ),
        ("NCCL_SOCKET_IFNAME=eno1\nGPU Direct RDMA Disabled for GPU 0 / HCA 0", ["PF-NET-015"]),
    ],
)
def test_interface_and_adapters(text: str, codes: list[str], context: Context) -> None:
    assert codes_of(judge_nccl_interface(text, replace(context, facts=FACTS))) == codes


def test_recommendation_prefers_the_nics_near_to_cards() -> None:
    assert recommended(FACTS) == {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "=eno1"}
    near = {
        "tables": [{"nic_of": {"GPU0": {"nic": "NIC1", "name": "mlx5_1"}, "GPU1": {"nic": "NIC9", "name": "mlx5_10"}}}]
    }
    assert recommended({**FACTS, "topology": near})["NCCL_IB_HCA"] == "=mlx5_1", (
        "an adapter that is down is not recommended"
    )
    assert recommended({}) == {}
