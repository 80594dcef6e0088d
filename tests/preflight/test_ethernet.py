"""``ethtool``, ``iperf3`` and ``ss -i``."""

from __future__ import annotations

import pytest

from exaserve.preflight import CheckVerdict, Context, recognise
from exaserve.preflight.ethernet import judge_ethernet, parse_ethtool
from exaserve.preflight.throughput import judge_iperf, judge_retransmissions

SETTINGS = """\
Settings for {name}:
\tSupported ports: [ Backplane ]
\tSupported link modes:   1000baseKX/Full
\t                        25000baseCR/Full
\t                        100000baseCR4/Full
\tAdvertised link modes:  100000baseCR4/Full
\tSpeed: {speed}Mb/s
\tDuplex: Full
\tPort: {port}
\tLink detected: yes
"""
PAUSE = "Pause parameters for {name}:\nAutonegotiate:\toff\nRX:\t\t{rx}\nTX:\t\t{tx}\n"


def settings(name: str = "eth0", speed: int = 100_000, port: str = "Direct Attach Copper") -> str:
    return SETTINGS.format(name=name, speed=speed, port=port)


def pause(name: str = "eth0", rx: str = "off", tx: str = "off") -> str:
    return PAUSE.format(name=name, rx=rx, tx=tx)


def stats(prefix: str = "", **values: int) -> str:
    base = {"rx_packets": 10, "rx_prio0_bytes": 0, "rx_prio3_bytes": 0, "rx_prio3_pause": 0, "tx_prio3_pause": 0}
    return "NIC statistics:\n" + "".join(f"     {prefix}{k}: {v}\n" for k, v in {**base, **values}.items())


def two(first: str, second: str) -> str:
    return f"{settings()}== eth0\n{first}== eth0 after 5 s\n{second}"


ROCE = Context(facts={"ibstat": {"ethernet": True}, "roce": {"pfc": {"eth0": [3]}}})
GOOD = two(stats(rx_prio3_bytes=1_000), stats(rx_prio3_bytes=9_000_000))


def codes(text: str, context: Context = ROCE) -> list[str]:
    return [f.code for f in judge_ethernet(text, context).findings]


def test_traffic_on_the_protected_priority_is_good() -> None:
    judgement = judge_ethernet(GOOD, ROCE)
    assert judgement.verdict is CheckVerdict.OK
    assert judgement.summary == "1 interface: eth0 100 Gbit/s"
    assert recognise(GOOD) is not None
    assert recognise(GOOD).id == "ethernet"  # type: ignore[union-attr]


def test_all_bytes_on_priority_0_is_not_lossless() -> None:
    text = two(stats(rx_prio0_bytes=1_000), stats(rx_prio0_bytes=9_000_000))
    judgement = judge_ethernet(text, ROCE)
    assert judgement.verdict is CheckVerdict.FAILED
    assert "RDMA is not lossless" in judgement.findings[0].text
    # Where nothing tells whether RDMA runs there it is unknown; on InfiniBand it does not matter.
    assert judge_ethernet(text, Context()).findings[0].text.startswith("unknown")
    assert judge_ethernet(text, Context(facts={"ibstat": {"ethernet": False}})).verdict is CheckVerdict.OK
    rdma = two(stats(rx_prio0_bytes=5), stats(rx_prio0_bytes=9_000, rx_vport_rdma_unicast_bytes=8_000))
    assert judge_ethernet(rdma, Context()).verdict is CheckVerdict.FAILED


def test_pauses_count_as_differences_only() -> None:
    many = stats(rx_prio3_bytes=5, rx_prio3_pause=4_000_000)
    assert codes(two(many, many)) == []
    grown = two(many, stats(rx_prio3_bytes=5, rx_prio3_pause=4_000_321))
    assert codes(grown) == ["PF-NET-017"]
    assert "rx_prio3_pause 321 in 5 s" in judge_ethernet(grown, ROCE).findings[0].text
    alone = judge_ethernet(settings() + many, ROCE)
    assert [f.code for f in alone.findings] == ["PF-NET-017"]
    assert "one sample" in alone.findings[0].text


@pytest.mark.parametrize("prefix", ["", "[0]: ", "p0_", "mac_", "port 1 "])
def test_keys_with_prefixes_are_read(prefix: str) -> None:
    text = two(stats(prefix, rx_prio0_bytes=1), stats(prefix, rx_prio0_bytes=99, rx_prio3_pause=7))
    judgement = judge_ethernet(text, ROCE)
    assert {f.code for f in judgement.findings} == {"PF-NET-016", "PF-NET-017"}
    assert judgement.facts["bytes_by_priority"]["eth0"] == {"0": 98, "3": 0}


@pytest.mark.parametrize("key", ["rx_pfc_ena_frames_pri3", "rx_priority_3_xoff.nic", "rx_pause_ctrl_phy"])
def test_pauses_of_other_makers(key: str) -> None:
    assert codes(two(f"NIC statistics:\n     {key}: 1\n", f"NIC statistics:\n     {key}: 9\n")) == ["PF-NET-017"]


def test_launchers_prefixes_are_taken_off() -> None:
    text = "".join(f"node1 | {line}\n" for line in GOOD.splitlines())
    assert judge_ethernet(text, ROCE).verdict is CheckVerdict.OK


def test_a_bond_shows_the_sum_of_its_ports() -> None:
    bond = parse_ethtool(settings("bond0", 200_000, "Other"))["bond0"]
    assert (bond.gbit_s, bond.bonded) == (200.0, True)
    judgement = judge_ethernet(settings("bond0", 200_000, "Other"), Context())
    assert judgement.verdict is CheckVerdict.OK
    assert "200 Gbit/s (bond)" in judgement.summary
    assert codes(settings("bond0", 50_000, "Other")) == []
    assert codes(settings("eth0", 25_000)) == ["PF-NET-018"]


def test_flow_control_of_the_link() -> None:
    assert codes(settings() + pause(rx="on", tx="on")) == ["PF-NET-016"]  # beside PFC
    bare = Context(facts={"ibstat": {"ethernet": True}, "roce": {"pfc": {"eth0": []}}})
    assert "neither kind" in judge_ethernet(settings() + pause(), bare).findings[0].text


def test_losses_between_the_samples() -> None:
    assert codes(two(stats(rx_discards_phy=5), stats(rx_discards_phy=9))) == ["PF-NET-019"]
    assert codes(two(stats(rx_discards_phy=5), stats(rx_discards_phy=5))) == []


IPERF = """\
Connecting to host node2, port 5201
[  5]   0.00-10.00  sec  14.1 GBytes  12.1 Gbits/sec   10             sender
[  5]   0.00-10.00  sec  14.1 GBytes  12.1 Gbits/sec                  receiver
[  7]   0.00-10.00  sec  14.1 GBytes  12.1 Gbits/sec   10             sender
[  7]   0.00-10.00  sec  14.1 GBytes  12.1 Gbits/sec                  receiver
[SUM]   0.00-10.00  sec   109 GBytes  {rate} Gbits/sec   20             sender
[SUM]   0.00-10.00  sec   109 GBytes  {rate} Gbits/sec                  receiver
"""
LINK = Context(facts={"ethernet": {"gbit_s": {"eth0": 100.0}}})


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [("93.7", CheckVerdict.OK), ("70.0", CheckVerdict.WARNING), ("9.41", CheckVerdict.FAILED)],
)
def test_tcp_bandwidth_against_the_link(rate: str, verdict: CheckVerdict) -> None:
    judgement = judge_iperf(IPERF.format(rate=rate), LINK)
    assert judgement.verdict is verdict
    assert judgement.facts == {"gbit_s": float(rate), "retransmissions": 20}
    assert recognise(IPERF).id == "iperf"  # type: ignore[union-attr]


def test_tcp_bandwidth_of_single_streams_of_json_and_of_failures() -> None:
    streams = "\n".join(IPERF.splitlines()[:5])
    assert judge_iperf(streams, LINK).facts["gbit_s"] == pytest.approx(24.2)
    json = '{"end": {"sum_received": {"start": 0, "seconds": 10, "bytes": 1, "bits_per_second": 9.4e10}}}'
    assert judge_iperf(json, LINK).facts["gbit_s"] == pytest.approx(94.0)
    assert judge_iperf("iperf3: error - unable to connect to server: Connection refused", LINK).verdict is (
        CheckVerdict.FAILED
    )
    assert "not known" in judge_iperf(IPERF.format(rate="93.7"), Context()).findings[0].text
    assert judge_iperf("nothing", LINK).findings[0].code == "PF-RUN-003"


def connection(sent: int, again: int, peer: str = "10.0.0.2:9000") -> str:
    return (
        f"0      0      10.0.0.1:45678      {peer}\n\t cubic wscale:7,7 rto:204 rtt:0.2/0.1 cwnd:10 bytes_sent:{sent} "
        f"bytes_retrans:{again} bytes_acked:{sent} segs_out:900 retrans:0/{again // 1448} lastsnd:4\n"
    )


@pytest.mark.parametrize(
    ("again", "verdict"),
    [
        (0, CheckVerdict.OK),
        (50_000, CheckVerdict.OK),
        (500_000, CheckVerdict.WARNING),
        (3_000_000, CheckVerdict.FAILED),
    ],
)
def test_bytes_sent_again(again: int, verdict: CheckVerdict) -> None:
    text = "Recv-Q Send-Q Local Address:Port Peer Address:Port\n" + connection(100_000_000, again)
    judgement = judge_retransmissions(text, Context())
    assert judgement.verdict is verdict
    assert recognise(text).id == "retransmissions"  # type: ignore[union-attr]


def test_idle_connections_tell_nothing() -> None:
    assert judge_retransmissions(connection(1_000, 0), Context()).verdict is CheckVerdict.NOT_RUN
    assert judge_retransmissions("", Context()).findings[0].code == "PF-RUN-003"
