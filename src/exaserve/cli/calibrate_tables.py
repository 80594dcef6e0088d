"""What ``exaserve calibrate`` says of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from exaserve.calibrate import GOOD_SHARE, Prediction, median_error
from exaserve.cli.tables import Cell, Column, print_table
from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Calibration, EngineProfile
from exaserve.perfmodel.fitting import Estimate
from exaserve.perfmodel.shrinkage import Posterior
from exaserve.report import number

__all__ = ["show_check", "show_combined", "show_measured"]

_TEXTS = {
    "prefill_tokens_per_s": ("prefill rate", 1.0, "tokens/s"),
    "prefill_per_pair_s": ("prefill, per pair of tokens", 1e9, "ns"),
    "first_token_s": ("first token besides its prompt", 1e3, "ms"),
    "first_s": ("first token besides its steps", 1e3, "ms"),
    "prompt_s": ("step with prompts, besides", 1e3, "ms"),
    "decode_fixed_s": ("decode step", 1e3, "ms"),
    "overhead_s": ("of it not reading weights", 1e3, "ms"),
    "decode_per_seq_s": ("decode, per sequence", 1e6, "µs"),
    "decode_per_kv_token_s": ("decode, per token held", 1e9, "ns"),
    "overlap": ("not hidden of reading or computing", 1.0, ""),
    "expert_s": ("reading all experts", 1e3, "ms"),
    "expert_share": ("experts that a token takes", 1.0, ""),
    "kv_bytes_per_token": ("KV cache per token", 1.0, "bytes"),
    "kv_tokens_per_token": ("cache tokens per token", 1.0, ""),
    "kv_gb": ("weight: KV cache", 1e3, "ms per GB"),
    "kv_age_s": ("weight: age of the cache", 1e3, "ms per s"),
    "net_mb": ("weight: network", 1e3, "ms per MB/s"),
}


def show_measured(console: Console, profile: Calibration) -> None:
    columns = (Column("", left=True), Column("value"), Column("± standard error"), Column("unit", 1, left=True))
    rows: list[list[Cell]] = []
    for name, estimate in {**profile.constants, **profile.weights}.items():
        text, factor, unit = _TEXTS[name]
        rows.append([text, *_with_error(estimate, factor), unit])
    print_table(console, f"{profile.model} on {profile.engine or 'an unknown engine'}", columns, rows)
    _show_refused(console, profile)


def _show_refused(console: Console, profile: Calibration) -> None:
    for refusal in profile.refused:
        console.print(
            f"refused: {refusal.what}: {refusal.why}. Missing: {refusal.missing}", style="yellow", highlight=False
        )


def _first(tokens: int) -> Callable[[EngineProfile], float]:
    return lambda profile: profile.first_token_s(tokens)


def _step(sequences: int) -> Callable[[EngineProfile], float]:
    return lambda profile: profile.step_s(0.0, sequences, CONTEXT * sequences)


CONTEXT = 1024
_TIMES = {
    **{f"first token of {tokens:,} tokens": _first(tokens) for tokens in (128, 1024, 8192)},
    **{f"step of {n} at {CONTEXT:,} tokens": _step(n) for n in (1, 4, 16, 64, 256)},
}


def show_combined(console: Console, alone: Calibration, found: Calibration, both: Posterior) -> None:
    """Predicted, measured alone, and both together.

    Args:
        alone: the plain fit. found: the profile that is written.
    """
    columns = (
        Column("", left=True),
        Column("predicted", 2),
        Column("measured alone", 1),
        Column("combined"),
        Column("± standard error"),
        Column("unit", 1, left=True),
    )
    rows: list[list[Cell]] = []
    for name, estimate in {**found.constants, **found.weights}.items():
        text, factor, unit = _TEXTS[name]
        predicted = getattr(both.prior.profile, name, None)
        measured = {**alone.constants, **alone.weights}.get(name)
        rows.append(
            [
                text,
                "" if predicted is None else number(predicted * factor),
                "" if measured is None else number(measured.value * factor),
                *_with_error(estimate, factor),
                unit,
            ]
        )
    try:
        plain = alone.engine_profile()
    except ConfigError:
        plain = None  # the runs do not carry enough of one
    for text, time_s in _TIMES.items():
        combined = Estimate(time_s(both.profile), both.error(time_s))
        cells = [number(time_s(both.prior.profile) * 1e3), "" if plain is None else number(time_s(plain) * 1e3)]
        rows.append([text, *cells, *_with_error(combined, 1e3), "ms"])
    print_table(console, f"{found.model} on {found.engine or 'an unknown engine'}", columns, rows)
    prior = both.prior
    like = f"{prior.rows} rows of {prior.groups} configurations" + (
        f" ({prior.like})" if prior.like else " of all kinds"
    )
    console.print(
        f"the prediction is believed to within {math.expm1(prior.step_spread):.0%} of a step and "
        f"{math.expm1(prior.first_spread):.0%} of a first token, as {like} were measured; {both.points} points were "
        f"{both.before:.1%} off it, and are {both.after:.1%} off both together",
        highlight=False,
        markup=False,
    )
    _show_refused(console, found)


def _with_error(estimate: Estimate, factor: float) -> list[Cell]:
    share = f" ({estimate.error / estimate.value:.1%})" if estimate.value else ""
    return [number(estimate.value * factor), f"{number(estimate.error * factor)}{share}"]


def show_check(console: Console, profile: Calibration, predictions: list[Prediction]) -> int:
    columns = (Column("", left=True, wrap=True), Column("measured"), Column("predicted", 1), Column("off by"))
    rows: list[list[Cell]] = [
        [
            p.what,
            f"{number(p.measured_s * 1e3)} ms",
            f"{number(p.predicted_s * 1e3)} ms",
            Text(f"{p.error:+.1%}", style="red" if abs(p.error) > 2 * GOOD_SHARE else ""),
        ]
        for p in predictions
    ]
    print_table(console, f"{profile.model}, measured {profile.date}, against a fresh run", columns, rows)
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
