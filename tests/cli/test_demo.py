from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exaserve.cli.capacity import replica_capacity_per_s
from exaserve.cli.demo_load import MIX
from exaserve.cli.machine import CpuMeter
from exaserve.cli.up import built_in_cluster
from exaserve.config import parse_cluster, without_limits


def run_demo(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exaserve", "demo", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_the_built_in_cluster_is_the_one_that_is_promised() -> None:
    cluster = built_in_cluster()
    assert (len(cluster.nodes), len(cluster.replicas())) == (4, 48)
    assert cluster.scheduling.policy == "entropy"
    assert (cluster.scheduling.queue_depth_max, cluster.scheduling.kv_watermark) == (32, 0.85)


def test_capacity_is_the_same_on_every_machine_and_follows_the_speed() -> None:
    pool = built_in_cluster().pools[0]
    once = replica_capacity_per_s(pool, MIX, seed=3)
    assert once == replica_capacity_per_s(pool, MIX, seed=3) > 0.1
    fast = parse_cluster("model: Llama-3.1-8B\nhardware: A100-80\nprecision: bf16\nemulator: {speed: 2}").pools[0]
    assert replica_capacity_per_s(fast, MIX, seed=3) == pytest.approx(2 * once, rel=0.01)


def test_blind_means_no_limits() -> None:
    scheduling = without_limits(built_in_cluster()).scheduling
    assert scheduling.queue_depth_max > 10**6
    assert scheduling.kv_watermark > 100


def test_cpu_meter_sees_work() -> None:
    import os

    meter = CpuMeter({"me": [os.getpid()], "gone": [2**22 - 1]})
    total = 0
    for i in range(3_000_000):
        total += i
    use = meter.use()
    assert use.processes_s["me"] > 0.0
    assert use.processes_s["gone"] == 0.0
    assert 0.0 <= use.machine <= 1.0


def test_show_config_prints_a_cluster_file() -> None:
    done = run_demo("--show-config")
    assert done.returncode == 0
    assert parse_cluster(done.stdout) == built_in_cluster()


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--policies", "best"), "--policies: 'best' is not one of"),
        (("--policies", ","), "--policies: name at least one"),
        (("--json", "/nowhere/at/all.json"), "cannot be written"),
    ],
)
def test_wrong_flags_exit_2_before_anything_starts(flags: tuple[str, ...], part: str) -> None:
    done = run_demo(*flags)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("up")
def test_two_policies_end_in_a_table_and_json(tmp_path: Path) -> None:
    """A light load for a few seconds: the machinery, not the figures."""
    file = tmp_path / "demo.json"
    done = run_demo("--seconds", "3", "--rate", "15", "--json", str(file))
    assert done.returncode == 0, done.stderr
    for word in ("round_robin", "entropy", "short, 327 tokens", "very long, 12,842 tokens", "spread of P99", "errors"):
        assert word in done.stdout
    data = json.loads(file.read_text())
    for policy in ("round_robin", "entropy"):
        summary = data["policies"][policy]["summary"]["all"]
        assert summary["requests"] == summary["ok"] > 10
