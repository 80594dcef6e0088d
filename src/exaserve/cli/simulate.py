"""``exaserve simulate``: a cluster file and a load through one policy after the other, in virtual time."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from exaserve.cli import simulate_options as opt

if TYPE_CHECKING:
    from rich.console import Console

    from exaserve.config import Cluster
    from exaserve.report import RunView
    from exaserve.simulate.objectives import Capacity, Objective
    from exaserve.simulate.record import RunStats
    from exaserve.simulate.settings import SimSettings
    from exaserve.simulate.units import SimUnit
    from exaserve.workload import Mix

__all__ = ["simulate"]

BLIND = ":blind"
DEFAULT = "round_robin,least_connections,entropy,oracle"


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that all policies of one comparison have in common.

    Attributes:
        capacity_per_s: what the cluster completes at most, requests per second.
    """

    cluster: Cluster
    units: list[SimUnit]
    mix: Mix
    settings: SimSettings
    rate_per_s: float
    capacity_per_s: float
    seconds: float
    seed: int
    objectives: tuple[Objective, ...]

    def parameters(self) -> dict[str, Any]:
        """As they stand in the JSON."""
        settings = self.settings
        return {
            "replicas": len(self.units),
            "model": self.units[0].spec.models[0],
            "rate_per_s": self.rate_per_s,
            "load": self.rate_per_s / self.capacity_per_s,
            "seconds": self.seconds,
            "seed": self.seed,
            "gateways": settings.gateways,
            "told_ms": None if settings.told_s is None else 1000.0 * settings.told_s,
            "homes": settings.homes,
            "staleness_s": self.cluster.telemetry.interval_s,
            "report_delay_ms": 1000.0 * settings.report_delay_s,
            "report_loss": settings.report_loss,
            "events": len(settings.events),
        }


def simulate(
    file: opt.ClusterPath = None,
    policies: opt.Policies = DEFAULT,
    load: opt.Load = 0.8,
    rate: opt.Rate = None,
    seconds: opt.Seconds = 60.0,
    warmup: opt.Warmup = None,
    seed: opt.Seed = 1,
    mix: opt.Mix = "mix",
    replicas: opt.Replicas = None,
    gateways: opt.Gateways = 1,
    told_ms: opt.ToldMs = None,
    homes: opt.Homes = True,
    staleness: opt.Staleness = None,
    report_delay_ms: opt.ReportDelayMs = 0.0,
    report_loss: opt.ReportLoss = 0.0,
    hop_ms: opt.HopMs = 0.0,
    events: opt.EventsPath = None,
    slo: opt.Slo = None,
    find_capacity: opt.FindCapacity = False,
    as_json: opt.JsonPath = None,
    html: opt.HtmlPath = None,
) -> None:
    """Compare policies on a cluster that need not exist, with the gateway's own scheduler in virtual time.

    Replicas are the emulator's engine model. Every policy gets the same requests at the same instants; the same
    seed gives the same result. Latency counts from the instant a request was due. Exit code 1: an --slo was missed by
    the cluster file's policy (with --find-capacity: by every rate).
    """
    from rich.console import Console

    from exaserve.cli.simulate_show import print_capacities, print_comparison
    from exaserve.simulate.script import load_script
    from exaserve.simulate.settings import SimSettings

    names = _policies(policies)
    settings = SimSettings(
        seed=seed,
        gateways=gateways,
        told_s=None if told_ms is None else told_ms / 1000.0,
        homes=homes,
        hop_s=hop_ms / 1000.0,
        report_delay_s=report_delay_ms / 1000.0,
        report_loss=report_loss,
        warmup_s=min(5.0, seconds / 4.0) if warmup is None else warmup,
        window_s=5.0 if seconds >= 20.0 else max(seconds / 6.0, 0.05),
        events=() if events is None else load_script(events),
    )
    study = _study(file, settings, mix, replicas, staleness, load, rate, seconds, seed, slo or [])
    console = Console()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)  # millions of short-lived objects, hardly a cycle among them
    if find_capacity:
        found = {name: _capacity(study, name, console) for name in names}
        print_capacities(console, study, found)
        _write(as_json, {"parameters": study.parameters(), "capacity": _capacities(found)})
        if not any(each.rate_per_s for each in found.values()):
            raise typer.Exit(1)
        return
    runs = {name: _run(study, name, study.rate_per_s, console, view=html is not None) for name in names}
    stats = {name: run[0] for name, run in runs.items()}
    print_comparison(console, study, stats)
    _write(
        as_json,
        {"parameters": study.parameters(), "policies": {name: each.as_dict() for name, each in stats.items()}},
    )
    if html is not None:
        _write_html(html, study, [view for _, view in runs.values() if view is not None])
    own = stats.get(study.cluster.scheduling.policy, next(iter(stats.values())))
    if not all(objective.kept(own) for objective in study.objectives):
        raise typer.Exit(1)


def _study(
    file: Path | None,
    settings: SimSettings,
    mix: str,
    replicas: int | None,
    staleness: float | None,
    load: float,
    rate: float | None,
    seconds: float,
    seed: int,
    slo: list[str],
) -> Study:
    import msgspec

    from exaserve.cli.up import find_cluster
    from exaserve.simulate.objectives import parse_objective
    from exaserve.simulate.units import replica_capacity_per_s, units_of

    cluster, _ = find_cluster(file)
    if staleness is not None:
        telemetry = msgspec.structs.replace(cluster.telemetry, interval_s=staleness)
        cluster = msgspec.structs.replace(cluster, telemetry=telemetry)
    units = units_of(cluster, replicas)
    asked = _mix(mix)
    capacity_per_s = 0.0
    known: dict[int, float] = {}
    for unit in units:
        if id(unit.profile) not in known:
            known[id(unit.profile)] = replica_capacity_per_s(unit.profile, asked, seed, unit.speed)
        capacity_per_s += known[id(unit.profile)]
    names = [scenario.name for scenario in asked.scenarios]
    return Study(
        cluster,
        units,
        asked,
        settings,
        load * capacity_per_s if rate is None else rate,
        capacity_per_s,
        seconds,
        seed,
        tuple(parse_objective(text, names) for text in slo),
    )


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
        return parse_mix(yaml.safe_load(Path(text).read_text()), text)
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


def _run(
    study: Study, name: str, rate_per_s: float, console: Console, *, view: bool = False
) -> tuple[RunStats, RunView | None]:
    """One policy at one rate."""
    from exaserve.cli.simulate_show import progress
    from exaserve.config import without_limits
    from exaserve.simulate.demand import demand
    from exaserve.simulate.script import rate_factors
    from exaserve.simulate.simulation import Simulation
    from exaserve.simulate.views import run_view

    cluster = without_limits(study.cluster) if name.endswith(BLIND) else study.cluster
    wanted = demand(study.mix, rate_per_s, study.seconds, study.seed, factors=rate_factors(study.settings.events))
    with progress(console, name) as report:
        simulation = Simulation(cluster, study.units, wanted, study.settings, name.removesuffix(BLIND), report)
        stats = simulation.run()
    if not view:
        return stats, None
    return stats, run_view(name, wanted, simulation.recorder, stats, study.settings, study.objectives)


def _capacity(study: Study, name: str, console: Console) -> Capacity:
    from exaserve.domain.errors import ConfigError
    from exaserve.simulate.objectives import find_capacity

    if not study.objectives:
        raise ConfigError("--find-capacity needs at least one --slo to keep", param="--slo")
    run: Callable[[float], RunStats] = lambda rate: _run(study, name, rate, console)[0]  # noqa: E731
    return find_capacity(run, study.objectives, 0.7 * study.capacity_per_s)


def _capacities(found: dict[str, Capacity]) -> dict[str, Any]:
    return {
        name: {
            "rate_per_s": each.rate_per_s,
            "runs": each.tries,
            "stats": None if each.stats is None else each.stats.as_dict(),
        }
        for name, each in found.items()
    }


def _write(path: Path | None, value: object) -> None:
    if path is not None:
        _write_text(path, json.dumps(value, indent=2) + "\n", "--json")


def _write_text(path: Path, text: str, flag: str) -> None:
    from exaserve.domain.errors import ConfigError

    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{flag}: {path} cannot be written: {error.strerror}", param=flag) from None


def _write_html(path: Path, study: Study, views: list[RunView]) -> None:
    from exaserve.cli.simulate_show import head_text
    from exaserve.report import runs_report

    title = f"Simulation of {study.units[0].spec.models[0]}"
    _write_text(path, runs_report(title, views, head_text(study) + "."), "--html")
