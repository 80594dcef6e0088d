"""``exaserve bench`` as users call it, against emulated replicas."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from exaserve.bench.knee import KneeSearch
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess
from exaserve.report import number

FAST = ["--workload", "A", "--rate", "20", "--duration", "2", "--processes", "1", "--drain", "20"]


@pytest.fixture(scope="module")
def emulator():
    with EmulatorProcess(EmulatorConfig(port=0, replicas=2, hardware="H100", speed=10.0)) as process:
        yield process


def bench(*arguments: object, code: int | tuple[int, ...] = (0, 4), timeout_s: float = 90.0) -> str:
    command = [sys.executable, "-m", "exaserve", "bench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), output
    assert "Traceback" not in output
    return output


class Page(HTMLParser):
    """Counts what stands in a page, and complains of what makes it depend on others."""

    void = frozenset({"meta", "path", "rect", "br", "i"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        assert tag not in ("script", "link", "img", "iframe")
        assert all(not name.startswith("on") and name not in ("src", "href") for name, _ in attrs)
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag


def page(path) -> tuple[Page, str]:
    text = path.read_text()
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    assert "http://www" not in text
    return parser, text


@pytest.mark.slow
def test_a_run_with_everything_written(emulator, tmp_path):
    files = [tmp_path / name for name in ("a.json", "a.jsonl", "a.html")]
    output = bench(
        *emulator.urls,
        *FAST,
        *("--json", files[0], "--records", files[1], "--html", files[2], "--name", "first", "--cost-per-hour", "36"),
        *("--slo", "A: p99_ttft_ms<=60000", "--slo", "error_share<=0", "--metrics", "auto", "--sessions", "4"),
        *("--cache-hit", "0.5"),
    )
    assert "Time to first token" in output
    assert "met" in output
    doc = json.loads(files[0].read_text())
    assert doc["verdict"]["passed"] in (True, None)
    assert doc["cost_per_1000"] == pytest.approx(10.0 / doc["summary"]["requests_per_s"], rel=1e-6)
    assert len(doc["telemetry"]["kv"]) == 2
    assert doc["summary"]["all"]["cached_tokens"] > 0
    records = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert len(records) == doc["summary"]["all"]["requests"] > 20
    first = records[0]
    order = ("scheduled_s", "connected_s", "sent_s", "first_byte_s", "first_token_s", "last_s")
    assert [first[name] for name in order] == sorted(first[name] for name in order)
    assert len(first["token_s"]) == first["tokens"] == first["output_tokens"]
    assert first["prompt_seen"] == 327
    parser, text = page(files[2])
    assert parser.tags["svg"] >= 4
    assert "A: p99_ttft_ms" in text


@pytest.mark.slow
def test_a_missed_objective_is_exit_code_1_and_an_unknown_one_is_2(emulator, tmp_path):
    objectives = tmp_path / "slo.yaml"
    objectives.write_text("A: {p99_ttft_ms: 0.001}\n")
    assert "missed" in bench(emulator.urls[0], *FAST, "--slo", objectives, code=(1, 4))
    assert "unknown" in bench(emulator.urls[0], *FAST, "--slo", "speed<3", code=2)


@pytest.mark.slow
def test_two_runs_are_compared_and_drawn(emulator, tmp_path):
    paths = []
    for name, seed in (("one", 1), ("two", 2)):
        paths.append(tmp_path / f"{name}.json")
        bench(emulator.urls[0], *FAST, "--seed", seed, "--json", paths[-1])
    output = bench("compare", *paths, "--json", tmp_path / "c.json", "--html", tmp_path / "c.html", code=0)
    assert "two against one" in output, "runs of one endpoint are told apart by their files"
    assert "the runs differ in seed: 1 and 2" in output
    assert "answered requests/s" in output, "a server that answers less may well be faster"
    found = json.loads((tmp_path / "c.json").read_text())
    assert "seed: 1 and 2" in found["unlike"]
    differences = found["differences"]
    assert {d["metric"] for d in differences} >= {"p50_ttft", "p99_ttft", "p50_latency"}
    parser, text = page(tmp_path / "c.html")
    assert parser.tags["svg"] >= 3
    assert "one" in text
    assert "is no result" in bench("compare", paths[0], tmp_path / "c.json", code=2)
    assert "two result files" in bench("compare", paths[0], code=2)


@pytest.mark.slow
def test_traces_closed_loops_and_standard_output(emulator, tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"timestamp": i * 100, "input_length": 600 + i, "output_length": 3, "hash_ids": [0, i + 1]})
            + "\n"
            for i in range(12)
        )
    )
    command = [sys.executable, "-m", "exaserve", "bench", emulator.urls[0], "--trace", str(trace), "--json", "-"]
    done = subprocess.run([*command, "--processes", "1"], capture_output=True, text=True, timeout=90, check=False)
    doc = json.loads(done.stdout)
    assert doc["summary"]["all"]["ok"] == 12
    assert doc["summary"]["all"]["cached_tokens"] >= 11 * 500
    output = bench(
        emulator.urls[0], "--concurrency", 2, "--requests", 9, "--workload", "A", "--processes", 2, "--no-stream"
    )
    assert "2 at once" in output


@pytest.mark.slow
def test_the_knee_is_looked_for(emulator, tmp_path):
    output = bench(
        emulator.urls[0], "--profile", "--step", 1, "--rate", 200, "--workload", "A", "--slo", "p99_ttft_ms<=300",
        "--processes", 1, "--drain", 5, "--json", tmp_path / "k.json", code=(0, 1, 4), timeout_s=110.0,
    )  # fmt: skip
    steps = json.loads((tmp_path / "k.json").read_text())["steps"]
    search = KneeSearch(200.0)
    for step, rate in zip(steps, search.rates(), strict=False):
        assert step["rate_per_s"] == rate, "the next rate follows from which ones held"
        assert step["held"] == (step["why"] == "")
        search.tell(rate, held=step["held"])
    held = [step["rate_per_s"] for step in steps if step["held"]]
    broke = [step["rate_per_s"] for step in steps if not step["held"]]
    assert broke, "it ends above a rate that does not hold"
    assert max(held, default=0.0) < min(broke)
    assert (f"knee: holds {number(max(held))} requests/s" if held else "no rate held, not even the lowest") in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "above 0"),
        (["--rate", "3", "--concurrency", "2"], "exclude each other"),
        (["--workload", "Z"], "is not one of"),
        (["--arrivals", "ramp", "--model", "m", "--tokenizer", "estimate"], "--end-rate"),
        (["--trace", "no.csv", "--model", "m"], "no.csv"),
        (["--extra", "[1]", "--model", "m", "--tokenizer", "estimate"], "JSON object"),
        (["--header", "x", "--model", "m"], "name: value"),
        (["--json", "/nowhere/x.json"], "cannot be written"),
        (["--profile", "--concurrency", "2"], "open loop"),
        ([], "is the endpoint up"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(arguments, message):
    assert message in bench("http://127.0.0.1:9", *arguments, code=2)


def test_an_endpoint_without_a_scheme_is_reached_over_plain_http():
    assert "http://127.0.0.1:9/v1/models: " in bench("127.0.0.1:9", code=2)
