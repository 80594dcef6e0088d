"""How strong ``exaserve bench`` is: requests per second and streams at once, against a stub that costs next to nothing.

``python -m benchmarks.bench_client`` runs both parts, prints JSON and writes it to ``benchmarks/results/client.json``;
``--check`` exits with 1 where a target is missed. Stub and client share this machine, so it shows a lower bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.stub import MODEL

REQUESTS_PER_S = 10_000.0
STREAMS = 5_000
STREAM_EVENTS, STREAM_GAP_MS = 25, 1_000


def bench(url: str, *arguments: object) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "out.json"
        records = Path(directory) / "records.jsonl"
        command = [sys.executable, "-m", "exaserve", "bench", url, "--model", MODEL, "--tokenizer", "estimate"]
        command += ["--workload", "A", "--json", str(path), "--records", str(records), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 4):
            raise SystemExit(done.stdout + done.stderr)
        doc: dict[str, Any] = json.loads(path.read_text())
        spans = []
        with records.open() as file:
            for line in file:
                record = json.loads(line)
                if record["verdict"] == "ok":
                    spans.append((record["sent_s"], record["last_s"]))
        doc["at_once"] = at_once(spans)
        return doc


def at_once(spans: list[tuple[float, float]]) -> int:
    """The most that were open at one time."""
    most = now = 0
    for _, step in sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]):
        now += step
        most = max(most, now)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results") / "client.json")
    options = parser.parse_args()
    results = {"plain": plain(options), "streams": streams(options)}
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))
    met = results["plain"]["answered_per_s"] >= REQUESTS_PER_S and results["streams"]["at_once"] >= STREAMS
    raise SystemExit(1 if options.check and not met else 0)


def _stub(*flags: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stub", "--ports", "1", *flags], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{json.loads(process.stdout.readline())[0]}"


def _figures(doc: dict[str, Any]) -> dict[str, Any]:
    summary, client = doc["summary"], doc["client"]
    every = summary["all"]
    return {
        "due_per_s": round(summary["offered_per_s"], 1),
        "answered_per_s": round(summary["requests_per_s"], 1),
        "ok": every["ok"],
        "failed": every["failed"] + every["cut"],
        "at_once": doc["at_once"],
        "ttft_p50_ms": round(1e3 * every["ttft"]["p50"], 2),
        "ttft_p99_ms": round(1e3 * every["ttft"]["p99"], 2),
        "core_per_process": round(client["cpu_share"], 3),
        "own_delay_p99_ms": round(1e3 * client["lag_p99_s"], 2),
        "load_average": os.getloadavg()[0],
    }


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """Whole answers at a rate a little above the target, whatever the server does."""
    stub, url = _stub()
    try:
        rate = REQUESTS_PER_S * 1.08
        flags = ("--rate", rate, "--duration", options.seconds, "--no-stream", "--processes", options.processes)
        return _figures(bench(url, *flags, "--arrivals", "constant"))
    finally:
        stub.terminate()
        stub.wait()


def streams(options: argparse.Namespace) -> dict[str, Any]:
    """So many streams that the target is open at once for several seconds."""
    stub, url = _stub("--events", str(STREAM_EVENTS), "--gap-ms", str(STREAM_GAP_MS))
    try:
        rate = STREAMS * 1.1 / (STREAM_EVENTS * STREAM_GAP_MS / 1000.0 - 3.0)
        flags = ("--rate", rate, "--duration", 30, "--processes", options.processes, "--arrivals", "constant")
        return _figures(bench(url, *flags))
    finally:
        stub.terminate()
        stub.wait()


if __name__ == "__main__":
    main()
