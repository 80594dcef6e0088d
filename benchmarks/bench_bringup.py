"""How bring-up grows with the cluster: null engines on 16 to 512 nodes, from ``exaserve up`` to the first completion.

    python -m benchmarks.bench_bringup [--nodes 16 64 256 512] [--check]

Every node has an agent of its own (own connection, state, sequence of batches) and 12 engines with an address each; all
agents and null engines share one process, the gateway is another. An engine is ready when its agent has had a real
1-token completion from it over HTTP; a replica counts when the gateway may place requests on it. Null engines answer at
once, so what is measured is everything around engines. One run with one node says what processes cost that do nothing:
that is subtracted from CPU per node.

The published system of the same name needs 171 s, 470 s and 552 s (null engines) or 1,857 s (real ones) at 64, 128 and
256 nodes, and fails at 512: every proxy resolves every replica.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import ROOT, cpu_s, description, free_port, raise_file_limit, resident_mb

REPLICAS = 12
LIMITS_S = {64: 5.0, 256: 15.0}
SPREAD_MAX = 0.2
"""Messages and CPU per node may differ by this share between 16 and 256 nodes."""


class Up:
    """A running ``exaserve up`` and what its processes are."""

    def __init__(self, nodes: int, directory: Path) -> None:
        self.port, self.admin = free_port(), free_port()
        config = directory / f"up{nodes}.yaml"
        config.write_text(
            f"model: null-model\nengine: 'null'\nnodes: {nodes}\nnum_replicas_per_node: {REPLICAS}\nbase_port: 18001\n"
            f"gateway: {{port: {self.port}, admin_port: {self.admin}, drain: 0s}}\n"
            f"agents: {{port: {free_port()}, drain: 0s}}\n"
        )
        self.log = (directory / f"up{nodes}.log").open("wb")
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exaserve", "up", str(config)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        self.said_ready_s: float | None = None
        threading.Thread(target=self._read, daemon=True).start()
        self.client = httpx.Client(timeout=5.0, trust_env=False)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"Ready:"):
                self.said_ready_s = time.monotonic() - self.began

    def nodes(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.client.get(f"http://127.0.0.1:{self.admin}/nodes").json()
        except (httpx.HTTPError, ValueError):
            return {"ready": 0}
        return found

    def completes(self) -> bool:
        body = {"model": "null-model", "prompt": "x", "max_tokens": 1}
        with contextlib.suppress(httpx.HTTPError):
            return self.client.post(f"http://127.0.0.1:{self.port}/v1/completions", json=body).status_code == 200
        return False

    def children(self) -> dict[str, int]:
        """Process ids of the agents' process and the gateway."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                for name in ("agent", "gateway"):
                    if name.encode() in words:
                        found[name] = int(child)
        return found

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.client.close()


def bring_up(nodes: int, window_s: float, directory: Path) -> dict[str, Any]:
    up = Up(nodes, directory)
    total = nodes * REPLICAS
    first_s = all_s = None
    try:
        while all_s is None or first_s is None:
            if up.process.poll() is not None or time.monotonic() - up.began > 120.0:
                raise RuntimeError(f"{nodes} nodes did not come up:\n{Path(up.log.name).read_text()[-2000:]}")
            if first_s is None and up.completes():
                first_s = time.monotonic() - up.began
            if all_s is None and up.nodes()["ready"] >= total:
                all_s = time.monotonic() - up.began
            time.sleep(0.05)
        pids = up.children()
        at_ready = {name: cpu_s(pid) for name, pid in pids.items()}
        time.sleep(2.0)
        before, began, counts = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic(), up.nodes()
        pictures = counts["pictures"]
        time.sleep(window_s)
        took_s = time.monotonic() - began
        steady = {name: (cpu_s(pid) - before[name]) / took_s for name, pid in pids.items()}
        after = up.nodes()
        return {
            "nodes": nodes,
            "replicas": total,
            "first_completion_s": first_s,
            "all_ready_s": all_s,
            "up_said_ready_s": up.said_ready_s,
            "bring_up_cpu_s": at_ready,
            "pictures_per_node": pictures / nodes,
            "steady_cores": steady,
            "batches_per_node_s": (after["batches"] - counts["batches"]) / took_s / nodes,
            "bytes_per_node_s": (after["bytes"] - counts["bytes"]) / took_s / nodes,
            "memory_mb": {name: resident_mb(pid) for name, pid in pids.items()},
        }
    finally:
        up.stop()


def per_node(row: dict[str, Any], nothing: dict[str, Any]) -> None:
    """CPU per node, less what idle processes cost."""
    rest = max(1, row["nodes"] - nothing["nodes"])
    for name in ("bring_up_cpu_s", "steady_cores"):
        spent = sum(row[name].values()) - sum(nothing[name].values())
        row[f"{name}_per_node"] = spent / rest


def spread(rows: list[dict[str, Any]], key: str) -> float:
    """Largest share by which a figure differs from its mean over the rows of 16 to 256 nodes."""
    values = [row[key] for row in rows if 16 <= row["nodes"] <= 256]
    mean = sum(values) / len(values) if values else 0.0
    return max(abs(value - mean) for value in values) / mean if mean else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64, 256, 512])
    parser.add_argument("--window-s", type=float, default=10.0, help="steady state that is measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "bringup.json")
    options = parser.parse_args(argv)
    raise_file_limit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    rows: list[dict[str, Any]] = []
    print(
        f"{'nodes':>5} {'replicas':>8} {'first answer s':>14} {'all ready s':>11} {'limit':>6}   "
        f"{'messages/node':>13} {'batches/node/s':>14} {'bring-up CPU ms/node':>20} {'steady CPU ms/s/node':>20}"
        "  gateway cores"
    )
    with tempfile.TemporaryDirectory() as directory:
        nothing = bring_up(1, options.window_s, Path(directory))
        for nodes in options.nodes:
            row = bring_up(nodes, options.window_s, Path(directory))
            per_node(row, nothing)
            rows.append(row)
            limit = LIMITS_S.get(nodes)
            print(
                f"{nodes:5} {row['replicas']:8,} {row['first_completion_s']:14.2f} {row['all_ready_s']:11.2f} "
                f"{limit or '':>6}   {row['pictures_per_node']:13.2f} {row['batches_per_node_s']:14.2f} "
                f"{row['bring_up_cpu_s_per_node'] * 1e3:20.1f} {row['steady_cores_per_node'] * 1e3:20.2f}  "
                f"{row['steady_cores']['gateway']:.3f}"
            )
    machine = description()
    spreads = {
        key: spread(rows, key)
        for key in (
            "pictures_per_node", "batches_per_node_s", "bytes_per_node_s", "bring_up_cpu_s_per_node",
            "steady_cores_per_node",
        )
    }  # fmt: skip
    print("largest deviation from the mean, 16 to 256 nodes: " + ", ".join(f"{k} {v:.0%}" for k, v in spreads.items()))
    if float(str(machine["load_average"])) > 3.0:
        print(f"load average {machine['load_average']:.1f}: this machine does other work; times are upper bounds")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine, "baseline": nothing, "rows": rows, "spreads": spreads}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    late = [row["nodes"] for row in rows if row["all_ready_s"] > LIMITS_S.get(row["nodes"], 1e9)]
    good = not late and all(value <= SPREAD_MAX for value in spreads.values())
    print("targets met" if good else "a target is missed")
    return 0 if good or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
