"""Public rows become measurements by the stated rules, and measurements are judged by others' errors."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fidelity import AXES, judge, misses, summary, targets
from benchmarks.fidelity_plots import Panel, panels
from benchmarks.public_rows import BEST_CASE, convert, is_public, main, table_text
from scripts.fit_speed import MEASUREMENTS, mark

from benchmarks import bench_fidelity, fidelity_page
from exaserve.perfmodel.estimation import Estimator, error_table
from exaserve.perfmodel.fitted import ERRORS
from exaserve.perfmodel.measured import FIT, Measurement, parse_measurements

ROOT = Path(__file__).parents[2]
DATA = MEASUREMENTS.parent

HEADER = (
    "id,source,figure_type,model,weights_precision,kv_precision,gpu,gpu_count,tp,pp,ep,dp,engine,engine_version,date,"
    "workload,concurrency_or_rate,input_tokens,output_tokens,num_prompts,output_tok_s_total,ttft_mean_ms,ttft_p50,"
    "tpot_mean_ms,tpot_p50,itl_mean,prefill_tok_s,decode_tok_s_per_stream,e2e_latency_ms,notes"
)
COLUMNS = next(csv.reader([HEADER]))
PLAIN = {
    "id": "a", "source": "a page id=a", "figure_type": "measured", "model": "Llama-3.1-8B", "weights_precision": "bf16",
    "gpu": "H100 SXM", "gpu_count": "1", "tp": "1", "pp": "1", "engine": "vLLM", "engine_version": "0.11.0",
    "workload": "fixed concurrency", "concurrency_or_rate": "8", "input_tokens": "1000", "output_tokens": "200",
    "tpot_mean_ms": "8.5", "ttft_mean_ms": "40",
}  # fmt: skip
INFERENCEX = {"source": "an export", "notes": "InferenceX export; speculative/MTP setting not recorded in this export"}


def raw(**values: str) -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "") | PLAIN | values


def one(**values: str) -> Measurement:
    found = convert([raw(**values)])
    assert len(found.measurements) == 1, found.set_aside
    return found.measurements[0]


def test_a_plain_row() -> None:
    m = one()
    assert (m.model, m.format, m.kv, m.card, m.tp, m.engine, m.version) == (
        "Llama-3.1-8B", "bf16", "bf16", "H100", 1, "vllm", "0.11.0",
    )  # fmt: skip
    assert (m.kind, m.lengths, m.clients, m.prompt, m.output) == ("clients", "even", 8.0, 1000.0, 200.0)
    assert (m.token_ms, m.first_ms, m.tokens_s, m.latency_ms, m.use) == (8.5, 40.0, -1.0, -1.0, FIT)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"weights_precision": "fp8"}, {"format": "fp8"}),
        ({"weights_precision": "fp8", "model": "Qwen3-32B"}, {"format": "fp8-block"}),
        ({"weights_precision": "fp8", "model": "Qwen3-32B", "source": "x perf-overview.md"}, {"format": "fp8"}),
        ({"weights_precision": "fp8", "model": "DeepSeek-V3.1-NVFP4"}, {"format": "nvfp4", "model": "DeepSeek-V3.1"}),
        ({"weights_precision": "Q4_K_M (GGUF)"}, {"format": "int4"}),
        ({"weights_precision": "int8-GPTQ"}, {"format": "gptq8"}),
        ({"engine_version": "", "date": "2024-11"}, {"version": "0.6"}),
        ({"engine_version": "nightly", "date": "20250731"}, {"version": "0.11"}),
        ({"engine_version": "", "date": "2026-02"}, {"version": ""}),
        ({"engine": "NIM (TensorRT-LLM)", "engine_version": "NIM 1.8", "date": "2025"}, {"engine": "trtllm"}),
        ({"engine": "ExLlamaV2", "engine_version": ""}, {"engine": "other"}),
        ({"kv_precision": "fp8"}, {"kv": "fp8"}),
        ({"model": "gpt-oss-120b", "weights_precision": "mxfp4", "gpu": "B200"}, {"kv": "fp8", "card": "B200"}),
        # The export's sizes: lengths, TP x EP, attention ranks, draft layers by release.
        (INFERENCEX, {"prompt": 900.0, "output": 180.0, "lengths": "spread"}),
        (INFERENCEX | {"notes": "InferenceX; random dataset with ratio 0"}, {"prompt": 1000.0, "lengths": "spread"}),
        (INFERENCEX | {"tp": "64", "ep": "8", "gpu_count": "64"}, {"tp": 8, "ep": 8, "dp": 1}),
        (
            INFERENCEX | {"model": "DeepSeek-R1", "weights_precision": "fp8", "tp": "1", "ep": "8", "dp": "64",
                          "gpu_count": "64", "engine": "TensorRT-LLM", "engine_version": "1.1.0rc2.post2"},
            {"tp": 1, "ep": 8, "dp": 8, "drafts": 1, "kv": "fp8", "version": "1.1.0"},
        ),
        (INFERENCEX | {"tp": "4", "ep": "16", "dp": "4", "gpu_count": "16"}, {"tp": 4, "ep": 4, "dp": 1}),
        ({"dp": "8", "gpu_count": "8"}, {"tp": 1, "ep": 1, "dp": 1}),
        (
            {"dp": "attention DP on (MoE recipe)", "tp": "8", "gpu_count": "8", "engine": "TensorRT-LLM"},
            {"tp": 1, "ep": 8, "dp": 8},
        ),
        # Kinds of load.
        (
            {"workload": "static batch (script)", "concurrency_or_rate": "batch 16", "e2e_latency_ms": "2500"},
            {"kind": "static", "clients": 16.0, "latency_ms": 2500.0},
        ),
        (
            {"workload": "static batch", "concurrency_or_rate": "batch 4", "output_tok_s_total": "400"},
            {"kind": "static", "latency_ms": 2000.0},
        ),
        (
            {"workload": "single stream (batch 1), 1 output token", "ttft_mean_ms": "30"},
            {"kind": "first", "clients": 1.0, "output": 1.0, "first_ms": 30.0},
        ),
        (
            {"workload": "single stream", "engine": "llama.cpp (llama-bench)", "input_tokens": "pp512",
             "prefill_tok_s": "1024", "gpu_count": "2", "output_tokens": ""},
            {"kind": "first", "prompt": 512.0, "first_ms": 500.0, "pp": 2},
        ),
        (
            {"workload": "single stream", "output_tokens": "tg256", "decode_tok_s_per_stream": "50"},
            {"kind": "clients", "prompt": 1.0, "output": 256.0, "token_ms": 20.0},
        ),
        (
            {"workload": "request rate", "concurrency_or_rate": "0.1 req/s (~single stream)"},
            {"kind": "clients", "clients": 1.0, "token_ms": 8.5, "first_ms": 40.0},
        ),
        (
            {"workload": "offline", "num_prompts": "500", "output_tok_s_total": "8000", "dp": "4", "gpu_count": "4"},
            {"kind": "offline", "clients": 500.0, "tokens_s": 2000.0, "dp": 1},
        ),
        (
            {"workload": "offline", "output_tok_s_total": "8000", "dp": "4", "ep": "4", "gpu_count": "4",
             "engine": "TensorRT-LLM", "notes": "attention data parallel + expert parallel"},
            {"kind": "offline", "tokens_s": 8000.0, "dp": 4, "ep": 4},
        ),
        (
            {"workload": "offline-like (request rate inf)", "output_tok_s_total": "900", "notes": "ShareGPT"},
            {"kind": "burst", "tokens_s": 900.0, "lengths": "spread"},
        ),
        # Set aside within the table.
        ({"notes": "--enforce-eager"}, {"use": "run without CUDA graphs"}),
        ({"figure_type": "vendor-tuned best case"}, {"use": BEST_CASE}),
        ({"ttft_mean_ms": "90000"}, {"use": "most clients wait for a place in the engine"}),
    ],
)  # fmt: skip
def test_rules(values: dict[str, str], expected: dict[str, object]) -> None:
    m = one(**values)
    assert {name: getattr(m, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": ""}, "model not stated"),
        ({"gpu": ""}, "card not stated"),
        ({"gpu": "8xH200 or 4xB200"}, "card not known: 8xH200 or 4xB200"),
        ({"weights_precision": "fp8 or nvfp4"}, "format not known: fp8 or nvfp4"),
        ({"tp": ""}, "ranks not stated"),
        ({"tp": "36", "gpu_count": "36"}, "several machines, or prompts computed apart"),
        ({"pp": "2"}, "layers spread over machines"),
        ({"notes": "SPECULATIVE DECODING"}, "a draft model of its own"),
        ({"concurrency_or_rate": "inf"}, "clients not stated"),
        ({"input_tokens": ""}, "lengths not stated"),
        ({"workload": "request rate (Poisson)"}, "load not modelled: request rate (Poisson)"),
    ],
)
def test_what_cannot_be_converted_is_counted(values: dict[str, str], reason: str) -> None:
    found = convert([raw(), raw(**values)])
    assert len(found.measurements) == 1
    assert dict(found.set_aside) == {reason: 1}


def test_repetitions_count_once_and_sources_have_keys() -> None:
    rows = [raw(id="1"), raw(id="2"), raw(source="another page id=3", tpot_mean_ms="9")]
    found = convert(rows)
    assert [m.source for m in found.measurements] == ["s1", "s2"]
    assert found.sources == {"a page": "s1", "another page": "s2"}
    again = convert([raw(source="new"), *rows], found.sources)
    assert again.sources == {"a page": "s1", "another page": "s2", "new": "s3"}
    assert dict(found.set_aside) == {"the same figures twice": 1}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS)
        out.writeheader()
        out.writerows(rows)
    return path


def test_files_of_both_forms_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [raw(concurrency_or_rate=str(n), tpot_mean_ms=str(7 + n / 10)) for n in range(1, 13)]
    rows += [
        raw(model="Llama-9-Nothing"),
        raw(tp=""),
        raw(figure_type="vendor-tuned best case", concurrency_or_rate="64"),
    ]
    path = write(tmp_path / "raw.csv", rows)
    monkeypatch.setattr("sys.argv", ["public_rows", str(path), "-o", str(tmp_path / "table.csv")])
    assert main() == 0
    assert "1 x ranks not stated" in capsys.readouterr().out
    results = []
    for name in ("raw.csv", "table.csv"):
        argv = ["--rows", str(tmp_path / name), "--output", str(tmp_path / "out.json")]
        assert bench_fidelity.main(argv) == 0
        out = capsys.readouterr().out
        assert "not judged: 1 x" in out
        assert "Llama-9-Nothing" in out
        assert f"{BEST_CASE}, token" in out
        results.append(out[out.index("target") :])
    assert results[0] == results[1]
    assert "median of card H100" in results[0]


def test_targets_leave_out_what_is_set_aside_and_misses_are_named() -> None:
    found = convert([raw(concurrency_or_rate=str(n)) for n in range(1, 13)]).measurements
    judged, reasons = judge([*found, replace(found[0], use=BEST_CASE, token_ms=0.1)])
    assert not reasons
    near = [replace(j, predicted=1.1 * j.measured, low=0.9, high=1.0) for j in judged if j.kind == "token"]
    far = replace(near[0], m=replace(near[0].m, card="L4"), predicted=2.0 * near[0].measured)
    lines = {t.name: t for t in targets([*near, far])}
    assert lines["time per token, fixed concurrency: within 15 %"].rows == 13
    assert lines["time per token, fixed concurrency: within 15 %"].result == "92.3%"
    assert lines["80 % intervals hold, time per token"].result == "92.3%"
    assert not lines["80 % intervals hold, time per token"].met
    assert not lines["time per token, median of card H100"].met
    assert "time per token, median of card L4" not in lines  # one row
    assert summary([*near, far], AXES["card"])[1][:4] == ["L4", "1", "1", "2.00"]
    assert [members for members, _ in misses([*near, far], 5)] == [[far]]


def test_plots_have_axes_bands_and_a_legend() -> None:
    svg = panels(
        [Panel("H100", "2 rows", {"fp8": [(1.0, 1.1), (90.0, 80.0)]})], "ms", "predicted", "format", ["bf16", "fp8"]
    )
    assert svg.count("<polygon") == 2
    assert "within 15 %" in svg
    assert ">fp8<" in svg
    assert ">bf16<" not in svg
    assert svg.count("h0") == 2


def test_the_kept_cross_validation_belongs_to_the_table_and_gives_the_shipped_errors() -> None:
    judged_rows = [m for m in parse_measurements(MEASUREMENTS.read_text("utf-8").splitlines()) if m.use == FIT]
    estimator = Estimator(judged_rows)
    errors = bench_fidelity.kept_errors(estimator)
    table = error_table(estimator, errors, np.ones(len(errors), dtype=bool))
    for kind, sets in ERRORS.items():
        for name, shipped in sets.items():
            made = table[kind][name]
            assert (made.rows, made.groups) == (shipped.rows, shipped.groups)
            assert made.factors == pytest.approx(shipped.factors, abs=0.011), (kind, name)


def test_rows_name_known_sources_and_pages_are_of_the_shipped_constants() -> None:
    rows = parse_measurements(MEASUREMENTS.read_text("utf-8").splitlines())
    with (DATA / "sources.csv").open(encoding="utf-8") as file:
        sources = {row["source"] for row in csv.DictReader(file)}
    assert {m.source for m in rows} == sources
    assert list(table_text(rows))[1:] == list(csv.reader(MEASUREMENTS.read_text("utf-8").splitlines()[1:]))
    page = (ROOT / "docs/results/fidelity.md").read_text("utf-8")
    assert mark().strip() in page, "python -m benchmarks.bench_fidelity --write docs"
    table = page[page.index("| target") : page.index("## All kinds")].strip()
    assert table in (ROOT / "docs/planning-accuracy.md").read_text("utf-8")
    for name in fidelity_page.PLOTS:
        assert (ROOT / f"docs/results/fidelity/{name}.svg").exists()
    assert is_public(COLUMNS)
