"""``exaserve plan``: what a model needs of machines, before they are bought or started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from exaserve.cli.flags import command
from exaserve.cli.plan_flags import PlanFlags

if TYPE_CHECKING:
    from exaserve.perfmodel.nearest import Evidence
    from exaserve.planning import ClusterPlan, LogFacts, PlanRequest

__all__ = ["plan"]

LOG_BYTES_MAX = 200_000_000


def _run(flags: PlanFlags) -> None:
    """What a model needs of machines: memory as the engine computes it, layout, replicas, network, latency, cost.

    Exit code 1 where nothing fits, the network is too slow or the demand is not held.
    """
    from exaserve.cli.plan_inputs import request_of
    from exaserve.planning import make_plan

    log = _read_log(flags)
    request = request_of(flags, log)
    if log is not None:
        _check_log(flags, request, log)
        return
    if flags.sweep or flags.html:
        _sweep(flags, request)
        return
    result = make_plan(request)
    _output(flags, result)
    if flags.write is not None:
        _write(flags, result)
    if not _good(result):
        raise typer.Exit(1)


plan = command("plan", PlanFlags, _run)


def _good(result: ClusterPlan) -> bool:
    if result.request.demand_given:
        return result.works
    return result.best is not None and result.best.memory.fits and not result.best.network


def _read_log(flags: PlanFlags) -> LogFacts | None:
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import read_log

    if flags.check is None:
        return None
    try:
        with flags.check.open("rb") as file:
            return read_log(file.read(LOG_BYTES_MAX).decode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"{flags.check}: cannot be read: {error.strerror or error}", param="check") from None


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


def _dump(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _output(flags: PlanFlags, result: ClusterPlan) -> None:
    from exaserve.cli.plan_show import show_plan, show_terms
    from exaserve.cli.plan_speed import show_evidence
    from exaserve.planning import explain, plan_dict

    if flags.json:
        _dump(plan_dict(result, _evidence(result)))
        return
    console = _console()
    show_plan(console, result)
    if flags.explain:
        show_terms(console, explain(result))
        found = _evidence(result)
        if found is not None:
            show_evidence(console, found)


def _evidence(result: ClusterPlan) -> Evidence | None:
    """What is public about the recommended layout: the table is read only where it is shown."""
    from exaserve.config.measurements import load_measurements
    from exaserve.perfmodel.nearest import evidence

    best, demand = result.best, result.request.demand
    if best is None or best.certainty is None:
        return None
    rows, sources = load_measurements()
    batch = result.now.state.batch if result.now else 1.0
    return evidence(rows, sources, best.certainty.setup, result.request.arch, (batch, demand.prompt, demand.output))


def _write(flags: PlanFlags, result: ClusterPlan) -> None:
    from exaserve.cli.outputs import write_text
    from exaserve.config import parse_cluster
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import cluster_file

    assert flags.write is not None
    text = cluster_file(result, flags.write_engine or flags.engine, pools=flags.pools)
    try:
        parse_cluster(text, str(flags.write))
    except ConfigError as error:
        raise ConfigError(
            f"Nothing written, for it would not pass config check: {error.message}", param="write"
        ) from None
    write_text(flags.write, text, "--write")
    typer.echo(f"{flags.write}: written; see exaserve config check {flags.write}", err=True)


def _check_log(flags: PlanFlags, request: PlanRequest, log: LogFacts) -> None:
    from dataclasses import asdict, replace

    from exaserve.cli.plan_show import show_comparison
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import MeasuredMemory, Parallelism, compare, plan_memory

    if not log.figures:
        raise ConfigError(f"{flags.check}: no line of a vLLM or SGLang start-up about memory.", param="check")
    placement = Parallelism(max(1, request.tp), max(1, request.pp), bool(request.ep), request.partition)
    asked = replace(request.memory_request(placement), max_num_seqs=request.max_num_seqs)
    predicted = plan_memory(asked)
    known = MeasuredMemory(*(log.get(n) for n in ("weights_gib", "non_torch_gib", "activation_gib", "kv_gib")))
    enough = known.kv_gib is not None or (known.weights_gib is not None and known.activation_gib is not None)
    given = plan_memory(replace(asked, measured=known)) if enough else None
    rows = compare(log, predicted, given)
    if flags.json:
        _dump([{**asdict(row), "deviation": row.deviation} for row in rows])
        return
    console = _console()
    console.print(f"{request.arch.name}, {request.arch.fmt.name}, TP {placement.tp}, PP {placement.pp}, "
                  f"{asked.version.label}, {request.fleet.hardware.name}")  # fmt: skip
    show_comparison(console, rows)


_SWEEP_FORMATS = ("bf16", "fp8", "awq")


def _sweep(flags: PlanFlags, request: PlanRequest) -> None:
    from exaserve.cli.outputs import check_writable, write_text
    from exaserve.cli.plan_inputs import model_of
    from exaserve.cli.plan_page import sweep_page
    from exaserve.cli.plan_show import show_sweep
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import sweep, sweep_dicts

    check_writable(flags.html, "--html")
    formats = {request.arch.fmt.name: request.arch}
    for name in _SWEEP_FORMATS:
        try:
            formats.setdefault(name, model_of(flags.model, name))
        except ConfigError:
            continue
    rows = sweep(request, formats)
    currency = request.prices.currency
    title = f"{request.arch.name}: cards, formats and layouts"
    note = (
        f"{request.demand.rate_s:,.1f} requests/s, {request.demand.prompt:,.0f} + {request.demand.output:,.0f} tokens; "
        f"sized for {request.confidence:.0%} of measurements like each (--confidence); times are as predicted, with "
        "the interval of 80% of them; memory is counted; prices "
        + ("are given" if request.prices.card_hour else "are rough market levels")
    )
    if flags.html is not None:
        write_text(flags.html, sweep_page(rows, title, note, currency), "--html")
    if flags.json:
        _dump(sweep_dicts(rows))
        return
    show_sweep(_console(), rows, currency)
