"""The alert rules of the operating page, run by promtool over made-up series: they fire, they end, gaps are no end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
RULES = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
STEP_S = 15
"""Between two samples of the series below; one minute has four."""

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

UP = ('up{job="exaserve",instance="g1"}', "1x200")
ELIGIBLE, KNOWN = 'exaserve_replicas_eligible{instance="g1"}', 'exaserve_replicas{instance="g1"}'
OK = 'exaserve_requests_total{outcome="ok"}'
FAILED = 'exaserve_requests_total{outcome="replica_failed"}'

Series = tuple[str, str]


CASES: list[tuple[str, list[Series], dict[str, int]]] = [
    ("GatewayDown", [(UP[0], "1x8 0x20 1x100")], {"2m": 0, "4m": 1, "15m": 0}),
    ("NoGateway", [], {"30s": 0, "2m": 1}),
    ("NoGateway", [UP], {"2m": 1}),
    ("NoGateway", [UP, (ELIGIBLE, "3x200")], {"2m": 0, "20m": 0}),
    ("NoGateway", [UP, (ELIGIBLE, "3x20 stale _x20 3x100")], {"4m": 0, "8m": 1, "20m": 0}),
    ("NoReplicaForRequests", [(ELIGIBLE, "3x8 0x20 3x100")], {"2m": 0, "4m": 1, "15m": 0}),
    ("NoReplicaForRequests", [(ELIGIBLE, "0x20 stale 0x40")], {"4m": 1, "5m": 1, "6m": 1}),
    ("NoReplicaForRequests", [(ELIGIBLE, "0x20 _x8 0x40")], {"4m": 1, "6m": 1, "8m": 1}),
    ("HalfOfReplicasOut", [(ELIGIBLE, "10x8 4x20 10x100"), (KNOWN, "10x200")], {"2m": 0, "5m": 1, "15m": 0}),
    ("HalfOfReplicasOut", [(ELIGIBLE, "5x200"), (KNOWN, "10x200")], {"20m": 0}),
    ("RequestsFail", [(OK, "0+15x100"), (FAILED, "0+1x60 60x80")], {"3m": 0, "15m": 1, "25m": 0}),
    ("RequestsFail", [(OK, "0+15x200")], {"20m": 0}),
    ("RequestsRefused", [('exaserve_refusals_total{why="queue_full"}', "0+15x60 900x80")], {"15m": 1, "25m": 0}),
    ("ReplicaOut", [('exaserve_replica_eligible{replica="r"}', "1x8 0x40 1x40")], {"2m": 0, "9m": 1, "15m": 0}),
    ("ReplicaFlaps", [('exaserve_replica_ejections{replica="r"}', "4x8 5x8 0x8")], {"1m": 0, "3m": 1, "5m": 0}),
    ("RequestsWait", [("exaserve_queue_depth", "0x8 7x40 0x40")], {"2m": 0, "9m": 1, "15m": 0}),
    (
        "SchedulingBlind",
        [('exaserve_telemetry_signal_missing{replica="r",signal="kv_use"}', "1x60 0x40")],
        {"5m": 0, "12m": 1, "20m": 0},
    ),
    (
        "ReportsOld",
        [
            ('exaserve_replica_report_age_seconds{replica="r"}', "1x8 60x40 1x40"),
            ('exaserve_replica_eligible{replica="r"}', "1x200"),
        ],
        {"2m": 0, "6m": 1, "15m": 0},
    ),
    (
        "KvCacheFull",
        [('exaserve_replica_kv_use_ratio{replica="r"}', "0.9x8 0.91x40 0.5x40")],
        {"2m": 0, "9m": 1, "15m": 0},
    ),
    ("DiscoveryDown", [('exaserve_discovery_up{source="s"}', "1x8 0x40 1x40")], {"2m": 0, "9m": 1, "15m": 0}),
    ("DiscoveryDoubted", [('exaserve_discovery_held{source="s"}', "0x8 3x40 0x40")], {"2m": 0, "9m": 1, "15m": 0}),
    (
        "PeersAway",
        [("exaserve_peers_connected", "2x8 1x40 2x40"), ("exaserve_peers_expected", "2x100")],
        {"2m": 0, "9m": 1, "15m": 0},
    ),
    (
        "GatewayBusy",
        [('process_cpu_seconds_total{job="exaserve"}', "0+14x60 840x80")],
        {"3m": 0, "14m": 1, "25m": 0},
    ),
]


def fires(tmp_path: Path, alert: str, series: list[Series], expected: dict[str, int]) -> None:
    """Asserts how often ``alert`` fires at the times of ``expected``. Values as promtool writes them (``0x8 1x40``)."""
    (tmp_path / "rules.yml").write_text(RULES)
    count = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [
                    {"expr": count, "eval_time": time, "exp_samples": [{"labels": "{}", "value": value}]}
                    for time, value in expected.items()
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))  # JSON is YAML
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("alert", "series", "expected"), CASES)
def test_fires_and_ends(tmp_path: Path, alert: str, series: list[Series], expected: dict[str, int]) -> None:
    fires(tmp_path, alert, series, expected)


def test_every_rule_has_a_test() -> None:
    named = {rule["alert"] for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]}
    assert named == {alert for alert, _, _ in CASES}
