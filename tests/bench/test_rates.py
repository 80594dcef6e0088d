"""``exaserve bench`` against servers that answer at once: which requests count, over which time, and the exit code."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from exaserve.cli.bench_options import ArrivalsChoice, BenchOptions
from exaserve.cli.bench_setup import prepare

SSE = (
    b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 4
    + b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
)
EVENTS = (200, "text/event-stream", SSE)
METRICS = b"""\
exaserve_replica_kv_use_ratio{replica="n/r0"} 0.25
exaserve_accelerator_use_ratio{node="n",device="0"} 0.9
exaserve_accelerator_use_ratio{node="n",device="1"} 0.7
exaserve_discovery_failures_total{source="consul"} 3
"""


@contextmanager
def server(status: int = 200, kind: str = "text/event-stream", body: bytes = SSE) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives every request this answer; and the bodies it got."""
    asked: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["content-length"])))
            self.send(status, kind, body)

        def do_GET(self) -> None:
            self.send(200, "text/plain", METRICS)

        def send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", asked
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def bench(url: str, *arguments: object, codes: tuple[int, ...] = (0, 4)) -> str:
    command = [sys.executable, "-m", "exaserve", "bench", url, "--model", "m", "--tokenizer", "estimate"]
    command += ["--processes", "0", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode in codes, (done.returncode, output)
    return output


def result(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize(
    "load", [("--concurrency", 4, "--requests", 40), ("--rate", 400, "--requests", 40, "--arrivals", "constant")]
)
def test_a_number_of_requests_is_measured_to_the_end_of_the_last_answer(tmp_path, load):
    with server() as (url, asked):
        output = bench(url, "--workload", "A", *load, "--json", tmp_path / "a.json", "--records", tmp_path / "r.jsonl")
    assert len(asked) == 40
    summary = result(tmp_path / "a.json")["summary"]
    assert (summary["all"]["requests"], summary["all"]["ok"], summary["warmup_s"]) == (40, 40, 0.0)
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    span = max(record["last_s"] for record in records)
    assert summary["duration_s"] == pytest.approx(span, abs=1e-5)
    assert summary["requests_per_s"] == pytest.approx(40 / span, rel=1e-3)
    assert summary["tokens_per_s"] == pytest.approx(160 / span, rel=1e-3)
    assert "e+0" not in output
    assert "measured 60 s" not in output


@pytest.mark.parametrize("arrivals", list(ArrivalsChoice))
def test_more_requests_than_a_minute_holds_are_all_planned(arrivals):
    wanted = 500 if arrivals in (ArrivalsChoice.RAMP, ArrivalsChoice.DAY) else 6500
    options = BenchOptions(
        targets=["http://127.0.0.1:9"], requests_max=wanted, model="m", tokenizer="estimate", arrivals=arrivals,
        end_rate_per_s=30.0,
    )  # fmt: skip
    plan = prepare(options).plan()
    assert len(plan) == wanted
    assert plan.duration_s == pytest.approx(plan.requests[-1].scheduled_s, abs=1e-5)


def test_a_warm_up_that_is_asked_for_is_left_out(tmp_path):
    with server() as (url, _asked):
        bench(
            url, "--workload", "A", "--rate", 100, "--arrivals", "constant", "--requests", 40,
            "--warmup", 0.2, "--json", tmp_path / "a.json",
        )  # fmt: skip
    summary = result(tmp_path / "a.json")["summary"]
    assert (summary["warmup_s"], summary["all"]["requests"]) == (0.2, 20)
    assert summary["offered_per_s"] == pytest.approx(100.0, rel=0.06)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((307, "text/plain", b""), "status 307 (5)"),
        ((401, "application/json", b'{"error":"no"}'), "status 401 (5)"),
        ((200, "application/json", b""), "no usable answer (5)"),
        ((200, "application/json", b'{"error":{"message":"gone"}}'), "no usable answer (5)"),
        ((200, "text/html", b"<html>Welcome</html>"), "no usable answer (5)"),
        ((200, "text/event-stream", SSE[:80]), "no [DONE] (5)"),
    ],
)
def test_a_run_without_one_good_answer_is_no_success(tmp_path, answer, text):
    with server(*answer) as (url, _asked):
        output = bench(url, "--workload", "A", "--rate", 50, "--requests", 5, "--json", tmp_path / "a.json", codes=(1,))
    assert text in output
    assert "not one good answer" in output
    document = result(tmp_path / "a.json")
    assert document["verdict"]["passed"] is False
    assert document["summary"]["all"]["ok"] == 0
    assert document["summary"]["requests_per_s"] == 0.0


def test_per_token_of_answers_in_one_piece_is_not_judged():
    body = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":32}}'
    with server(200, "application/json", body) as (url, _asked):
        output = bench(
            url, "--workload", "A", "--rate", 50, "--requests", 4, "--no-stream", "--slo", "p99_tpot_ms<=5", codes=(1,)
        )
    assert "not judged: 4 answers came in one piece" in output


def test_output_tokens_are_honoured_for_mixes_and_recorded_lengths_for_traces(tmp_path):
    with server() as (url, asked):
        bench(url, "--workload", "A", "--rate", 50, "--requests", 3, "--output-tokens", 32)
        assert {json.loads(body)["max_tokens"] for body in asked} == {32}
        asked.clear()
        said = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "four" * 10}]
        unanswered = [{"from": "human", "value": "and you"}]
        trace = tmp_path / "sharegpt.json"
        trace.write_text(
            json.dumps([{"id": "1", "conversations": said}, {"id": "2", "conversations": unanswered}], indent=1)
        )
        bench(url, "--trace", trace, "--rate", 50, "--requests", 2, "--output-tokens", 7)
    sent = {json.loads(body)["messages"][0]["content"]: json.loads(body)["max_tokens"] for body in asked}
    assert sent == {"hello there": 10, "and you": 7}


def test_the_reference_objectives_of_machines_are_measured_or_said_not_to_be(tmp_path):
    options = ("--workload", "A", "--rate", 50, "--requests", 20, "--slo", "reference", "--json", tmp_path / "a.json")
    with server() as (url, _asked):
        output = bench(url, *options)
        assert "4 objectives were not measured: this run does not prove them" in output
        assert "not measured: give --metrics of a gateway with node agents" in output
        verdict = result(tmp_path / "a.json")["verdict"]
        assert verdict["passed"] is None
        by_metric = {each["metric"]: each for each in verdict["objectives"]}
        assert set(by_metric) == {
            "p99_ttft_ms", "gpu_use", "out_of_memory", "nccl_failures", "discovery_failures"
        }  # fmt: skip
        assert by_metric["gpu_use"]["passed"] is None
        bench(url, *options, "--metrics", "auto")
    by_metric = {each["metric"]: each for each in result(tmp_path / "a.json")["verdict"]["objectives"]}
    assert (by_metric["gpu_use"]["passed"], by_metric["gpu_use"]["value"]) == (True, pytest.approx(0.8))
    assert (by_metric["discovery_failures"]["passed"], by_metric["discovery_failures"]["value"]) == (True, 0.0)
    assert by_metric["nccl_failures"]["passed"] is None


def test_rates_asked_and_drawn_are_told_and_figures_come_as_csv(tmp_path):
    with server() as (url, _asked):
        output = bench(
            url, "--workload", "mix", "--rate", 50, "--duration", 0.5, "--html", tmp_path / "a.html",
            "--csv", tmp_path / "a.csv", "--records", tmp_path / "r.csv",
        )  # fmt: skip
    said = re.search(r"50 requests/s \([\d.]+ requests/s drawn\)", output)
    assert said is not None, output
    assert said[0] in (tmp_path / "a.html").read_text()
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["scenario"] for row in rows][-1] == "all"
    assert rows[-1]["ok"] == rows[-1]["requests"]
    assert float(rows[-1]["ttft_p99_s"]) >= float(rows[-1]["ttft_p50_s"]) > 0.0
    requests = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert len(requests) == int(rows[-1]["requests"])
    assert {row["verdict"] for row in requests} == {"ok"}


def test_runs_without_a_common_scenario_are_said_to_have_none(tmp_path):
    with server() as (url, _asked):
        for name in ("A", "B"):
            path = tmp_path / f"{name}.json"
            bench(url, "--workload", name, "--rate", 50, "--requests", 12, "--name", f"run {name}", "--json", path)
    command = [sys.executable, "-m", "exaserve", "bench", "compare", str(tmp_path / "A.json"), str(tmp_path / "B.json")]
    done = subprocess.run(
        [*command, "--html", str(tmp_path / "c.html")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    output = " ".join(done.stdout.split())
    assert "the runs have no scenario in common, so no latency is compared: run A has A and run B has B" in output
    text = (tmp_path / "c.html").read_text()
    assert "A, run A" in text
    assert "B, run B" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--requests", 0), "--requests must be 1 or more, not 0"),
        (("--output-tokens", 0), "--output-tokens must be 1 or more"),
        (("--workload", "A", "--slo", "X: p99_ttft_ms<=1"), "'X' is no scenario of this run: it has A"),
        (("--warmup", 100), "must leave something of the 60 s"),
        (("--csv", "/nowhere/x.csv"), "--csv: /nowhere/x.csv cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(arguments, message):
    with server() as (url, asked):
        assert message in bench(url, *arguments, codes=(2,))
    assert asked == []
