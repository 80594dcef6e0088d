"""``exaserve simulate``: a cluster file and a load through one policy after the other, in virtual time."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from exaserve.cli.flags import command
from exaserve.cli.outputs import STDOUT, check_writable, write_text
from exaserve.cli.simulate_options import SimulateOptions, Study

if TYPE_CHECKING:
    from rich.console import Console

    from exaserve.report import RunView
    from exaserve.simulate.demand import SimDemand
    from exaserve.simulate.objectives import Capacity
    from exaserve.simulate.record import RunStats
    from exaserve.simulate.settings import SimSettings
    from exaserve.workload import Mix, TraceRow

__all__ = ["simulate"]

BLIND = ":blind"
LOAD, SECONDS = 0.8, 60.0


def _simulate(options: SimulateOptions) -> None:
    """Compare policies on a cluster that need not exist, with the gateway's own scheduler in virtual time.

    Replicas are the emulator's engine model. Every policy gets the same requests at the same instants; the same
    seed gives the same result. Latency counts from the instant a request was due. Exit code 1: an --slo was missed by
    the cluster file's policy (with --find-capacity: by every rate).
    """
    from rich.console import Console

    from exaserve.cli.simulate_show import print_capacities, print_comparison
    from exaserve.domain.errors import ConfigError

    o = options
    names = _policies(o.policies)
    check_writable(o.as_json, "--json")
    check_writable(o.html, "--html")
    if o.find_capacity and not o.slo:
        raise ConfigError("--find-capacity needs at least one --slo to keep", param="--slo")
    if o.find_capacity and o.trace is not None and o.seconds is None:
        raise ConfigError("--find-capacity with --trace needs --seconds: the trace is replayed at many rates")
    study = _study(o)
    console = Console(stderr=o.as_json == STDOUT)
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)  # millions of short-lived objects, hardly a cycle among them
    if o.find_capacity:
        found = {name: _capacity(study, name, console) for name in names}
        print_capacities(console, study, found)
        _write(o.as_json, {"parameters": study.parameters(), "capacity": _capacities(found)})
        if not any(each.rate_per_s for each in found.values()):
            raise typer.Exit(1)
        return
    runs = {name: _run(study, name, console, view=o.html is not None) for name in names}
    stats = {name: run[0] for name, run in runs.items()}
    print_comparison(console, study, stats)
    _write(
        o.as_json,
        {"parameters": study.parameters(), "policies": {name: each.as_dict() for name, each in stats.items()}},
    )
    if o.html is not None:
        _write_html(o.html, study, [view for _, view in runs.values() if view is not None])
    own = stats.get(study.cluster.scheduling.policy, next(iter(stats.values())))
    if not all(objective.kept(own) for objective in study.objectives):
        raise typer.Exit(1)


simulate = command("simulate", SimulateOptions, _simulate)


def _study(o: SimulateOptions) -> Study:
    import msgspec

    from exaserve.cli.up import find_cluster
    from exaserve.simulate.objectives import parse_objective
    from exaserve.simulate.units import replica_capacity_per_s, units_of

    cluster, _ = find_cluster(o.file)
    if o.staleness_s is not None:
        telemetry = msgspec.structs.replace(cluster.telemetry, interval_s=o.staleness_s)
        cluster = msgspec.structs.replace(cluster, telemetry=telemetry)
    rows = [] if o.trace is None else _rows(o.trace)
    asked = None if rows else _mix(o.mix)
    work = asked or [(row.prompt_tokens, row.output_tokens) for row in rows]
    units = units_of(cluster, o.replicas)
    capacity_per_s = 0.0
    known: dict[int, float] = {}
    for unit in units:
        if id(unit.profile) not in known:
            known[id(unit.profile)] = replica_capacity_per_s(unit.profile, work, o.seed, unit.speed)
        capacity_per_s += known[id(unit.profile)]
    own_instants = bool(rows) and rows[0].at_s is not None and o.load is None and o.rate_per_s is None
    rate_per_s = 0.0 if own_instants else o.rate_per_s or (LOAD if o.load is None else o.load) * capacity_per_s
    recorded_s = (rows[-1].at_s or 0.0) / o.trace_speed + 1e-6 if own_instants else SECONDS
    seconds = o.seconds or recorded_s
    due = sum((row.at_s or 0.0) / o.trace_speed < seconds for row in rows) if own_instants else 0
    names = [scenario.name for scenario in asked.scenarios] if asked else list({row.scenario: None for row in rows})
    return Study(
        cluster=cluster,
        units=units,
        mix=asked,
        rows=rows,
        trace_speed=o.trace_speed,
        settings=_settings(o, seconds),
        rate_per_s=rate_per_s,
        mean_rate_per_s=rate_per_s or due / seconds,
        capacity_per_s=capacity_per_s,
        seconds=seconds,
        seed=o.seed,
        objectives=tuple(parse_objective(text, names) for text in o.slo or ()),
    )


def _settings(o: SimulateOptions, seconds: float) -> SimSettings:
    """The world's knobs. ConfigError for a warm-up or events beyond the end of the run."""
    from exaserve.domain.errors import ConfigError
    from exaserve.simulate.script import load_script
    from exaserve.simulate.settings import SimSettings

    warmup_s = min(5.0, seconds / 4.0) if o.warmup_s is None else o.warmup_s
    if warmup_s >= seconds:
        raise ConfigError(
            f"--warmup: {warmup_s:g} s leave nothing of --seconds {seconds:g} to measure", param="--warmup"
        )
    events = () if o.events is None else load_script(o.events)
    for event in events:
        if event.at_s >= seconds:
            raise ConfigError(
                f"--events: {event.action} at {event.at_s:g} s comes after the end; give --seconds more than that",
                param="--events",
            )
    return SimSettings(
        seed=o.seed,
        gateways=o.gateways,
        told_s=None if o.told_ms is None else o.told_ms / 1000.0,
        homes=o.homes,
        hop_s=o.hop_ms / 1000.0,
        report_delay_s=o.report_delay_ms / 1000.0,
        report_loss=o.report_loss,
        warmup_s=warmup_s,
        window_s=5.0 if seconds >= 20.0 else max(seconds / 6.0, 0.05),
        events=events,
    )


def _rows(path: Path) -> list[TraceRow]:
    from exaserve.domain.errors import ConfigError
    from exaserve.workload import read_rows

    try:
        with path.open(encoding="utf-8") as file:
            return read_rows(file)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace: {path}: {error}", param="--trace") from None
    except ConfigError as error:
        raise ConfigError(f"--trace: {path}: {error.message}", param="--trace") from None


def _mix(text: str) -> Mix:
    import yaml

    from exaserve.domain.errors import ConfigError
    from exaserve.workload import MIXES, Mix, OutputLengths, Scenario, parse_mix

    if text in MIXES:
        return MIXES[text]
    prompt, slash, output = text.partition("/")
    if slash and prompt.isdigit() and output.isdigit():
        try:
            lengths = OutputLengths("fixed", float(output), tokens_max=int(output))
            return Mix(((Scenario(text, int(prompt), lengths), 1.0),))
        except ValueError as error:
            raise ConfigError(f"--mix: {error}", param="--mix") from None
    try:
        return parse_mix(yaml.safe_load(Path(text).read_text(encoding="utf-8")), text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        known = ", ".join(MIXES)
        raise ConfigError(
            f"--mix: {text!r} is none of {known}, no PROMPT/OUTPUT such as 64/64, and no file of scenarios: {error}",
            param="--mix",
        ) from None


def _policies(text: str) -> tuple[str, ...]:
    from exaserve.domain.errors import ConfigError
    from exaserve.simulate.simulation import POLICY_NAMES

    names = list(POLICY_NAMES) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name.removesuffix(BLIND) not in POLICY_NAMES:
            raise ConfigError(f"--policies: {name!r} is not one of {', '.join(POLICY_NAMES)}", param="--policies")
    if not names:
        raise ConfigError("--policies: name at least one", param="--policies")
    return tuple(dict.fromkeys(names))


def _demand(study: Study) -> SimDemand:
    from exaserve.simulate.demand import demand, demand_from_plan
    from exaserve.simulate.script import rate_factors
    from exaserve.workload import Arrivals, plan_from_rows

    factors = rate_factors(study.settings.events)
    if study.mix is not None:
        return demand(study.mix, study.rate_per_s, study.seconds, study.seed, factors=factors)
    arrivals = Arrivals(study.rate_per_s, study.seconds) if study.rate_per_s else None
    plan = plan_from_rows(study.rows, study.seed, speed=study.trace_speed, duration_s=study.seconds, arrivals=arrivals)
    return demand_from_plan(plan)


def _run(study: Study, name: str, console: Console, *, view: bool = False) -> tuple[RunStats, RunView | None]:
    """One policy."""
    from exaserve.cli.simulate_show import progress
    from exaserve.config import without_limits
    from exaserve.simulate.simulation import Simulation
    from exaserve.simulate.views import run_view

    cluster = without_limits(study.cluster) if name.endswith(BLIND) else study.cluster
    wanted = _demand(study)
    with progress(console, name) as report:
        simulation = Simulation(cluster, study.units, wanted, study.settings, name.removesuffix(BLIND), report)
        stats = simulation.run()
    if not view:
        return stats, None
    return stats, run_view(name, wanted, simulation.recorder, stats, study.settings, study.objectives)


def _capacity(study: Study, name: str, console: Console) -> Capacity:
    from exaserve.simulate.objectives import find_capacity

    def run(rate_per_s: float, times: float) -> RunStats:
        longer = dataclasses.replace(study, rate_per_s=rate_per_s, seconds=times * study.seconds)
        return _run(longer, name, console)[0]

    return find_capacity(run, study.objectives, 0.7 * study.capacity_per_s, confirm_times=study.confirm_times())


def _capacities(found: dict[str, Capacity]) -> dict[str, Any]:
    return {
        name: {
            "rate_per_s": each.rate_per_s,
            "short_run_per_s": each.short_run_per_s,
            "runs": each.tries,
            "stats": None if each.stats is None else each.stats.as_dict(),
        }
        for name, each in found.items()
    }


def _write(path: Path | None, value: object) -> None:
    if path is not None:
        write_text(path, json.dumps(value, indent=2) + "\n", "--json")


def _write_html(path: Path, study: Study, views: list[RunView]) -> None:
    from exaserve.cli.simulate_show import head_text
    from exaserve.report import runs_report

    title = f"Simulation of {study.units[0].spec.models[0]}"
    write_text(path, runs_report(title, views, head_text(study) + "."), "--html")
