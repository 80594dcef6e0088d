# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

from dataclasses import replace

import pytest

from exaserve.preflight import CheckVerdict, Context, host, kernel

LSCPU = """Architecture:                            x86_64
CPU(s):                                  112
Vendor ID:                               GenuineIntel
Model name:                              Intel(R) Xeon(R) Platinum 8462Y+
Thread(s) per core:                      2
Core(s) per socket:                      28
Socket(s):                               2
Flags:                                   fpu vme de pse tsc
NUMA node(s):                            2
NUMA node0 CPU(s):                       0-27,56-83
NUMA node1 CPU(s):                       28-55,84-111
"""
CHRONY = """Reference ID    : C0A80001 (ntp1.example)
Stratum         : 3
System time     : 0.000012345 seconds slow of NTP time
Last offset     : -0.000004321 seconds
Leap status     : Normal
"""
GOVERNOR = """/sys/devices/system/cpu/cpu0/cpuidle/state0/name:POLL
/sys/devices/system/cpu/cpu0/cpuidle/state1/name:C1
/sys/devices/system/cpu/cpu0/cpuidle/state2/name:C6
/sys/devices/system/cpu/cpu0/cpuidle/state0/latency:0
/sys/devices/system/cpu/cpu0/cpuidle/state1/latency:2
/sys/devices/system/cpu/cpu0/cpuidle/state2/latency:290
/sys/devices/system/cpu/cpu0/cpuidle/state2/disable:1
/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor:performance
/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor:performance
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             unlimited            unlimited            processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
/proc/sys/fs/file-max:9223372036854775807
/proc/sys/fs/nr_open:1073741816
shm_kib=67108864
"""
SYSCTLS = """/proc/sys/net/core/somaxconn:65535
/proc/sys/net/ipv4/tcp_max_syn_backlog:65535
/proc/sys/net/core/netdev_max_backlog:5000
/proc/sys/net/ipv4/ip_local_port_range:1024\t65535
/proc/sys/net/ipv4/tcp_slow_start_after_idle:0
/proc/sys/net/ipv4/tcp_tw_reuse:2
/proc/sys/net/netfilter/nf_conntrack_max:1048576
/proc/sys/net/netfilter/nf_conntrack_count:900
"""


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


def test_numa_nodes_are_those_with_processors(context: Context) -> None:
    two = host.judge_cpu(LSCPU, context)
    assert (two.verdict, two.facts["numa_nodes"], two.facts["virtual"]) == (CheckVerdict.OK, 2, False)
    grace = "NUMA:                     \n  NUMA node(s):           9\n  NUMA node0 CPU(s):      0-71\n"
    grace += "".join(f"  NUMA node{i} CPU(s):      \n" for i in range(1, 9))
    one = host.judge_cpu(grace, context)
    assert (one.verdict, one.facts["numa_nodes"], one.facts["memory_nodes"]) == (CheckVerdict.OK, 1, list(range(1, 9)))


def test_cut_or_odd_processors(context: Context) -> None:
    assert codes_of(host.judge_cpu(LSCPU.split("NUMA", maxsplit=1)[0], context)) == ["PF-HOST-001"]
    assert codes_of(host.judge_cpu("\n".join(LSCPU.splitlines()[:-1]), context)) == ["PF-HOST-001"]
    interleaved = LSCPU.replace("NUMA node(s):                            2", "NUMA node(s):  1").split("NUMA node1")[0]
    assert codes_of(host.judge_cpu(interleaved, context)) == ["PF-HOST-002"]


def test_a_guest_is_known_by_its_hypervisor_or_flag(context: Context) -> None:
    assert host.judge_cpu(LSCPU + "Hypervisor vendor:  KVM\n", context).facts["virtual"] is True
    assert host.judge_cpu(LSCPU.replace("fpu", "fpu hypervisor"), context).facts["virtual"] is True
    assert host.judge_cpu(LSCPU.replace("Flags:", "x:"), context).facts["virtual"] is None


def test_governor_and_sleep_states(context: Context) -> None:
    assert host.judge_governor(GOVERNOR, context).verdict is CheckVerdict.OK
    assert codes_of(host.judge_governor(GOVERNOR.replace("disable:1", "disable:0"), context)) == ["PF-HOST-004"]
    assert codes_of(
        host.judge_governor(
            GOVERNOR.replace("cpu1/cpufreq/scaling_governor:performance", "cpu1/cpufreq/scaling_governor:powersave"),
            context,
        )
    ) == ["PF-HOST-003"]
    guest = host.judge_governor("/sys/devices/system/cpu/cpuidle/current_driver:none", context)
    assert guest.verdict is CheckVerdict.NOT_RUN


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (CHRONY, []),
        (CHRONY.replace("0.000012345", "0.004000000"), ["PF-HOST-006"]),
        (CHRONY.replace("0.000012345", "1.500000000"), ["PF-HOST-006"]),
        (CHRONY.replace("Normal", "Not synchronised"), ["PF-HOST-005"]),
        (CHRONY.replace("C0A80001", "00000000"), ["PF-HOST-005"]),
        ("System clock synchronized: no\n              NTP service: inactive\n", ["PF-HOST-005"]),
        ("System clock synchronized: yes\n              NTP service: active\n", ["PF-HOST-006"]),
        ("System clock synchronized: yes\nNTP service: active\n       Offset: +312us\n", []),
        ("506 Cannot talk to daemon", ["PF-RUN-003"]),
    ],
)
def test_clocks(text: str, codes: list[str], context: Context) -> None:
    assert codes_of(host.judge_clock(text, context)) == codes


def test_a_clock_far_off_is_failed(context: Context) -> None:
    assert host.judge_clock(CHRONY.replace("0.000012345", "1.500000000"), context).verdict is CheckVerdict.FAILED


def test_numa_balancing(context: Context) -> None:
    text = "/proc/sys/kernel/numa_balancing:1\n/proc/sys/vm/zone_reclaim_mode:0\n"
    assert codes_of(host.judge_numa_balancing(text, context)) == ["PF-HOST-007"]
    assert (
        host.judge_numa_balancing(text, replace(context, facts={"cpu": {"numa_nodes": 1}})).verdict is CheckVerdict.OK
    )
    assert host.judge_numa_balancing(text.replace("balancing:1", "balancing:0"), context).verdict is CheckVerdict.OK


def test_memory_and_huge_pages(context: Context) -> None:
    text = "/sys/kernel/mm/transparent_hugepage/enabled:always [madvise] never\nMemTotal:       2113462272 kB\nMemAvailable: 2000000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"
    assert host.judge_huge_pages(text, context).verdict is CheckVerdict.OK
    assert codes_of(host.judge_huge_pages(text.replace("[madvise] never", "madvise [never]"), context)) == [
        "PF-HOST-008"
    ]
    assert codes_of(
        host.judge_huge_pages(text.replace("HugePages_Total:       0", "HugePages_Total:  500000"), context)
    ) == ["PF-HOST-008"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda iommu=pt\niommu_groups=80\n", []),
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda\niommu_groups=80\n", ["PF-HOST-010"]),
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda\niommu_groups=0\n", []),
        (
            "BOOT_IMAGE=/vmlinuz iommu=pt\niommu_groups=80\n\tACSCtl: SrcValid+ TransBlk-\n\tACSCtl: SrcValid- TransBlk-\n",
            ["PF-HOST-011"],
        ),
        ("BOOT_IMAGE=/vmlinuz iommu=pt\niommu_groups=80\n\tCapabilities: <access denied>\n", ["PF-HOST-011"]),
    ],
)
def test_iommu_and_acs(text: str, codes: list[str], context: Context) -> None:
    assert codes_of(host.judge_iommu(text, context)) == codes


# ------------------------------------------------------------------------------------------------ kernel
def test_open_files_against_the_streams(context: Context) -> None:
    assert kernel.judge_limits(LIMITS, replace(context, streams=100_000)).verdict is CheckVerdict.OK
    few = LIMITS.replace("1048576              1048576", "20000                20000")
    judgement = kernel.judge_limits(few, replace(context, streams=10_000))
    assert (judgement.verdict, codes_of(judgement)) == (CheckVerdict.WARNING, ["PF-KERN-001"])
    assert "7,952" in judgement.findings[0].text
    assert kernel.judge_limits(few, replace(context, streams=50_000)).verdict is CheckVerdict.FAILED


def test_locked_and_shared_memory_matter_with_cards(context: Context) -> None:
    small = LIMITS.replace("locked memory         unlimited", "locked memory         8388608").replace(
        "67108864", "65536"
    )
    assert kernel.judge_limits(small, context).verdict is CheckVerdict.OK
    assert codes_of(kernel.judge_limits(small, replace(context, facts={"gpu": {"driver": "1"}}))) == [
        "PF-KERN-002",
        "PF-KERN-003",
    ]


def test_ulimit_listing_of_a_shell(context: Context) -> None:
    text = "open files                          (-n) 1024\nmax locked memory           (kbytes, -l) 64\n"
    assert codes_of(kernel.judge_limits(text, context)) == ["PF-KERN-001"]


def test_connection_settings(context: Context) -> None:
    assert kernel.judge_connections(SYSCTLS, replace(context, streams=50_000, engines=4)).verdict is CheckVerdict.OK
    dotted = SYSCTLS.replace("/proc/sys/", "").replace("/", ".").replace(":", " = ")
    assert kernel.judge_connections(dotted, replace(context, streams=50_000, engines=4)).verdict is CheckVerdict.OK
    default = (
        SYSCTLS.replace("1024\t65535", "32768\t60999")
        .replace("somaxconn:65535", "somaxconn:4096")
        .replace("max:1048576", "max:262144")
    )
    found = kernel.judge_connections(default, replace(context, streams=100_000, engines=2))
    assert codes_of(found) == ["PF-KERN-005", "PF-KERN-006", "PF-KERN-007"]
    assert found.verdict is CheckVerdict.FAILED, "50,000 connections to one engine do not fit in 28,232 ports"
    assert kernel.judge_connections(default, replace(context, streams=1000)).verdict is CheckVerdict.OK


def test_repairs_are_commands(context: Context) -> None:
    found = kernel.judge_connections(
        SYSCTLS.replace("somaxconn:65535", "somaxconn:128"), replace(context, streams=200_000, engines=100)
    )
    assert found.findings[0].repair.startswith("sysctl -w net.core.somaxconn=25000")
