"""``exaserve calibrate``: what one replica costs."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from exaserve.bench import BodyRenderer
from exaserve.bench.tokens import Lengths, ServerTokenizer, measure_lengths
from exaserve.calibrate import (
    GOOD_SHARE,
    Design,
    Measurements,
    Measurer,
    Prediction,
    evidence,
    fit_profile,
    median_error,
    model_kv_bytes,
    predict,
)
from exaserve.config import load_profile
from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Calibration, calibration_document

__all__ = ["calibrate"]

Url = Annotated[str, typer.Argument(help="One replica itself, such as http://node1:8001; not a gateway.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")]
Check = Annotated[Path | None, typer.Option(help="Say how well this profile predicts a fresh run; writes nothing.")]
Prompts = Annotated[str, typer.Option(help="Lengths of lone prompts, tokens.")]
Batches = Annotated[str, typer.Option(help="Sequences at once.")]
Contexts = Annotated[str, typer.Option(help="Prompt lengths of the batches, tokens.")]
Repeats = Annotated[int, typer.Option(help="Runs of each lone prompt that count.")]
Steps = Annotated[int, typer.Option(help="Decode steps measured of each batch.")]
Probes = Annotated[bool, typer.Option(help="Measure the weights of the literal score too.")]
ModelShape = Annotated[str, typer.Option(help="Model whose published shape gives KV bytes per token.")]
KvCacheGib = Annotated[float, typer.Option(help="KV cache memory of all ranks, by the engine's log.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Sequences the engine runs at once, if you know it.")]
TokenBudget = Annotated[int, typer.Option(help="Tokens the engine computes per step, if you know it.")]
ApiKey = Annotated[str, typer.Option(envvar="EXASERVE_API_KEY", show_envvar=True, help="Sent as bearer token.")]
Seed = Annotated[int, typer.Option(help="Other seeds, other prompts; an engine caches those it has seen.")]


def calibrate(
    url: Url,
    output: Output = Path("profile.yaml"),
    check: Check = None,
    prompts: Prompts = "128,512,2048,8192",
    batches: Batches = "1,4,16,64",
    contexts: Contexts = "128,2048,8192",
    repeats: Repeats = 5,
    steps: Steps = 64,
    probes: Probes = True,
    model_shape: ModelShape = "",
    kv_cache_gib: KvCacheGib = 0.0,
    max_num_seqs: MaxNumSeqs = 0,
    token_budget: TokenBudget = 0,
    api_key: ApiKey = "",
    seed: Seed = 0,
) -> None:
    """Measure one replica alone and write the profile that scheduler, emulator, simulator and planner load.

    Lone prompts give the prefill rate and its quadratic part, steady batches the cost of a decode step, the engine's
    own metrics its cache. Each constant comes with its standard error; one that the runs do not carry is refused, with
    the runs that are missing. Exit code: 0 written (or predicts well), 1 prefill rate or decode step were refused (or
    the profile predicts badly), 2 wrong options.
    """
    console = Console()
    known = load_profile(check) if check is not None else None
    design = Design(
        prompts=_numbers("--prompts", prompts),
        batches=_numbers("--batches", batches),
        contexts=_numbers("--contexts", contexts),
        repeats=max(1, repeats),
        steps=max(16, steps),
    )
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    measured = _measure(url, design, headers, console, seed or time.time_ns() % 1_000_003, probes and known is None)
    if max_num_seqs:
        measured.limits["max_num_seqs"] = max_num_seqs
    if token_budget:
        measured.limits["token_budget"] = token_budget
    _add_kv_bytes(measured, model_shape, kv_cache_gib)
    for line in measured.dropped:
        console.print(f"left out: {line}", style="yellow", highlight=False)
    if known is not None:
        raise typer.Exit(_show_check(console, known, predict(known, measured)))
    date = time.strftime("%Y-%m-%d", time.gmtime())
    profile, fits = fit_profile(measured, date, with_weights=probes)
    document = calibration_document(profile, evidence(measured, fits))
    output.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))
    _show(console, profile)
    console.print(f"written to {output}; use it with profile: {output.name} in a pool of the cluster file")
    needed = profile.value("prefill_tokens_per_s") and profile.value("decode_fixed_s")
    raise typer.Exit(0 if needed else 1)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise ConfigError(f"{name}: {text!r} must be whole numbers with commas between") from None
    if not values or values[0] < 1:
        raise ConfigError(f"{name}: needs numbers of at least 1")
    return values


def _measure(
    url: str, design: Design, headers: dict[str, str], console: Console, seed: int, probes: bool
) -> Measurements:
    import uvloop

    if "://" not in url:
        url = f"http://{url}"
    root = url.rstrip("/").removesuffix("/v1")
    try:
        models = httpx.get(f"{root}/v1/models", headers=headers, timeout=10.0).raise_for_status().json()["data"]
        model = str(models[0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{root}: {str(error) or type(error).__name__}; is the replica up?") from None
    lengths = _lengths(root, model, headers, design)
    console.print(f"{model} at {root}; prompt lengths {lengths.how}", highlight=False)
    # Completions: no chat template between the words and their number.
    renderer = BodyRenderer(model, path="/v1/completions", words=lengths.words)
    columns = (TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        measurer = Measurer(
            root, renderer, design, headers, lambda text, done: bar.update(task, description=text, completed=done), seed
        )
        try:
            return uvloop.run(measurer.run(probes=probes))
        except (httpx.HTTPError, asyncio.CancelledError) as error:
            raise ConfigError(f"{root}: {str(error) or type(error).__name__}") from None


def _lengths(root: str, model: str, headers: dict[str, str], design: Design) -> Lengths:
    server = ServerTokenizer(root, model, headers)
    try:
        return measure_lengths(server.count, [n for n in design.prompts if n <= 2048], "/v1/completions")
    except ConfigError as error:
        return Lengths(None, 0, None, f"estimated, corrected by the engine's usage ({error.message})")
    finally:
        server.close()


def _add_kv_bytes(measured: Measurements, model_shape: str, kv_cache_gib: float) -> None:
    if kv_cache_gib and measured.limits.get("kv_tokens_max"):
        measured.kv_bytes_per_token = kv_cache_gib * 2**30 / measured.limits["kv_tokens_max"]
    elif model_shape:
        measured.kv_bytes_per_token = model_kv_bytes(model_shape)
        if not measured.kv_bytes_per_token:
            raise ConfigError(f"--model-shape: {model_shape!r} is not in the table of models")
    elif not measured.kv_bytes_per_token:
        measured.kv_bytes_per_token = model_kv_bytes(measured.model)


_TEXTS = {
    "prefill_tokens_per_s": ("prefill rate", 1.0, "tokens/s"),
    "prefill_per_pair_s": ("prefill, per pair of tokens", 1e9, "ns"),
    "first_token_s": ("first token besides its prompt", 1e3, "ms"),
    "decode_fixed_s": ("decode step", 1e3, "ms"),
    "decode_per_seq_s": ("decode, per sequence", 1e6, "µs"),
    "decode_per_kv_token_s": ("decode, per token held", 1e9, "ns"),
    "kv_bytes_per_token": ("KV cache per token", 1.0, "bytes"),
    "kv_tokens_per_token": ("cache tokens per token", 1.0, ""),
    "kv_gb": ("weight: KV cache", 1e3, "ms per GB"),
    "kv_age_s": ("weight: age of the cache", 1e3, "ms per s"),
    "net_mb": ("weight: network", 1e3, "ms per MB/s"),
}


def _show(console: Console, profile: Calibration) -> None:
    table = Table(title=f"{profile.model} on {profile.engine or 'an unknown engine'}", title_justify="left")
    for name in ("", "value", "± standard error", "unit"):
        table.add_column(name, justify="left" if name in ("", "unit") else "right", no_wrap=True)
    for name, estimate in {**profile.constants, **profile.weights}.items():
        text, factor, unit = _TEXTS[name]
        share = f" ({estimate.error / estimate.value:.1%})" if estimate.value else ""
        table.add_row(text, f"{estimate.value * factor:,.4g}", f"{estimate.error * factor:,.2g}{share}", unit)
    console.print(table)
    for refusal in profile.refused:
        console.print(
            f"refused: {refusal.what}: {refusal.why}. Missing: {refusal.missing}", style="yellow", highlight=False
        )


def _show_check(console: Console, profile: Calibration, predictions: list[Prediction]) -> int:
    table = Table(title=f"{profile.model}, measured {profile.date}, against a fresh run", title_justify="left")
    for name in ("", "measured", "predicted", "off by"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    rows: list[tuple[Any, ...]] = [
        (
            p.what,
            f"{p.measured_s * 1e3:,.4g} ms",
            f"{p.predicted_s * 1e3:,.4g} ms",
            Text(f"{p.error:+.1%}", style="red" if abs(p.error) > 2 * GOOD_SHARE else ""),
        )
        for p in predictions
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    off = median_error(predictions)
    if math.isnan(off):
        console.print("nothing to compare: the profile has neither prefill nor decode", style="bold yellow")
        return 1
    good = off <= GOOD_SHARE
    console.print(
        f"median error {off:.1%}: the profile {'holds' if good else 'does not hold any more; calibrate again'}",
        style="green" if good else "bold red",
        highlight=False,
    )
    return 0 if good else 1
