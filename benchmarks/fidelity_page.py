"""docs/results/fidelity.md, its plots, and the table of targets in docs/planning-accuracy.md, from judged figures."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.fidelity import AXES, GROUP_ROWS_MIN, Judged, Target, misses, summary
from benchmarks.fidelity_plots import Panel, panels
from exaserve.perfmodel.measured import FIT

__all__ = ["KINDS", "PLOTS", "WITH_TARGET", "cause", "miss_name", "write"]

KINDS: Mapping[str, str] = {
    "token": "time per token, fixed concurrency",
    "first": "first token, single stream",
    "offline": "output throughput, offline",
    "static": "duration of a static batch",
    "among few": "first token, two to four clients",
}

PLOTS = ("token-by-card", "token-by-format", "first-by-engine", "offline-by-card")

WITH_TARGET = ("token", "first", "offline")

ENGINES: Mapping[str, str] = {
    "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "llamacpp": "llama.cpp", "other": "others"
}  # fmt: skip

FORMATS: Mapping[str, str] = {
    "fp16": "bf16", "awq": "4-bit integers", "gptq": "4-bit integers", "int4": "4-bit integers",
    "gptq8": "8-bit integers", "int8": "8-bit integers",
}  # fmt: skip
"""Formats that share a colour."""

MISSES = 12
"""Of each kind that has a target, how many of the worst configurations the page names."""

CAUSES: Mapping[str, str] = {
    r"token\|DeepSeek-(V3|R1)\|B300\|4\|.*sglang": (
        "prompts take six times longer than on B200 (3.2 against 0.6 s for four of 7,400 tokens) and hold up decoding: "
        "a kernel not yet tuned for the card, by its looks"
    ),
    r"token\|DeepSeek-R1\|B200\|4\|fp8-block": (
        "weights take 168 of a card's 180 GB: the cache is nearly empty, and requests wait within their answers"
    ),
    r"token\|Qwen2.5-72B\|A100-80\|1\|gptq": (
        "one card takes three times as long as two with the same kernels, which reading weights does not explain"
    ),
    r"token\|MiniMax-M2.7\|MI300X\|8": (
        "1,024 and 4,096 clients, with Triton's attention kernels: no other row of this engine has as many"
    ),
    r"token\|DeepSeek-V3\.1\|G?B200\|8\|nvfp4": (
        "one row: hundreds of clients whose first tokens come in 0.4 s; attention may be spread by requests"
    ),
    r"token\|Llama-3.3-70B\|H100\|2\|fp8\|trtllm": (
        "the same time per token from 100 clients on, and a third more than TensorRT-LLM takes elsewhere with one: "
        "a packaged engine with a profile and batch limit of its own"
    ),
}
"""Patterns of ``kind|model|card|TP|format|engine``, and why the model is off there; the first that fits holds. Only
what the figures themselves say."""

SEQUENCES_USUAL = 256
"""Sequences that engines hold at once by default, about."""

CROWDED = 0.5
"""Where the cache holds less than half of the clients, figures judge the room for it as much as speed."""

BEGIN, END = "<!-- made by make bench-fidelity: begin -->", "<!-- end -->"


def miss_name(members: Sequence[Judged]) -> str:
    j = members[0]
    return f"{KINDS[j.kind].split(',')[0]}: {j.m.model}, {j.m.card}, TP {j.m.tp}, {j.m.format}, {ENGINES[j.m.engine]}"


def cause(members: Sequence[Judged]) -> str:
    """Why a configuration is off, as far as that is known."""
    j = members[0]
    text = next((text for pattern, text in CAUSES.items() if re.match(pattern, f"{j.kind}|{j.m.group}")), None)
    if text is not None:
        return text
    crowded = statistics.fmean(j.room < CROWDED * min(j.m.clients, SEQUENCES_USUAL) for j in members)
    room = f"{min(j.room for j in members):,.0f}"
    return (
        f"the cache holds as few as {room} requests by the model: its size decides"
        if crowded > CROWDED
        else "not known"
    )


TEXTS = ("wanted", "result", "cause")
"""Columns after the first that are no figures."""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" + "".join("|---" if name in TEXTS else "|---:" for name in head[1:]) + "|"
    yield from (f"| {' | '.join(line)} |" for line in lines)
    yield ""


def target_table(verdicts: Sequence[Target]) -> list[str]:
    lines = [(t.name, t.target, f"{t.rows:,}", f"{t.result}, {'met' if t.met else '**missed**'}") for t in verdicts]
    return list(_table(("target", "wanted", "rows", "result"), lines))


COLUMNS = ("rows", "configurations", "median", "within 15 %", "within 30 %", "80 % interval held")


def page(judged: Sequence[Judged], apart: Sequence[Judged], verdicts: Sequence[Target], mark: str) -> str:
    fit = [j for j in judged if j.m.use == FIT]
    out = [
        "# Predicted speed against public measurements, figure by figure",
        "",
        f"<!-- {mark} -->",
        "Made by `python -m benchmarks.bench_fidelity --write docs`. [planning-accuracy](../planning-accuracy.md) says",
        "how the model is fitted, how it is judged and what to make of it. Every ratio is predicted / measured, by",
        "constants that were fitted without the configuration's whole group: a time above 1 is predicted too slow, a",
        "throughput above 1 too fast. *80 % interval held*: rows that lie within what other groups' errors give them.",
        "",
        *target_table(verdicts),
        "## All kinds of figures",
        *_table(("figure", *COLUMNS), [
            [KINDS[kind], *summary([j for j in fit if j.kind == kind], lambda _: "")[0][1:]]
            for kind in KINDS if any(j.kind == kind for j in fit)
        ]),
        "The first token among a few clients mostly waits for the others' prompts, as all begin together; static",
        "batches are what engines' older scripts time. Neither has a target.",
        "",
        "## Time per token",
        "![by card](fidelity/token-by-card.svg)",
        "",
        "![by format](fidelity/token-by-format.svg)",
        "",
    ]  # fmt: skip
    token = [j for j in fit if j.kind == "token"]
    for axis, key in AXES.items():
        out += _table((axis, *COLUMNS), summary(token, key))
    out += ["## First token of a single stream", "![by engine](fidelity/first-by-engine.svg)", ""]
    out += _table(("card", *COLUMNS), summary([j for j in fit if j.kind == "first"], AXES["card"]))
    out += ["## Offline throughput", "![by card](fidelity/offline-by-card.svg)", ""]
    offline = [j for j in fit if j.kind == "offline"]
    for axis in ("card", "engine", "model"):
        out += _table((axis, *COLUMNS), summary(offline, AXES[axis]))
    out += ["## The worst misses", ""]
    for kind in WITH_TARGET:
        out += _table((KINDS[kind], "rows", "median", "from", "to", "cause"), [
            [
                miss_name(members).split(": ")[1], str(len(members)), f"{median:.2f}",
                f"{min(j.ratio for j in members):.2f}", f"{max(j.ratio for j in members):.2f}",
                cause(members),
            ]
            for members, median in misses([j for j in fit if j.kind == kind], MISSES)
        ])  # fmt: skip
    out += ["## Figures that the model is not fitted to", ""]
    out += ["They stay in the table with the reason. Here by the shipped constants, for completeness:", ""]
    out += _table(("reason, figure", *COLUMNS), summary(apart, lambda j: f"{j.m.use}: {KINDS[j.kind]}"))
    return "\n".join(out).rstrip() + "\n"


def _note(members: Sequence[Judged]) -> str:
    near = statistics.fmean(j.within(0.15) for j in members)
    return f"{len(members):,} rows, median {statistics.median(j.ratio for j in members):.2f}, {near:.0%} within 15 %"


def _panels(
    judged: Sequence[Judged],
    by: Callable[[Judged], str],
    colour: Callable[[Judged], str],
    scale: float,
    others: str,
) -> list[Panel]:
    """A panel for each group of enough rows, the largest first, and one for the rest."""
    groups: dict[str, list[Judged]] = {}
    for j in judged:
        groups.setdefault(by(j), []).append(j)
    rest = [j for members in groups.values() if len(members) < GROUP_ROWS_MIN for j in members]
    shown = sorted((g for g in groups.items() if len(g[1]) >= GROUP_ROWS_MIN), key=lambda g: -len(g[1]))
    out = []
    for name, members in [*shown, *([(others, rest)] if rest else [])]:
        series: dict[str, list[tuple[float, float]]] = {}
        for j in members:
            series.setdefault(colour(j), []).append((scale * j.measured, scale * j.predicted))
        out.append(Panel(name, _note(members), series))
    return out


def plots(judged: Sequence[Judged]) -> dict[str, str]:
    """SVG files by name."""
    of = {kind: [j for j in judged if j.kind == kind and j.m.use == FIT] for kind in KINDS}

    def fmt(j: Judged) -> str:
        return FORMATS.get(j.m.format, j.m.format)

    def engine(j: Judged) -> str:
        return ENGINES[j.m.engine]

    def card(j: Judged) -> str:
        return j.m.card

    token, first, offline = "ms per token", "s to the first token", "output tokens/s"
    formats = ("bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "4-bit integers", "8-bit integers")
    engines = tuple(ENGINES.values())
    cases = (
        (PLOTS[0], of["token"], card, fmt, 1e3, token, "format", formats, "other cards"),
        (PLOTS[1], of["token"], fmt, engine, 1e3, token, "engine", engines, "other formats"),
        (PLOTS[2], of["first"], engine, fmt, 1.0, first, "format", formats, "other engines"),
        (PLOTS[3], of["offline"], card, fmt, 1.0, offline, "format", formats, "other cards"),
    )
    return {
        name: panels(
            _panels(members, by, colour, scale, others), f"measured, {unit}", f"predicted, {unit}", legend, names
        )
        for name, members, by, colour, scale, unit, legend, names, others in cases
        if members
    }


def write(docs: Path, judged: Sequence[Judged], apart: Sequence[Judged], verdicts: Sequence[Target], mark: str) -> None:
    """Makes the pages and plots again, in place.

    Args:
        apart: figures that the model is not fitted to. mark: what the page is made from, for who checks that.
    """
    folder = docs / "results" / "fidelity"
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in plots(judged).items():
        (folder / f"{name}.svg").write_text(svg, "utf-8")
    (docs / "results" / "fidelity.md").write_text(page(judged, apart, verdicts, mark), "utf-8")
    accuracy = docs / "planning-accuracy.md"
    before, _, rest = accuracy.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    accuracy.write_text("\n".join([before + BEGIN, *target_table(verdicts), ""]).rstrip() + f"\n{END}{after}", "utf-8")
