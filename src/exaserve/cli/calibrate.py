"""``exaserve calibrate``: what one replica costs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from exaserve.bench import BodyRenderer
from exaserve.bench.tokens import Lengths, ServerTokenizer, measure_lengths
from exaserve.calibrate import (
    Design,
    Measurements,
    Measurer,
    combine,
    evidence,
    fit_profile,
    model_kv_bytes,
    not_steady,
    predict,
)
from exaserve.cli.calibrate_tables import show_check, show_combined, show_measured
from exaserve.cli.flags import ApiKey, command
from exaserve.cli.outputs import check_writable, write_text
from exaserve.config import load_profile
from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest
from exaserve.models import model_from_name
from exaserve.perfmodel import Calibration, calibration_document, find_hardware, profile
from exaserve.perfmodel.constants import ENGINE_RELEASES
from exaserve.perfmodel.shrinkage import Prior, prior_of

__all__ = ["calibrate"]


_PRIOR = "Prediction to combine with"


def _prior_option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_PRIOR)


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """The command's options, as given."""

    url: Annotated[
        str, typer.Argument(help="One replica itself, such as http://node1:8001; not a gateway. None with --fit.")
    ] = ""
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")] = Path("profile.yaml")
    check: Annotated[
        Path | None, typer.Option(help="Say how well this profile predicts a fresh run; writes nothing.")
    ] = None
    fit: Annotated[
        Path | None, typer.Option(help="Measure nothing: fit the measurements that an interrupted run has kept.")
    ] = None
    prompts: Annotated[str, typer.Option(help="Lengths of lone prompts, tokens.")] = "128,512,2048,8192"
    batches: Annotated[str, typer.Option(help="Sequences at once.")] = "1,4,16,64"
    contexts: Annotated[str, typer.Option(help="Prompt lengths of the batches, tokens.")] = "128,2048,8192"
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each lone prompt that count.")] = 5
    steps: Annotated[int, typer.Option(min=16, help="Decode steps measured of each batch.")] = 64
    probes: Annotated[bool, typer.Option(help="Measure the weights of the literal score too.")] = True
    model_shape: Annotated[
        str, typer.Option(help="Model whose published shape gives KV bytes per token, where its name does not say it.")
    ] = ""
    hardware: Annotated[
        str,
        _prior_option("Accelerator: the prediction for it fills what the runs leave open, as far as it is trusted."),
    ] = ""
    tp: Annotated[int, _prior_option("Tensor parallel size.", "--tp", "--tensor-parallel-size")] = 1
    pp: Annotated[int, _prior_option("Pipeline parallel size.", "--pp", "--pipeline-parallel-size")] = 1
    precision: Annotated[str, _prior_option("Weights: auto, bf16, fp8, int4 …", "--precision", "--dtype")] = "auto"
    kv_precision: Annotated[str, _prior_option("KV cache: auto, bf16, fp8.", "--kv-precision", "--kv-cache-dtype")] = (
        "auto"
    )
    engine: Annotated[str, _prior_option("Engine, if it does not say so itself: vllm, sglang, trtllm …")] = ""
    engine_version: Annotated[str, _prior_option("Its version, such as 0.10.2; the newest without it.")] = ""
    kv_cache_gib: Annotated[float, typer.Option(min=0, help="KV cache memory of all ranks, by the engine's log.")] = 0.0
    max_num_seqs: Annotated[int, typer.Option(min=0, help="Sequences the engine runs at once, if you know it.")] = 0
    token_budget: Annotated[int, typer.Option(min=0, help="Tokens the engine computes per step, if you know it.")] = 0
    api_key: ApiKey = ""
    seed: Annotated[int, typer.Option(help="Other seeds, other prompts; an engine caches those it has seen.")] = 0


def _calibrate(options: CalibrateOptions) -> None:
    """Measure one replica alone and write the profile that scheduler, emulator, simulator and planner load.

    Lone prompts give the prefill rate and its quadratic part, steady batches the cost of a decode step, the engine's
    own metrics its cache. Each constant comes with its standard error; one that the runs do not carry is refused, with
    the runs that are missing. With --hardware the prediction for such a replica is combined with what is measured, so
    that a few runs move all of it, and nothing is refused that can be predicted. What has been measured is kept, even
    if the run is interrupted. Exit code: 0 written (or predicts well), 1 prefill rate or decode step were refused (or
    the profile predicts badly), 2 wrong options.
    """
    o = options
    console = Console()
    known = load_profile(o.check) if o.check is not None else None
    if bool(o.url) == (o.fit is not None):
        raise ConfigError("name one replica's URL to measure, or --fit FILE to fit what is measured")
    if known is None:
        check_writable(o.output, "--output")
    if o.model_shape and not model_kv_bytes(o.model_shape):
        raise ConfigError(f"--model-shape: {o.model_shape!r} is not in the table of models")
    if o.hardware:
        find_hardware(o.hardware)
        _engine(o.engine)
    design = Design(
        prompts=_numbers("--prompts", o.prompts),
        batches=_numbers("--batches", o.batches),
        contexts=_numbers("--contexts", o.contexts),
        repeats=o.repeats,
        steps=o.steps,
    )
    if o.fit is not None:
        measured = _read_measurements(o.fit)
        raise typer.Exit(_finish(console, o, known, measured))
    kept = o.output.with_name(f"{o.output.name}.measured.json")
    measurer = _prepare(o, design, console, with_probes=o.probes and known is None)
    done = False
    try:
        _measure(measurer, console, with_probes=o.probes and known is None)
        code = _finish(console, o, known, measurer.out)
        done = True
    finally:
        if not done and (measurer.out.prefill or measurer.out.decode):
            write_text(kept, json.dumps(measurer.out.as_dict()) + "\n", "--output")
            console.print(f"what was measured is kept in {kept}; calibrate --fit fits it", style="yellow")
    raise typer.Exit(code)


calibrate = command("calibrate", CalibrateOptions, _calibrate)


def _finish(console: Console, o: CalibrateOptions, known: Calibration | None, measured: Measurements) -> int:
    """From measurements to the profile (or to how well one predicts them)."""
    for name, value in (("max_num_seqs", o.max_num_seqs), ("token_budget", o.token_budget)):
        if value:
            measured.limits[name] = value
    _add_kv_bytes(measured, o.model_shape, o.kv_cache_gib)
    for line in [*(f"left out: {each}" for each in measured.dropped), not_steady(measured)]:
        if line:
            console.print(line, style="yellow", highlight=False, markup=False)
    if known is not None:
        return show_check(console, known, predict(known, measured))
    date = time.strftime("%Y-%m-%d", time.gmtime())
    alone, fits = fit_profile(measured, date, with_weights=o.probes)
    found, both = (
        combine(alone, _prior(o, measured)) if o.hardware and (alone.prefill or alone.decode) else (alone, None)
    )
    document = calibration_document(found, evidence(measured, fits, both))
    write_text(o.output, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110), "--output")
    if both is None:
        show_measured(console, found)
    else:
        show_combined(console, alone, found, both)
    console.print(f"written to {o.output}; use it with profile: {o.output.name} in a pool of the cluster file")
    return 0 if found.value("prefill_tokens_per_s") and found.value("decode_fixed_s") else 1


def _engine(name: str) -> str:
    engine = name.lower().replace("-", "").replace("_", "").replace(".", "") or "vllm"
    if engine not in ENGINE_RELEASES:
        raise ConfigError(f"--engine: unknown engine {name!r}. {nearest(engine, ENGINE_RELEASES)}", param="engine")
    return engine


def _prior(o: CalibrateOptions, measured: Measurements) -> Prior:
    """What is predicted of the replica that the flags describe. ConfigError where they cannot be."""
    name = o.model_shape or measured.model
    said = measured.engine if measured.engine in ENGINE_RELEASES else "vllm"
    engine, version = _engine(o.engine or said), tuple(map(int, re.findall(r"\d+", o.engine_version)))
    try:
        arch = model_from_name(name, o.precision)
        predicted = profile(
            o.hardware,
            name,
            o.precision,
            o.tp,
            o.pp,
            kv_precision=o.kv_precision,
            engine=engine,
            version=version,
        )
    except ConfigError as error:
        raise ConfigError(f"the prediction for --hardware {o.hardware}: {error.message}", param=error.param) from None
    return prior_of(predicted, find_hardware(o.hardware), arch, o.tp, engine=engine, version=version)


def _read_measurements(path: Path) -> Measurements:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"--fit: {path}: {error}", param="--fit") from None
    if not isinstance(document, dict):
        raise ConfigError(f"--fit: {path} holds no measurements", param="--fit")
    return Measurements.from_dict(document)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise ConfigError(f"{name}: {text!r} must be whole numbers with commas between") from None
    if not values or values[0] < 1:
        raise ConfigError(f"{name}: needs numbers of at least 1")
    return values


def _prepare(o: CalibrateOptions, design: Design, console: Console, *, with_probes: bool) -> Measurer:
    """Asks the replica for its model and how long prompts are to it. ConfigError where it does not answer."""
    headers = {"authorization": f"Bearer {o.api_key}"} if o.api_key else {}
    url = o.url if "://" in o.url else f"http://{o.url}"
    root = url.rstrip("/").removesuffix("/v1")
    try:
        models = httpx.get(f"{root}/v1/models", headers=headers, timeout=10.0).raise_for_status().json()["data"]
        model = str(models[0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{root}: {str(error) or type(error).__name__}; is the replica up?") from None
    lengths = _lengths(root, model, headers, design)
    runs = "lone prompts, batches" + (" and probes" if with_probes else "")
    console.print(f"{model} at {root}; {runs}; prompt lengths {lengths.how}", highlight=False)
    # Completions: no chat template between the words and their number.
    renderer = BodyRenderer(model, path="/v1/completions", words=lengths.words)
    return Measurer(root, renderer, design, headers, seed=o.seed or time.time_ns() % 1_000_003)


def _measure(measurer: Measurer, console: Console, *, with_probes: bool) -> None:
    import uvloop

    columns = (TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        measurer.say = lambda text, done: bar.update(task, description=text, completed=done)
        try:
            uvloop.run(measurer.run(probes=with_probes))
        except httpx.HTTPError as error:
            raise ConfigError(f"{measurer.url}: {str(error) or type(error).__name__}") from None
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


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
    elif not measured.kv_bytes_per_token:
        measured.kv_bytes_per_token = model_kv_bytes(measured.model)
