"""``bench --prometheus`` against a real Prometheus that scrapes our gateway, and an exporter with DCGM's names."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.ports import free_port
from tests.programs import program

from exaserve.bench.telemetry import query_prometheus
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
]
REPLICAS = 3
GPUS = b"""\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",modelName="NVIDIA A100"} 80
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1",modelName="NVIDIA A100"} 40
"""


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read())


def until(check, what: str, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError, ValueError, LookupError):
            if check():
                return
        assert time.monotonic() < end, f"{what} did not come within {limit_s:.0f} s"
        time.sleep(0.1)


@contextlib.contextmanager
def process(command: list[str], log) -> Iterator[None]:
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as child:
        try:
            yield
        finally:
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()


class Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(GPUS)))
        self.end_headers()
        self.wfile.write(GPUS)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def exporter() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def prometheus(folder, jobs: dict[str, int]) -> Iterator[str]:
    """Scrapes these ports once a second; gives its URL once it has read each of them."""
    port = free_port()
    text = "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
    for name, target in jobs.items():
        text += f"- job_name: {name}\n  static_configs:\n  - targets: ['127.0.0.1:{target}']\n"
    config = folder / "prometheus.yml"
    config.write_text(text)
    command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    url = f"http://127.0.0.1:{port}"

    def scraped() -> bool:
        targets = json.loads(read(f"{url}/api/v1/targets"))["data"]["activeTargets"]
        return len(targets) == len(jobs) and all(target["health"] == "up" for target in targets)

    with process(command, folder / "prometheus.log"):
        until(scraped, "the first scrape of every target")
        yield url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Port of a gateway over emulated replicas that have little room for KV, and its replicas' names."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = EmulatorConfig(
        port=0, replicas=REPLICAS, hardware="L4", served_model_names=("m",), output_tokens_mean=64.0
    )
    with EmulatorProcess(config) as emulator:
        port, admin = free_port(), free_port()
        command = [sys.executable, "-m", "exaserve", "gateway", "--port", str(port), "--admin-port", str(admin)]
        for url in emulator.urls:
            command += ["--replica", url]

        def ready() -> list[str]:
            rows = json.loads(read(f"http://127.0.0.1:{admin}/replicas"))["replicas"]
            return [row["id"] for row in rows] if all(row["eligible"] for row in rows) else []

        with process(command, folder / "gateway.log"):
            until(ready, "the gateway")
            yield port, sorted(ready())


def bench(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "exaserve", "bench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


LOAD = ("--workload", "B", "--rate", "1", "--duration", "12", "--warmup", "2", "--processes", "1", "--drain", "30")
BRIEF = ("--workload", "A", "--rate", "2", "--duration", "6", "--warmup", "1", "--processes", "1", "--drain", "20")


def test_kv_use_of_every_replica_and_accelerator_use_reach_the_verdict(cluster, tmp_path):
    port, replicas = cluster
    result = tmp_path / "run.json"
    with exporter() as gpus, prometheus(tmp_path, {"gateway": port, "dcgm": gpus}) as url:
        objectives = ("--slo", "kv_max<=0.95", "--slo", "kv_spread<0.5", "--slo", "gpu_use>=0.5")
        code, output = bench(
            f"http://127.0.0.1:{port}", *LOAD, *objectives, "--prometheus", url, "--json", result, "--html",
            tmp_path / "run.html",
        )  # fmt: skip
        assert code in (0, 1, 4), output
        doc = json.loads(result.read_text())
        telemetry = doc["telemetry"]
        assert telemetry["problems"] == []
        assert sorted(telemetry["kv"]) == replicas
        figures = telemetry["figures"]
        assert figures["gpu_use"] == pytest.approx(0.6)
        assert 0.1 < figures["kv_max"] <= 1.0, "prompts of 4,218 tokens in 32,064 tokens of room"
        largest = max(value for series in telemetry["kv"].values() for _, value in series)
        assert figures["kv_max"] == pytest.approx(largest, abs=1e-4)
        assert 0.0 < figures["kv_spread"] < 0.5
        for series in telemetry["kv"].values():
            instants = [at for at, _ in series]
            assert len(instants) >= 8
            assert min(instants) >= 2.0, "the warm-up is left out"
            assert max(instants) <= 12.0
        met = {gate["metric"]: gate["passed"] for gate in doc["verdict"]["objectives"]}
        assert met == {"kv_max": figures["kv_max"] <= 0.95, "kv_spread": True, "gpu_use": True}
        assert "KV cache use" in (tmp_path / "run.html").read_text()
        assert f"fullest KV cache {figures['kv_max']:.1%}" in output


def test_what_prometheus_does_not_know_is_missed_and_said(cluster, tmp_path):
    port, replicas = cluster
    result = tmp_path / "run.json"
    with prometheus(tmp_path, {"gateway": port}) as url:
        code, output = bench(
            f"http://127.0.0.1:{port}", *BRIEF, "--slo", "gpu_use>=0.1", "--prometheus", url, "--json", result
        )
        assert code in (1, 4)
        doc = json.loads(result.read_text())
        assert sorted(doc["telemetry"]["kv"]) == replicas
        assert "gpu_use" not in doc["telemetry"]["figures"]
        assert "Prometheus knows no accelerator use of this time" in output
        (gate,) = doc["verdict"]["objectives"]
        assert (gate["passed"], gate["value"]) == (False, None)


async def test_a_wrong_query_and_a_time_without_data_are_problems_not_errors(tmp_path):
    with exporter() as gpus, prometheus(tmp_path, {"dcgm": gpus}) as url:
        now = time.time()
        wrong = await query_prometheus(url, now - 10.0, now, "sum(")
        assert any("parse error" in problem for problem in wrong.problems)
        empty = await query_prometheus(url, now - 9_000.0, now - 8_000.0)
        assert not empty.kv
        assert not empty.gpu
        cards = await query_prometheus(url, now - 5.0, now, kv_query="max by (gpu) (DCGM_FI_DEV_GPU_UTIL) / 100")
        assert {name: max(value for _, value in series) for name, series in cards.kv.items()} == {"0": 0.8, "1": 0.4}
        own = await query_prometheus(url, now - 5.0, now, 'max(DCGM_FI_DEV_GPU_UTIL{gpu="0"}) / 100')
        assert own.gpu
        assert all(math.isclose(value, 0.8) for _, value in own.gpu)
    gone = await query_prometheus(url, now - 5.0, now)
    assert any("ConnectError" in problem for problem in gone.problems)
