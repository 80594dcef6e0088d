"""The catalogue of checks, in the order in which they are judged: later ones use the facts of earlier ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from exaserve.preflight import (
    ethernet,
    fabric,
    gpu,
    host,
    infiniband,
    kernel,
    nccl,
    nccl_interface,
    software,
    storage,
    throughput,
    topology,
)
from exaserve.preflight.counters import judge_counters, looks_like_counters
from exaserve.preflight.judge_topology import judge_topology
from exaserve.preflight.model import Check
from exaserve.preflight.rocm import judge_rocm, looks_like_rocm

__all__ = ["AREAS", "CHECKS", "check_named", "recognise"]

AREAS = ("accelerators", "network", "host", "kernel", "storage")

_QUERY = ",".join(gpu.GPU_QUERY)
_REMAPPED = (
    "gpu_bus_id,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
)
_IB = "/sys/class/infiniband/*"
_GPU = f"""nvidia-smi --query-gpu={_QUERY} --format=csv,nounits ||
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,nounits
nvidia-smi --query-remapped-rows={_REMAPPED} --format=csv,noheader,nounits 2>/dev/null | sed 's/^/remapped,/'"""
_DRIVER = """nvidia-smi; cat /proc/driver/nvidia/version 2>/dev/null
python3 -c 'import torch; print("torch_cuda=%s" % torch.version.cuda)' 2>/dev/null; true"""
_XID = """test -e /proc/driver/nvidia/version || exit 0
dmesg 2>&1 | grep -E 'Xid|not permitted|read kernel buffer' | tail -n 200; echo read"""
_ROCE = """for d in /sys/class/infiniband/*/device/net/*; do [ -e "$d" ] || continue
  i=${d##*/}; echo "== $i"; mlnx_qos -i "$i"; done
grep -H . /sys/class/net/*/ecn/roce_*/enable/* 2>/dev/null; true"""
_ROUTING = """for d in /sys/class/infiniband/*/device; do [ -e "$d" ] || continue
  p=$(basename "$(readlink -f "$d")"); echo "== $p"; mlxreg -d "$p" --yes --reg_name ROCE_ACCL --get; done"""
_ETHTOOL = """list() { for d in /sys/class/net/*; do i=${d##*/}
  [ -e "$d/device" ] || [ -d "$d/bonding" ] || continue
  grep -q '^up$' "$d/operstate" 2>/dev/null && echo "$i"; done; true; }
for i in $(list); do ethtool "$i"; ethtool -a "$i" 2>/dev/null; echo "== $i"; ethtool -S "$i" 2>/dev/null; done
sleep 5; for i in $(list); do echo "== $i after 5 s"; ethtool -S "$i" 2>/dev/null; done; true"""
_SOFTWARE = """cat /etc/os-release 2>/dev/null; ldd --version 2>/dev/null | head -n 1; uname -sr
python3 - <<'PY' 2>/dev/null
from importlib.metadata import version
for name in ("vllm", "sglang", "tensorrt_llm", "torch"):
    try:
        print(f"{name}={version(name)}")
    except Exception:
        pass
PY
true"""
_NODES = """kubectl get nodes --request-timeout=15s -o custom-columns='NODE:.metadata.name,\
READY:.status.conditions[?(@.type=="Ready")].status,\
CAPACITY:.status.capacity.nvidia\\.com/gpu,ALLOCATABLE:.status.allocatable.nvidia\\.com/gpu' 2>/dev/null; true"""
_FIRMWARE = """nvidia-smi --query-gpu=index,name,vbios_version --format=csv,nounits
nvidia-smi -q 2>/dev/null | grep -i 'GSP Firmware'; true"""
_IOMMU = """cat /proc/cmdline; echo iommu_groups=$(ls /sys/kernel/iommu_groups 2>/dev/null | wc -l)
lspci -vvv 2>/dev/null | grep -E 'ACSCtl|access denied'; true"""
_LIMITS = """cat /proc/self/limits; grep -H . /proc/sys/fs/file-max /proc/sys/fs/nr_open
df -Pk /dev/shm 2>/dev/null | awk 'END{print "shm_kib="$2}'"""
_CHECKSUMS = """cd {weights} || exit 1
for f in SHA256SUMS sha256sums.txt checksums.sha256; do [ -f $f ] && exec sha256sum -c $f; done; true"""
_READ = """f=$(ls -S {weights}/*.safetensors {weights}/*.gguf {weights}/*.bin 2>/dev/null | head -n 1)
[ -n "$f" ] || exit 0; dd if="$f" of=/dev/null bs=16M count=256 iflag=direct 2>&1"""
_SYSCTLS = (
    "net/core/somaxconn net/core/netdev_max_backlog net/ipv4/tcp_max_syn_backlog net/ipv4/ip_local_port_range "
    "net/ipv4/tcp_slow_start_after_idle net/ipv4/tcp_tw_reuse net/ipv4/tcp_rmem net/ipv4/tcp_wmem "
    "net/netfilter/nf_conntrack_max net/netfilter/nf_conntrack_count"
)


def _files(names: str, root: str = "/proc/sys/") -> str:
    return "grep -H . " + " ".join(root + name for name in names.split()) + " 2>/dev/null; true"


CHECKS: tuple[Check, ...] = (
    Check(
        "cpu", "Processors and NUMA layout", "host", "lscpu", host.judge_cpu, "lscpu", recognises=host.looks_like_lscpu
    ),
    Check(
        "gpu",
        "Cards: memory errors, power, clocks",
        "accelerators",
        _GPU,
        gpu.judge_gpu,
        "nvidia-smi",
        timeout_s=60.0,
        recognises=gpu.looks_like_gpu,
    ),
    Check(
        "gpu_driver",
        "Driver, CUDA and engine",
        "accelerators",
        _DRIVER,
        gpu.judge_cuda,
        "nvidia-smi",
        timeout_s=60.0,
        recognises=lambda text: "Driver Version:" in text and "NVIDIA-SMI" in text,
    ),
    Check(
        "gpu_xid",
        "Faults in the kernel log",
        "accelerators",
        _XID,
        gpu.judge_xid,
        absent="no NVIDIA driver",
        recognises=lambda text: "NVRM: Xid" in text,
    ),
    Check(
        "gpu_firmware",
        "Firmware of the cards",
        "accelerators",
        _FIRMWARE,
        software.judge_firmware,
        "nvidia-smi",
        timeout_s=60.0,
        recognises=software.looks_like_firmware,
    ),
    Check(
        "software",
        "Operating system, libraries, engine",
        "host",
        _SOFTWARE,
        software.judge_software,
        recognises=lambda text: "PRETTY_NAME=" in text or re.search(r"^ldd \(", text, re.MULTILINE) is not None,
    ),
    Check(
        "kubernetes",
        "Cards that Kubernetes offers",
        "host",
        _NODES,
        software.judge_kubernetes,
        "kubectl",
        absent="no Kubernetes cluster answers",
        recognises=software.looks_like_nodes,
    ),
    Check(
        "ibstat",
        "RDMA adapters: state and rate",
        "network",
        "ibstat 2>&1 || ibstatus 2>&1",
        infiniband.judge_ibstat,
        "ibstat",
        recognises=infiniband.looks_like_ibstat,
    ),
    Check(
        "interfaces",
        "Network interfaces and MTU",
        "network",
        "ip -o link; ip -o -4 addr",
        fabric.judge_interfaces,
        "ip",
        recognises=lambda text: re.search(r"^\s*\d+: \S+: <[A-Z,_0-9-]*> mtu \d+", text, re.MULTILINE) is not None,
    ),
    Check(
        "topology",
        "NVLink groups, units, NIC per card",
        "accelerators",
        "nvidia-smi topo -m; nvidia-smi topo -p2p r 2>/dev/null; true",
        judge_topology,
        "nvidia-smi",
        timeout_s=60.0,
        recognises=topology.looks_like_topology,
    ),
    Check(
        "rank_memory",
        "Memory balance of running ranks",
        "accelerators",
        "nvidia-smi --query-gpu=index,memory.used --format=csv,nounits",
        software.judge_rank_memory,
        "nvidia-smi",
        timeout_s=60.0,
        active=True,
        recognises=software.looks_like_ranks,
    ),
    Check(
        "rocm",
        "XGMI groups and units",
        "accelerators",
        "rocm-smi --showproductname; rocm-smi --showtopo",
        judge_rocm,
        "rocm-smi",
        timeout_s=60.0,
        recognises=looks_like_rocm,
    ),
    Check(
        "rdma_counters",
        "Losses, symbol errors, link downs",
        "network",
        f"grep -H . {_IB}/hca_type {_IB}/fw_ver {_IB}/ports/*/state {_IB}/ports/*/phys_state {_IB}/ports/*/rate "
        f"{_IB}/ports/*/link_layer {_IB}/ports/*/counters/* {_IB}/ports/*/hw_counters/* 2>/dev/null; true",
        judge_counters,
        absent="no RDMA adapter",
        recognises=looks_like_counters,
    ),
    Check(
        "roce",
        "RoCE: flow control, DSCP, DCQCN",
        "network",
        _ROCE,
        fabric.judge_roce,
        "mlnx_qos",
        recognises=lambda text: "PFC configuration" in text or "/ecn/roce_" in text,
    ),
    Check(
        "ethernet",
        "Ethernet: rate, pauses, losses, lossless class",
        "network",
        _ETHTOOL,
        ethernet.judge_ethernet,
        "ethtool",
        timeout_s=60.0,
        absent="no Ethernet interface is up",
        recognises=ethernet.looks_like_ethtool,
    ),
    Check(
        "iperf",
        "TCP bandwidth between hosts",
        "network",
        "iperf3 -c {peer} -P 8 -t 10",
        throughput.judge_iperf,
        "iperf3",
        manual="iperf3 -s on one host, then iperf3 -c HOST -P 8 -t 10 on the other; judge the output with --from",
        recognises=throughput.looks_like_iperf,
    ),
    Check(
        "retransmissions",
        "TCP retransmissions",
        "network",
        "ss -tin state established",
        throughput.judge_retransmissions,
        "ss",
        absent="no TCP connection is open",
        recognises=throughput.looks_like_ss,
    ),
    Check(
        "adaptive_routing",
        "Adaptive routing",
        "network",
        _ROUTING,
        fabric.judge_adaptive_routing,
        "mlxreg",
        absent="no RDMA adapter",
        recognises=lambda text: "adaptive_routing_forced_en" in text,
    ),
    Check(
        "mtu_ping",
        "MTU end to end",
        "network",
        "ping -M do -s 8972 -c 3 -W 2 {peer}",
        fabric.judge_mtu_ping,
        "ping",
        needs=("peer",),
        recognises=lambda text: re.search(r"^PING .*\b8972\b|8972\(9000\)", text, re.MULTILINE) is not None,
    ),
    Check(
        "nccl_interface",
        "Interface and adapters for NCCL",
        "network",
        "env | grep -E '^(NCCL|GLOO)_'; cat /etc/nccl.conf \"$HOME/.nccl.conf\" 2>/dev/null; true",
        nccl_interface.judge_nccl_interface,
        recognises=nccl_interface.looks_like_nccl_log,
    ),
    Check(
        "nccl",
        "Collective bandwidth (nccl-tests)",
        "network",
        "all_reduce_perf -b 256M -e 8G -f 2 -g \"$(nvidia-smi -L | grep -c '^GPU')\"",
        nccl.judge_nccl,
        "all_reduce_perf",
        timeout_s=300.0,
        active=True,
        recognises=nccl.looks_like_nccl,
    ),
    Check(
        "link_latency",
        "Latency between cards",
        "accelerators",
        "p2pBandwidthLatencyTest",
        fabric.judge_link_latency,
        "p2pBandwidthLatencyTest",
        timeout_s=300.0,
        active=True,
        recognises=lambda text: "Latency" in text and "P2P=Enabled" in text,
    ),
    Check(
        "ib_latency",
        "Latency between hosts",
        "network",
        "ib_write_lat {peer}",
        fabric.judge_ib_latency,
        "ib_write_lat",
        manual="ib_write_lat on one host, then ib_write_lat HOST on the other; judge the output with --from",
        recognises=fabric.looks_like_ib_latency,
    ),
    Check(
        "governor",
        "Frequency governor and sleep states",
        "host",
        _files(
            "cpu0/cpuidle/state*/name cpu0/cpuidle/state*/latency cpu0/cpuidle/state*/disable "
            "cpu*/cpufreq/scaling_governor cpuidle/current_driver",
            "/sys/devices/system/cpu/",
        ),
        host.judge_governor,
        absent="the kernel offers no frequency or sleep setting",
        recognises=lambda text: "/cpufreq/scaling_governor:" in text or "/cpuidle/state" in text,
    ),
    Check(
        "clock",
        "Clocks in step",
        "host",
        "chronyc tracking 2>/dev/null; timedatectl 2>/dev/null; timedatectl timesync-status 2>/dev/null; true",
        host.judge_clock,
        absent="neither chrony nor systemd answers",
        recognises=host.looks_like_clock,
    ),
    Check(
        "numa_balancing",
        "NUMA balancing",
        "host",
        _files("kernel/numa_balancing vm/zone_reclaim_mode"),
        host.judge_numa_balancing,
        absent="this kernel has no NUMA settings",
        recognises=lambda text: "/kernel/numa_balancing:" in text,
    ),
    Check(
        "huge_pages",
        "Memory and huge pages",
        "host",
        "grep -H . /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null; cat /proc/meminfo",
        host.judge_huge_pages,
        recognises=lambda text: "HugePages_Total:" in text,
    ),
    Check(
        "iommu",
        "IOMMU and ACS",
        "host",
        _IOMMU,
        host.judge_iommu,
        recognises=lambda text: "ACSCtl:" in text or "iommu_groups=" in text,
    ),
    Check(
        "limits",
        "Limits of files and memory",
        "kernel",
        _LIMITS,
        kernel.judge_limits,
        recognises=lambda text: (
            "Max open files" in text or re.search(r"^open files\s+\(", text, re.MULTILINE) is not None
        ),
    ),
    Check(
        "connections",
        "Connection settings for the streams",
        "kernel",
        _files(_SYSCTLS),
        kernel.judge_connections,
        absent="/proc/sys/net is not readable",
        recognises=lambda text: re.search(r"^(?:/proc/sys/)?net[./](?:core|ipv4)[./]", text, re.MULTILINE) is not None,
    ),
    Check(
        "disk",
        "Disk for the weights",
        "storage",
        "df -PkT {weights}",
        storage.judge_disk,
        "df",
        needs=("weights",),
        recognises=lambda text: re.search(r"^Filesystem\s+Type\s+1024-blocks", text, re.MULTILINE) is not None,
    ),
    Check(
        "weights",
        "Weights complete",
        "storage",
        storage.WEIGHTS_COMMAND,
        storage.judge_weights,
        timeout_s=120.0,
        needs=("weights",),
        recognises=lambda text: re.match(r"\s*@(?:folder\s|file )", text) is not None,
    ),
    Check(
        "checksums",
        "Weights as published",
        "storage",
        _CHECKSUMS,
        storage.judge_checksums,
        "sha256sum",
        timeout_s=3600.0,
        active=True,
        needs=("weights",),
        absent="no SHA256SUMS beside the weights",
        recognises=lambda text: re.search(r"\.safetensors: (?:OK|FAILED)", text) is not None,
    ),
    Check(
        "read_speed",
        "Speed of reading the weights",
        "storage",
        _READ,
        storage.judge_read_speed,
        "dd",
        timeout_s=300.0,
        active=True,
        needs=("weights",),
        absent="no file of weights",
        recognises=lambda text: re.search(r"\d+ bytes .*copied", text) is not None,
    ),
)


def check_named(name: str, checks: Iterable[Check] = CHECKS) -> Check | None:
    return next((check for check in checks if check.id == name), None)


# A paste often holds more than one thing; the more particular shape is asked first.
_ORDER = (
    "weights", "checksums", "iperf", "retransmissions", "ethernet", "gpu_firmware", "rank_memory", "kubernetes",
    "software", "nccl", "ib_latency", "link_latency", "rocm", "topology", "ibstat", "rdma_counters", "gpu",
    "gpu_driver", "gpu_xid", "mtu_ping", "roce", "adaptive_routing", "interfaces", "clock", "limits", "connections",
    "governor", "numa_balancing", "huge_pages", "iommu", "disk", "read_speed", "nccl_interface", "cpu",
)  # fmt: skip


def recognise(text: str) -> Check | None:
    """The check whose output a text of unknown origin is; None where it is none of them."""
    found = (check for name in _ORDER if (check := check_named(name)) is not None)
    return next((check for check in found if check.recognises(text)), None)
