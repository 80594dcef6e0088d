"""``exaserve emulate --profile``: what is emulated, and from which measurements."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from exaserve.cli.plan_speed import seconds_text, show_evidence
from exaserve.cli.tables import Cell, Column, log_wide, print_table
from exaserve.config import load_profile
from exaserve.config.measurements import load_measurements
from exaserve.emulator.config import EmulatorConfig
from exaserve.models import model_from_name
from exaserve.models.architecture import Architecture
from exaserve.perfmodel import Calibration, EngineProfile, find_hardware
from exaserve.perfmodel.confidence import Interval
from exaserve.perfmodel.constants import SpeedSetup, factors, meaning_of, parts, setup_of, used_parts
from exaserve.perfmodel.fitted import FITTED
from exaserve.perfmodel.nearest import Evidence, evidence
from exaserve.perfmodel.work import work_of
from exaserve.planning.certainty import Certainty, certainty_like
from exaserve.report import number

__all__ = ["show"]

BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (128, 1024, 8192)
PROMPTS = (1024, 8192)
LOAD = (16.0, 1024.0, 256.0)
"""Sequences, prompt and output tokens that the nearest measurements are looked for at."""


def show(config: EmulatorConfig, *, as_json: bool) -> None:
    """Prints step times and where they are from. ConfigError as of the emulator itself."""
    config.check()
    profile = config.engine_profile()
    document = _figures(config, profile)
    console = log_wide(Console(highlight=False))
    if config.profile_file:
        measured = load_profile(config.profile_file)
        document["measured"] = _measured(measured)
        if not as_json:
            _show_figures(console, document, None)
            _lines(console, "From", [_said(measured, config.profile_file)])
    elif find_hardware(config.hardware).name == "null":
        if not as_json:
            _show_figures(console, document, None)
            _lines(console, "From", ["nothing: this hardware computes nothing and takes no time"])
    else:
        arch, certainty, found = _predicted(config)
        constants = _constants(certainty.setup, arch)
        document |= {
            "engine": {"name": certainty.setup.engine, "releases_from": certainty.setup.release},
            "interval": {
                name: {
                    "low": each.low,
                    "high": each.high,
                    "rows": each.rows,
                    "configurations": each.groups,
                    "like": each.like,
                }
                for name, each in (("token", certainty.token), ("first", certainty.first))
            },
            "constants": {name: {"value": value, "product_of": names} for name, value, names in constants},
            "nearest": [dataclasses.asdict(row) for row in found.nearest],
            "card_rows": found.card_rows,
            "like_rows": found.like_rows,
        }
        if not as_json:
            _show_figures(console, document, certainty)
            _show_constants(console, certainty.setup, constants)
            _lines(console, "From", [*certainty.says, certainty.measured])
            show_evidence(console, found)
    if as_json:
        typer.echo(json.dumps(document))


def _figures(config: EmulatorConfig, profile: EngineProfile) -> dict[str, Any]:
    """Step times at batches and contexts that the engine can hold, and all terms of the profile."""
    batches = [n for n in BATCHES if n <= profile.max_num_seqs]
    return {
        "model": config.names[0],
        "hardware": "" if config.profile_file else f"{config.tp * config.pp} x {config.hardware}",
        "profile": dataclasses.asdict(profile),
        "step_s": [
            {"sequences": n, "context": c, "seconds": profile.step_s(0.0, n, float(n * c))}
            for n in batches
            for c in CONTEXTS
            if c <= profile.max_model_len and n * c <= profile.kv_tokens_max
        ],
        "first_token_s": {str(n): profile.first_token_s(n) for n in PROMPTS if n < profile.max_model_len},
    }


def _show_figures(console: Console, document: dict[str, Any], certainty: Certainty | None) -> None:
    profile, steps = document["profile"], document["step_s"]
    contexts = sorted({each["context"] for each in steps})
    times = {(each["sequences"], each["context"]): each["seconds"] for each in steps}
    columns = [Column("sequences"), *(Column(f"{c:,} tokens each") for c in contexts)]
    rows: list[list[Cell]] = [
        [str(n), *(seconds_text(times[n, c], 2) if (n, c) in times else "" for c in contexts)]
        for n in sorted({each["sequences"] for each in steps})
    ]
    where = f" on {document['hardware']}" if document["hardware"] else ""
    print_table(console, f"{document['model']}{where}: a decode step of", columns, rows)
    token, first = ("", "") if certainty is None else (_within(certainty.token), _within(certainty.first))
    lines = [f"decode steps as above{token}"] if token else []
    lines += [
        f"first token of {int(n):,} tokens, alone: {seconds_text(s, 1)}{first}"
        for n, s in document["first_token_s"].items()
    ]
    lines.append(f"prefill: {profile['prefill_tokens_per_s']:,.0f} tokens/s, attention apart")
    lines.append(
        f"KV cache: {profile['kv_tokens_max']:,} tokens; at most {profile['max_num_seqs']:,} sequences, "
        f"{profile['token_budget']:,} tokens a step, context {profile['max_model_len']:,}"
    )
    _lines(console, "", lines)


def _within(found: Interval) -> str:
    return f" (80 % of measurements: {found.low:.2f} to {found.high:.2f} times)"


def _lines(console: Console, title: str, lines: list[str]) -> None:
    if title:
        console.print(Text(f"\n{title}", style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _measured(found: Calibration) -> dict[str, Any]:
    return {
        "model": found.model,
        "engine": found.engine,
        "date": found.date,
        "combined_with_prediction": found.combined,
        "points": len(found.prefill) + len(found.decode),
        "constants": {name: dataclasses.asdict(each) for name, each in found.constants.items()},
    }


def _said(found: Calibration, path: str) -> str:
    points = f"{len(found.decode)} batches and {len(found.prefill)} lengths of prompts"
    how = " combined with a prediction" if found.combined else ""
    errors = [f"{n} {e.error / e.value:.1%}" for n, e in found.constants.items() if e.value and e.error]
    return (
        f"{path}: {found.model or 'a model'} on {found.engine or 'an unknown engine'}, measured "
        f"{found.date or 'at an unknown date'}, {points}{how}; standard errors: {', '.join(errors) or 'none given'}"
    )


def _predicted(config: EmulatorConfig) -> tuple[Architecture, Certainty, Evidence]:
    card, arch = find_hardware(config.hardware), model_from_name(config.model, config.precision)
    setup = setup_of(card, arch, config.tp, engine=config.engine)
    rows, sources = load_measurements()
    return arch, certainty_like(setup, bool(arch.facts.experts)), evidence(rows, sources, setup, arch, LOAD)


def _constants(setup: SpeedSetup, arch: Architecture) -> list[tuple[str, float, list[str]]]:
    """Factors that this replica's times depend on, each with the constants that it is the product of."""
    products = used_parts(setup, work_of(arch, setup.tp))
    products.pop("ranks_wait")  # attention in ranks of their own is not emulated
    values = dataclasses.asdict(factors(parts(setup), FITTED))
    return [(name, values[name], list(names)) for name, names in products.items()]


def _show_constants(console: Console, setup: SpeedSetup, constants: list[tuple[str, float, list[str]]]) -> None:
    columns = (Column("", left=True), Column("value"), Column("product of", 1, left=True, wrap=True),
               Column("meaning", 2, left=True, wrap=True))  # fmt: skip
    rows: list[list[Cell]] = [
        [name, number(value), " x ".join(names), meaning_of(names[0]).text] for name, value, names in constants
    ]
    print_table(console, f"Constants: {setup.engine}, releases from {setup.release}", columns, rows)
