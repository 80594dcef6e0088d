"""What can go wrong in a calibration: paths, shapes, interruptions, replicas that are not steady, gateways."""

from __future__ import annotations

import json
import random
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from tests.calibrate.command import exaserve

from exaserve.bench import Record
from exaserve.calibrate import Measurements, decode_point, fit_profile, not_steady
from exaserve.cli.main import main
from exaserve.config import load_profile
from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Calibration, calibration_document
from exaserve.perfmodel.fitting import DecodePoint, Estimate, PrefillPoint, fit_decode, fit_prefill

FIXED, PER_SEQ, PER_TOKEN = 0.01, 2e-4, 4e-8
COMPLETION = b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'


def slowed(sequences: int, context: int, phase_s: float, steps: int = 64) -> list[Record]:
    """A batch on a replica whose steps take three times as long for 0.4 s every 2.5 s."""
    records = []
    times, at, held = [], 0.0, float(sequences * context)
    for _ in range(steps):
        step = FIXED + PER_SEQ * sequences + PER_TOKEN * held
        at += step * (3.0 if (at + phase_s) % 2.5 < 0.4 else 1.0)
        held += sequences
        times.append(at)
    for index in range(sequences):
        record = Record(index, "run", 0.0, prompt_tokens=context, status=200, complete=True, tokens=steps)
        record.token_s = array("d", times)
        record.first_token_s, record.last_s = times[0], times[-1]
        records.append(record)
    return records


def test_a_replica_that_slows_now_and_then_does_not_pass_for_a_slower_one() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        points = [
            point
            for sequences in (1, 4, 16, 64)
            for context in (128, 2048, 8192)
            if (point := decode_point(slowed(sequences, context, rng.random() * 2.5))) is not None
        ]
        assert len(points) == 12
        fit = fit_decode(points)
        assert fit.estimates["decode_fixed_s"].value == pytest.approx(FIXED, rel=0.03)
        assert fit.estimates["decode_per_seq_s"].value == pytest.approx(PER_SEQ, rel=0.05)
        said = not_steady(Measurements(decode=points))
        assert (sum(point.unsteady > 0.05 for point in points) >= 3) == ("the replica was not steady" in said)


def test_a_steady_replica_is_not_suspected() -> None:
    points = [DecodePoint(n, 128.0 * n, 0.01, 64, unsteady=0.01) for n in (1, 4, 16)]
    assert not_steady(Measurements(decode=points)) == ""
    assert not_steady(Measurements()) == ""


def test_as_many_runs_as_constants_carry_none() -> None:
    fit = fit_decode([DecodePoint(1, 160.0, 0.0113, 64)])
    assert fit.estimates == {}
    refused = {refusal.what: refusal.why for refusal in fit.refused}
    assert "by as many runs as constants" in refused["decode_fixed_s"]
    once = fit_prefill([PrefillPoint(128, 0.01), PrefillPoint(512, 0.03), PrefillPoint(2048, 0.1)])
    assert "prefill_s_per_token" in once.estimates, "two constants of three runs: the quadratic part gives way"
    assert once.estimates["prefill_s_per_token"].error > 0.0
    profile, _ = fit_profile(Measurements(decode=[DecodePoint(1, 160.0, 0.0113, 64)]), "2026-01-01")
    assert profile.constants == {}


def test_measurements_come_back_as_they_were() -> None:
    measured = Measurements(
        [PrefillPoint(128, 0.01)],
        [DecodePoint(1, 160.0, 0.01, 64)],
        [(0.1, 200.0, 1.5)],
        {"max_model_len": 2048},
        ["one"],
        model="m",
    )
    again = Measurements.from_dict(json.loads(json.dumps(measured.as_dict())))
    assert repr(again) == repr(measured)
    with pytest.raises(ConfigError, match="no measurements"):
        Measurements.from_dict({})
    with pytest.raises(ConfigError, match="damaged"):
        Measurements.from_dict({**measured.as_dict(), "prefill": [{"x": 1}]})


@contextmanager
def replica(metrics: bytes = b"", header: str = "") -> Iterator[tuple[str, list[str]]]:
    """Answers a few completions, then no more; with the given metrics."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = b'{"data":[{"id":"m","max_model_len":4096}]}'
            self.send(200, metrics if self.path == "/metrics" else models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            if self.path == "/tokenize":
                self.send(404, b"{}")
            else:
                self.send(200, COMPLETION)

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            if header:
                self.send_header("x-exaserve-replica", header)
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


QUICK = ("--prompts", "64", "--batches", "1", "--contexts", "64", "--no-probes")


def test_what_cannot_end_well_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with replica() as (url, asked):
        for flags, message in (
            (("-o", str(tmp_path / "no/such/p.yaml")), "--output: "),
            (("--model-shape", "no-such-model"), "'no-such-model' is not in the table of models"),
            (("--fit", str(tmp_path / "x.json")), "name one replica's URL to measure, or --fit"),
        ):
            code, output = exaserve("calibrate", url, *QUICK, *flags)
            assert (code, message in output) == (2, True), output
        assert asked == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metrics", "header", "message"),
    [
        (b'exaserve_replica_inflight{replica="a"} 0\n', "", "is a gateway"),
        (b"", "node1/r0", "passes requests on to node1/r0"),
    ],
)
def test_a_gateway_is_noticed(tmp_path: Path, metrics: bytes, header: str, message: str) -> None:
    with replica(metrics, header) as (url, _asked):
        code, output = exaserve("calibrate", url, *QUICK, "-o", str(tmp_path / "p.yaml"))
    assert (code, message in output) == (2, True), output


def test_what_was_measured_is_kept_and_can_be_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    path = tmp_path / "p.yaml"

    def broken(*_: object, **__: object) -> None:
        raise OSError("the disk is gone")

    with replica() as (url, _asked), monkeypatch.context() as patch:
        patch.setattr("exaserve.cli.calibrate.fit_profile", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            main(["calibrate", url, *QUICK, "-o", str(path)])
    kept = tmp_path / "p.yaml.measured.json"
    assert json.loads(kept.read_text())["prefill"]
    assert "--fit fits it" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as end:
        main(["calibrate", "--fit", str(kept), "-o", str(path)])
    assert end.value.code == 1, "one length of prompts carries no rate"
    assert load_profile(path).model == "m"


def test_a_profile_that_only_the_gateway_can_use_or_of_another_model_is_remarked(tmp_path: Path, capsys) -> None:
    constants = {"prefill_tokens_per_s": Estimate(9_000.0, 10.0)}
    (tmp_path / "p.yaml").write_text(
        yaml.safe_dump(calibration_document(Calibration("Qwen3-8B", "vllm", "", constants)))
    )
    file = tmp_path / "cluster.yaml"
    text = "model: {model}\nhardware: H100\nnodes: 1\nprofile: p.yaml\n"

    def check(model: str) -> str:
        file.write_text(text.replace("{model}", model))
        try:
            main(["config", "check", str(file)])
        except SystemExit as end:
            assert end.code in (0, None)  # noqa: PT017 -- main always ends by it
        shown = capsys.readouterr()
        return " ".join((shown.out + shown.err).split())

    other = check("Llama-3.1-8B-Instruct")
    assert "p.yaml is of Qwen3-8B, not of Llama-3.1-8B-Instruct" in other
    assert "p.yaml has no decode_fixed_s" in other
    assert "is of Qwen3-8B" not in check("Qwen/Qwen3-8B")
