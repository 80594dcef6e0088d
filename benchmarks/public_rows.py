"""Makes the table of measurements from files of public figures, as their sources print them.

    python -m benchmarks.public_rows RAW.csv [RAW.csv ...] -o measurements.csv [--sources sources.csv]

A raw file is CSV, one published configuration a row, blank where the source says nothing. The columns that count:
source, figure_type, model, weights_precision, kv_precision, gpu, gpu_count, tp, pp, ep, dp, engine, engine_version,
date, workload, concurrency_or_rate, input_tokens, output_tokens, num_prompts, output_tok_s_total, ttft_mean_ms,
ttft_p50, tpot_mean_ms, tpot_p50, itl_mean, prefill_tok_s, decode_tok_s_per_stream, e2e_latency_ms, notes.

What a source leaves open is settled here by rules, each beside its reason, and always the same way. A row that cannot
be brought into the table's form is counted by reason; one that can but says nothing of an engine as people run it stays
in the table and carries the reason in ``use``.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel.hardware_names import find_hardware
from exaserve.perfmodel.measured import FIT, Measurement

__all__ = ["BEST_CASE", "Converted", "convert", "is_public", "sources_text", "table_text"]

Row = Mapping[str, str]

BEST_CASE = "vendor best case"
"""``use`` of figures that a vendor tuned for the figure; judged apart."""

RANKS_MAX = 8
"""Cards of one machine. More ranks than that are several machines, or a tensor-parallel size times something."""

ENGINES = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("tensorrt-llm", "trtllm"),
    ("nim", "trtllm"),
    ("llama.cpp", "llamacpp"),
)
"""How names of engines begin, and what the table calls them; anything else is "other"."""

FORMATS = (
    (r"bf16|fp16|", "bf16"),  # where none is stated, sources say that 16 bit is likely
    (r"fp8", "fp8"),
    (r"nvfp4.*", "nvfp4"),
    (r"mxfp4.*", "mxfp4"),
    (r".*int8.*gptq.*|.*gptq.*int8.*", "gptq8"),
    (r"int8.*", "int8"),
    (r".*awq.*", "awq"),
    (r".*gptq.*", "gptq"),
    (r"int4.*|q4_k.*|exl2 4.*", "int4"),
)
"""Patterns of ``weights_precision`` (in lower case) and the format of each; the first that fits whole."""

BLOCK_SCALED = re.compile("DeepSeek|MiniMax|GLM|Qwen3")
"""Models whose published fp8 checkpoints carry a scale for each block of 128 x 128."""

OWN_CHECKPOINTS = "perf-overview"
"""Sources that quantise models themselves, with one scale for each tensor; DeepSeek's are published in fp8."""

UNDATED_RELEASES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vllm": (("2025-03", "0.6"), ("2025-06", "0.8"), ("2026", "0.11")),
    "trtllm": (("2025-06", "0.10"), ("2026", "1.1")),
    "sglang": (("2025-12", "0.5.5"),),
}
"""Where no version is stated: up to which date an engine is taken for which release. Later, for its newest."""

DRAFTING_RELEASES = ("1.1.0rc2.post2", "1.2.0rc6.post3")
"""TensorRT-LLM releases whose runs of DeepSeek-R1 in InferenceX are too fast without its draft layer, whatever the
configuration; the export does not record it."""


QUEUE_ANSWERS = 2.0
"""Whole answers' time that first tokens wait from which most clients are outside the engine, not in its batch."""


class _Unusable(ValueError):
    """A row that the table has no place for; says why."""


@dataclass(slots=True)
class Converted:
    """Attributes:
    sources: texts, each with the key that rows name it by. set_aside: rows that are not in the table, by reason.
    """

    measurements: list[Measurement] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    set_aside: Counter[str] = field(default_factory=Counter)


def is_public(columns: Iterable[str]) -> bool:
    """Whether columns are those of a raw file, and not of the table."""
    return {"weights_precision", "workload", "gpu"} <= set(columns)


def convert(rows: Iterable[Row], sources: Mapping[str, str] | None = None) -> Converted:
    """Rows of raw files as measurements, in the table's order.

    Args:
        sources: keys that texts have already; others get the numbers after them.
    """
    out = Converted(sources=dict(sources or {}))
    seen: set[tuple[object, ...]] = set()
    for row in rows:
        try:
            found = list(_measurements(row))
        except _Unusable as why:
            out.set_aside[str(why)] += 1
            continue
        source = out.sources.setdefault(
            re.sub(r" (id=.*|QwQ-32B-AWQ .*\.json)", "", row["source"]), f"s{len(out.sources) + 1}"
        )
        for m in found:
            key = _figures(m)
            if key in seen:
                out.set_aside["the same figures twice"] += 1
                continue
            seen.add(key)
            out.measurements.append(replace(m, source=source))
    out.measurements.sort(key=_order)
    return out


def _figures(m: Measurement) -> tuple[object, ...]:
    """What makes a repetition. The model is no part: exports have runs of DeepSeek-R1 a second time as DeepSeek-V3."""
    return (m.format, m.card, m.tp, m.pp, m.dp, m.engine, m.kind, m.clients, m.prompt, m.output,
            m.token_ms, m.first_ms, m.tokens_s, m.latency_ms)  # fmt: skip


def _order(m: Measurement) -> tuple[object, ...]:
    return (m.model, m.card, m.format, m.tp, m.engine, m.version, m.kind, m.prompt, m.output, max(0.0, m.clients))


def _number(text: str | None) -> float:
    """A figure; -1 where there is none."""
    try:
        return float(text or "")
    except ValueError:
        return -1.0


def _first_of(row: Row, *names: str) -> float:
    return next((value for name in names if (value := _number(row.get(name))) > 0.0), -1.0)


def _is_inferencex(row: Row) -> bool:
    return "InferenceX" in row["notes"]


def _card(row: Row) -> str:
    if not row["gpu"]:
        raise _Unusable("card not stated")
    try:
        return find_hardware(row["gpu"]).name
    except ConfigError:
        raise _Unusable(f"card not known: {row['gpu']}") from None


def _format(row: Row) -> str:
    model, text = row["model"], row["weights_precision"].lower()
    if model.endswith("NVFP4"):
        return "nvfp4"
    found = next((name for pattern, name in FORMATS if re.fullmatch(pattern, text)), None)
    if found is None:
        raise _Unusable(f"format not known: {row['weights_precision']}")
    own = OWN_CHECKPOINTS in row["source"] and not model.startswith("DeepSeek")
    return "fp8-block" if found == "fp8" and BLOCK_SCALED.search(model) and not own else found


def _engine(row: Row) -> str:
    name = row["engine"].lower()
    return next((engine for start, engine in ENGINES if name.startswith(start)), "other")


def _version(row: Row, engine: str) -> str:
    text = row["engine_version"].removeprefix("~")
    if text == "gpt-oss-dev":  # an image between 1.0 and 1.1
        return "1.0"
    stated = re.match(r"\d+(\.\d+)*", text)
    if stated:
        return stated[0]
    date = re.sub(r"^(\d{4})(\d\d)\d\d$", r"\1-\2", row["date"])
    return next((release for until, release in UNDATED_RELEASES.get(engine, ()) if "" < date < until), "")


def _ranks(row: Row, engine: str) -> tuple[int, int, int]:
    """Tensor-parallel ranks, ranks that experts are whole on, and ranks with attention of their own."""
    tp, ep, dp = _number(row["tp"]), max(1.0, _number(row["ep"])), max(1.0, _number(row["dp"]))
    cards = _number(row["gpu_count"])
    cards = cards if cards > 0.0 else tp
    if tp < 1.0:
        raise _Unusable("ranks not stated")
    attention = row["dp"].startswith("attention") or "attention data parallel" in row["notes"]
    if attention and cards > 1.0:
        dp, ep, tp = cards, cards, 1.0
    # One export writes the product of both sizes as the first of them.
    if tp > RANKS_MAX and ep > 1.0 and tp % ep == 0.0:
        tp /= ep
    if tp > RANKS_MAX:
        raise _Unusable("several machines, or prompts computed apart")
    if dp > RANKS_MAX and ep > 1.0:
        dp /= ep
    if row["model"].startswith("gpt-oss") and engine == "trtllm" and dp > 1.0:
        ep = dp
    if engine == "vllm" and _is_inferencex(row) and dp > 1.0:
        dp, ep = 1.0, min(ep, tp)
    # Elsewhere data parallelism is whole replicas side by side, of which the figures are one's.
    if dp > 1.0 and not (engine == "trtllm" and (_is_inferencex(row) or attention)):
        dp = 1.0
    if ep > 1.0:
        ep = max(ep, tp * dp) if dp > 1.0 else min(ep, tp) if tp > 1.0 else ep
    if _number(row["pp"]) > 1.0 and engine != "llamacpp":
        raise _Unusable("layers spread over machines")
    return int(tp), int(ep), int(dp)


def _kv(row: Row, engine: str, fmt: str, card: str) -> str:
    """InferenceX has TensorRT-LLM keep an 8-bit cache of quantised models; gpt-oss on Blackwell has one everywhere."""
    stated = row["kv_precision"].startswith("fp8")
    quantised = engine == "trtllm" and _is_inferencex(row) and fmt != "bf16"
    return "fp8" if stated or quantised or (row["model"].startswith("gpt-oss") and card in ("B200", "B300")) else "bf16"


def _drafts(row: Row, engine: str, dp: int) -> int:
    if "SPECULATIVE" in row["notes"]:
        raise _Unusable("a draft model of its own")
    drafting = (
        engine == "trtllm"
        and _is_inferencex(row)
        and row["model"] == "DeepSeek-R1"
        and "not recorded" in row["notes"]
        and row["engine_version"] in DRAFTING_RELEASES
        and "cfg" not in row["id"]
    )
    return 0 if not drafting else 1 if dp > 1 else 3


def _use(row: Row, m: Measurement) -> str:
    """:data:`FIT`, or why the figure says nothing of an engine as people run it."""
    if m.card == "A100-80" and "pp anomaly" in row["notes"]:
        return "contradicts the same card by PCIe (ten times slower)"
    if m.kind == "burst" and m.model == "gpt-oss-20b" and m.card == "A100-80" and m.engine == "sglang":
        return "run without a kernel for the format (a twentieth of vLLM's rate on the same page)"
    if m.kind == "clients" and m.first_ms > QUEUE_ANSWERS * m.token_ms * m.output > 0.0:
        return "most clients wait for a place in the engine"
    old_vllm = m.engine == "vllm" and row["engine_version"] == "0.12.0"
    if re.search(r"enforce[-_]eager|no CUDA graphs", row["notes"]):
        return "run without CUDA graphs"
    if old_vllm and m.model == "Qwen3-235B-A22B":
        return "run without tuned expert kernels"
    # Prompts repeat in these runs: some pass faster than the card's matrix rate allows.
    if (old_vllm and m.model == "Llama-3.1-8B" and m.format == "fp8") or (
        _number(row["input_tokens"]) == 15000.0 and m.clients > 400.0
    ):
        return "prefix cache"
    if m.card == "GB200" and m.model == "Qwen3-32B":
        return "contradicts itself (two clients five times slower than one)"
    return BEST_CASE if "best case" in row["figure_type"] else FIT


def _measurements(row: Row) -> Iterator[Measurement]:
    if not row["model"]:
        raise _Unusable("model not stated")
    card, fmt, engine = _card(row), _format(row), _engine(row)
    tp, ep, dp = _ranks(row, engine)
    cards = max(_number(row["gpu_count"]), 1.0)
    batch = re.fullmatch(r"(?:batch )?(\d+)", row["concurrency_or_rate"])
    base = Measurement(
        model=row["model"].removesuffix("-NVFP4"), format=fmt, kv=_kv(row, engine, fmt, card), card=card,
        tp=tp, pp=int(cards) if engine == "llamacpp" else 1, ep=ep, dp=dp, drafts=_drafts(row, engine, dp),
        engine=engine, version=_version(row, engine), kind="", lengths="",
        clients=float(batch[1]) if batch else -1.0,
        prompt=_number(row["input_tokens"]), output=_number(row["output_tokens"]),
        token_ms=-1.0, first_ms=-1.0, tokens_s=-1.0, latency_ms=-1.0, use=FIT, source="",
    )  # fmt: skip
    load = row["workload"]
    if load.startswith("fixed concurrency"):
        found = [_closed_loop(row, base)]
    elif "~single stream" in row["concurrency_or_rate"]:
        # So few requests that they seldom meet.
        found = [_closed_loop(row, replace(base, clients=1.0))]
    elif load.startswith("single stream"):
        found = list(_alone(row, base, with_decode=load == "single stream"))
    elif load.startswith(("static batch", "offline static batch")):
        found = [_batch(row, base)]
    elif load.startswith("offline"):
        found = [_offline(row, base, replicas=max(1.0, cards / (tp * dp)))]
    else:
        raise _Unusable(f"load not modelled: {load or 'not stated'}")
    yield from (replace(m, use=_use(row, m)) for m in found)


def _closed_loop(row: Row, m: Measurement) -> Measurement:
    token = _first_of(row, "tpot_mean_ms", "tpot_p50", "itl_mean")
    first = _first_of(row, "ttft_mean_ms", "ttft_p50")
    if _number(row["decode_tok_s_per_stream"]) > 0.0 and token < 0.0:
        raise _Unusable("tokens/s alone, of which the first token's time is no part that is stated")
    if m.clients < 0.0:
        raise _Unusable("clients not stated")
    if m.prompt <= 0.0 or m.output <= 0.0:
        raise _Unusable("lengths not stated")
    if "DeepSeek-V3_1.md" in row["source"] and m.clients == 1.0 and m.output == 422.0:
        first = -1.0  # the first request of a server, with its warm-up
    # Lengths there are uniform between 0.8 and 1.0 of the nominal ones, unless the actual means are given.
    share = 0.9 if _is_inferencex(row) and "ratio 0" not in row["notes"] else 1.0
    differ = _is_inferencex(row) or "ratio 0" in row["notes"] or "ShareGPT" in row["notes"]
    return replace(
        m, kind="clients", lengths="spread" if differ else "even", prompt=m.prompt * share, output=m.output * share,
        token_ms=token, first_ms=first,
    )  # fmt: skip


def _alone(row: Row, m: Measurement, *, with_decode: bool) -> Iterator[Measurement]:
    """One request in the engine: up to its first token, its decoding, or (llama-bench: pp, tg) each by itself."""
    prompts, tokens = re.match(r"pp(\d+)", row["input_tokens"]), re.match(r"tg(\d+)", row["output_tokens"])
    if not with_decode:
        yield replace(m, kind="first", clients=1.0, output=1.0, first_ms=_first_of(row, "ttft_mean_ms", "ttft_p50"))
        return
    prefill, decode = _number(row["prefill_tok_s"]), _number(row["decode_tok_s_per_stream"])
    if prefill > 0.0 and prompts:
        n = float(prompts[1])
        yield replace(m, kind="first", clients=1.0, prompt=n, output=1.0, first_ms=1e3 * n / prefill)
    if decode > 0.0:
        yield _decode(m, 1.0, 1e3 / decode, -1.0 if tokens else m.prompt, float(tokens[1]) if tokens else m.output)


def _decode(m: Measurement, clients: float, token_ms: float, prompt: float, output: float) -> Measurement:
    """Where lengths are not stated contexts were short: a prompt of one token, and 128 more."""
    prompt, output = prompt if prompt > 0.0 else 1.0, output if output > 0.0 else 128.0
    return replace(
        m, kind="clients", lengths="even", clients=clients, prompt=prompt, output=output, token_ms=token_ms
    )  # fmt: skip


def _batch(row: Row, m: Measurement) -> Measurement:
    tokens_s, decode = _number(row["output_tok_s_total"]), _number(row["decode_tok_s_per_stream"])
    latency = _number(row["e2e_latency_ms"])
    whole = m.clients > 0.0 and m.prompt > 0.0 and m.output > 0.0
    if whole and (latency > 0.0 or tokens_s > 0.0):
        return replace(m, kind="static", latency_ms=latency if latency > 0.0 else 1e3 * m.clients * m.output / tokens_s)
    if decode > 0.0 and m.clients > 0.0:
        return _decode(m, m.clients, 1e3 / decode, m.prompt, m.output)
    raise _Unusable("a batch without its size, lengths or duration")


def _offline(row: Row, m: Measurement, replicas: float) -> Measurement:
    tokens_s = _number(row["output_tok_s_total"])
    if tokens_s <= 0.0 or m.prompt <= 0.0 or m.output <= 0.0:
        raise _Unusable("throughput of output tokens or lengths not stated")
    kind = "burst" if row["workload"].startswith("offline-like") else "offline"  # through a server, or without one
    return replace(
        m, kind=kind, lengths="spread" if "ShareGPT" in row["notes"] else "even",
        clients=_number(row["num_prompts"]), tokens_s=tokens_s / replicas,
    )  # fmt: skip


def _text(value: object) -> str:
    return str(value) if not isinstance(value, float) else "" if value < 0.0 else f"{value:.6g}"


def table_text(measurements: Iterable[Measurement]) -> Iterator[list[str]]:
    """Lines of measurements.csv."""
    names = [each.name for each in fields(Measurement)]
    yield names
    for m in measurements:
        yield [_text(getattr(m, name)) for name in names]


def sources_text(sources: Mapping[str, str]) -> Iterator[list[str]]:
    """Lines of sources.csv."""
    yield ["source", "text"]
    for text, key in sources.items():
        yield [key, text]


def _write(path: Path, lines: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the table, as measurements.csv")
    parser.add_argument(
        "--sources",
        type=Path,
        help="what its keys of sources stand for (those in it stay); beside the table if not said",
    )
    options = parser.parse_args()
    rows: list[Row] = []
    for path in options.raw:
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    named = options.sources or options.output.with_name("sources.csv")
    known = {}
    if named.exists():
        with named.open(newline="") as file:
            known = {line["text"]: line["source"] for line in csv.DictReader(file)}
    found = convert(rows, known)
    _write(options.output, table_text(found.measurements))
    _write(named, sources_text(found.sources))
    print(f"{len(rows)} rows: {len(found.measurements)} measurements from {len(found.sources)} sources")
    for name, counts in (
        ("in the table, not fitted to", Counter(m.use for m in found.measurements if m.use != FIT)),
        ("not in the table", found.set_aside),
    ):
        for why, count in counts.most_common():
            print(f"{name}: {count} x {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
