"""``exaserve bench``: what an endpoint does under load."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from exaserve.bench import LoadResult, Progress, Summary, summarise
from exaserve.bench.compare import compare_runs
from exaserve.bench.knee import KneeSearch, judge_step
from exaserve.bench.outcome import (
    KIND,
    BenchResult,
    RateStep,
    client_problems,
    document,
    lines_beside,
    run_view,
    unlike,
)
from exaserve.bench.record import Record
from exaserve.bench.slo import RunFigures, evaluate, goodput
from exaserve.bench.telemetry import MetricsWatch, ServerSeries, query_prometheus
from exaserve.bench.workers import run_load
from exaserve.cli import bench_options as opt
from exaserve.cli.bench_live import LiveView
from exaserve.cli.bench_setup import RATE, BenchOptions, Setup, prepare
from exaserve.cli.bench_show import show_beside, show_differences, show_outcome, show_steps
from exaserve.domain.errors import ConfigError
from exaserve.report import runs_report, seconds
from exaserve.workload import LoadPlan

__all__ = ["bench"]

EXIT_MISSED, EXIT_SPOILT = 1, 4
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def bench(
    targets: opt.Targets,
    rate: opt.Rate = None,
    duration: opt.Duration = None,
    arrivals: opt.Arrivals = opt.ArrivalsChoice.POISSON,
    end_rate: opt.EndRate = 0.0,
    burst: opt.Burst = 10.0,
    concurrency: opt.Concurrency = 0,
    requests: opt.Requests = None,
    warmup: opt.Warmup = None,
    drain: opt.Drain = 60.0,
    seed: opt.Seed = 1,
    profile: opt.Profile = False,
    step: opt.StepS = 15.0,
    processes: opt.Processes = None,
    inflight_max: opt.InflightMax = 8192,
    timeout: opt.TimeoutS = 300.0,
    workload: opt.Workload = "mix",
    trace: opt.Trace = None,
    trace_speed: opt.TraceSpeed = 1.0,
    output_tokens: opt.OutputTokens = 256,
    turns: opt.Turns = 1.0,
    think: opt.Think = 5.0,
    question_tokens: opt.QuestionTokens = 64,
    sessions: opt.Sessions = 0,
    cache_hit: opt.CacheHit = 0.0,
    tokenizer: opt.Tokenizer = "auto",
    model: opt.Model = "",
    api: opt.Api = opt.ApiChoice.CHAT,
    stream: opt.Stream = True,
    api_key: opt.ApiKey = "",
    header: opt.Header = None,
    insecure: opt.Insecure = False,
    ca_file: opt.CaFile = None,
    extra: opt.Extra = "",
    ignore_eos: opt.IgnoreEos = None,
    max_completion_tokens: opt.MaxCompletionTokens = False,
    slo: opt.Slo = None,
    cost_per_hour: opt.CostPerHour = 0.0,
    metrics: opt.Metrics = None,
    prometheus: opt.Prometheus = "",
    gpu_query: opt.GpuQuery = "",
    kv_query: opt.KvQuery = "",
    name: opt.Name = "",
    window: opt.Window = None,
    as_json: opt.AsJson = None,
    records: opt.RecordsFile = None,
    html: opt.Html = None,
) -> None:
    """Put an OpenAI-compatible endpoint under load and say what its users felt.

    Requests are due at their own instants, whatever the server does, and latency counts from there. Exit code: 0 good
    (every objective met), 1 an objective missed, 2 wrong options, 4 the client itself was too slow for the figures to
    mean anything.

    bench compare A.json B.json   two results with confidence intervals
    bench report A.json … --html REPORT.html   a page with plots
    """
    # typer reads the signature; from here on the options travel together.
    _command(**locals())


def _command(
    *, targets: list[str], as_json: Path | None, records: Path | None, html: Path | None, **given: Any
) -> None:
    if targets[0] in ("compare", "report"):
        return _read_results(targets[0], targets[1:], as_json, html)
    profile, step_s = given.pop("profile"), given.pop("step")
    metrics = given.pop("metrics")
    prometheus = tuple(given.pop(name) for name in ("prometheus", "gpu_query", "kv_query"))
    cost_per_hour, name = given.pop("cost_per_hour"), given.pop("name")
    options = _options(tuple(targets), given)
    for path in (as_json, records, html):
        _check_writable(path)
    if profile and (options.concurrency or options.trace is not None):
        raise ConfigError("--profile steps the rate of an open loop; it does not go with --concurrency or --trace")
    setup = prepare(options)
    console = Console(stderr=as_json == Path("-"))
    run = _Run(setup, console, _metric_urls(metrics or [], targets), prometheus, cost_per_hour, name)
    outcome = run.go(step_s if profile else None)
    if profile:
        show_steps(console, outcome.steps, max((s.rate_per_s for s in outcome.steps if s.held), default=0.0))
    show_outcome(console, outcome)
    _write(outcome, as_json, records, html)
    raise typer.Exit(EXIT_SPOILT if outcome.spoilt else EXIT_MISSED if outcome.passed is False else 0)


def _options(urls: tuple[str, ...], given: dict[str, Any]) -> BenchOptions:
    """The command's options under the names, and with the values, that the rest works with."""
    renamed = {
        "rate": "rate_per_s",
        "duration": "duration_s",
        "end_rate": "end_rate_per_s",
        "burst": "burst_mean",
        "requests": "requests_max",
        "warmup": "warmup_s",
        "drain": "drain_s",
        "timeout": "timeout_s",
        "think": "think_s",
        "window": "window_s",
        "header": "headers",
    }
    values = {renamed.get(name, name): value for name, value in given.items()}
    values["arrivals"] = values["arrivals"].value
    values["path"] = _PATHS[values.pop("api").value]
    values["output_field"] = "max_completion_tokens" if values.pop("max_completion_tokens") else "max_tokens"
    for name in ("headers", "slo"):
        values[name] = tuple(values[name] or ())
    return BenchOptions(urls=urls, **values)


def _metric_urls(given: Sequence[str], targets: Sequence[str]) -> list[str]:
    if list(given) != ["auto"]:
        return [url if "://" in url else f"http://{url}" for url in given]
    return [url.rstrip("/").removesuffix("/v1") + "/metrics" for url in targets]


def _check_writable(path: Path | None) -> None:
    """A run of minutes must not end in an error that could have been told at its start."""
    if path is None or path == Path("-"):
        return
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


class _Run:
    """One call of the command."""

    def __init__(
        self,
        setup: Setup,
        console: Console,
        metric_urls: list[str],
        prometheus: tuple[str, ...],
        cost_per_hour: float,
        name: str,
    ) -> None:
        self.setup = setup
        self.console = console
        self.metric_urls = metric_urls
        self.prometheus, self.gpu_query, self.kv_query = prometheus
        self.cost_per_hour = cost_per_hour
        self.name = name or setup.options.urls[0]
        self.stop = asyncio.Event()

    def go(self, step_s: float | None) -> BenchResult:
        """Runs it. The first Ctrl-C sends nothing more and waits for answers; the second one ends it at once."""
        import uvloop

        async def main() -> BenchResult:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(self._once() if step_s is None else self._profile(step_s))

            def on_signal() -> None:
                if self.stop.is_set():
                    task.cancel()
                self.stop.set()

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, on_signal)
            return await task

        try:
            return uvloop.run(main())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _load(self, plan: LoadPlan, title: str) -> tuple[LoadResult, ServerSeries]:
        began: list[float] = []
        watch = MetricsWatch(self.metric_urls, self.setup.auth)
        with LiveView(self.console, title, plan.scenarios) as view:

            def told(progress: Progress) -> None:
                if not began:  # load processes take a moment to start, which is no part of the run
                    began.append(time.time() - progress.elapsed_s)
                    watch.restart(time.monotonic() - progress.elapsed_s)
                view.update(progress)

            async with watch:
                result = await run_load(self.setup.config, plan, self.setup.processes, told, self.stop)
        telemetry = watch.telemetry
        if self.prometheus and began:
            asked = await query_prometheus(self.prometheus, began[0], time.time(), self.gpu_query, self.kv_query)
            asked.kv = asked.kv or telemetry.kv
            telemetry = asked
        return result, telemetry

    async def _once(self) -> BenchResult:
        setup, o = self.setup, self.setup.options
        plan = setup.plan()
        how = f"{o.concurrency} at once" if o.concurrency else f"{len(plan) / plan.duration_s:,.4g} requests/s"
        self._announce(plan, how)
        result, telemetry = await self._load(plan, f"{o.urls[0]}  {how}")
        duration_s, records = _measured(plan, result, stopped=self.stop.is_set())
        warmup_s = setup.warmup_s(duration_s)
        summary = summarise(
            records,
            duration_s=duration_s,
            window_s=min(setup.window_s(duration_s), duration_s),
            warmup_s=warmup_s,
            scenarios=plan.scenarios,
        )
        notes = list(setup.notes)
        if self.stop.is_set():
            notes.append(f"stopped after {duration_s:.1f} s")
        if result.waited:
            notes.append(
                f"{result.waited:,} requests waited for one of {o.inflight_max:,} connections (--inflight-max); "
                "the wait is in their latency"
            )
        return self._outcome(summary, records, result, telemetry.cut(warmup_s, duration_s), notes)

    async def _profile(self, step_s: float) -> BenchResult:
        setup = self.setup
        search = KneeSearch(setup.options.rate_per_s or RATE)
        steps: list[RateStep] = []
        kept: tuple[Summary, list[Record], LoadResult, ServerSeries] | None = None
        for number, rate in enumerate(search.rates()):
            plan = setup.plan(rate, step_s, setup.options.seed + number)
            if not number:
                self._announce(plan, f"from {rate:g} requests/s, {step_s:g} s a step")
            result, telemetry = await self._load(plan, f"step {number + 1}: {rate:,.4g} requests/s")
            if self.stop.is_set():
                break
            warmup_s = min(setup.warmup_s(step_s) or step_s / 10.0, step_s / 3.0)
            summary = summarise(
                result.records,
                duration_s=plan.duration_s,
                window_s=setup.window_s(step_s),
                warmup_s=warmup_s,
                scenarios=plan.scenarios,
            )
            due = [r for r in result.records if warmup_s <= r.scheduled_s < plan.duration_s]
            results = evaluate(setup.gates, RunFigures(due, summary, telemetry.figures()))
            held, why = judge_step(summary, setup.gates, results, steps)
            if (problems := client_problems(result, summary)) and not held:
                why = f"client at its limit: {problems[0]}"
            steps.append(RateStep(rate, summary, held, why))
            search.tell(rate, held=held)
            self.console.print(
                f"{rate:,.4g} requests/s: P50 {seconds(summary.all.ttft.p50)}, P99 {seconds(summary.all.ttft.p99)}, "
                + ("held" if held else why),
                highlight=False,
            )
            if kept is None or (held and rate >= search.held_per_s):
                kept = (summary, result.records, result, telemetry)
        if kept is None:
            raise KeyboardInterrupt
        notes = [*setup.notes, "latencies are those of the highest rate that held"]
        return self._outcome(*kept, notes, steps)

    def _announce(self, plan: LoadPlan, how: str) -> None:
        setup = self.setup
        planned = "" if setup.options.concurrency else f"{len(plan):,} requests in {plan.duration_s:g} s; "
        self.console.print(
            f"{setup.options.urls[0]}: {how}; {planned}prompt lengths {setup.lengths.how}; "
            f"{setup.processes or 'no'} load process{'es' if setup.processes > 1 else ''}",
            highlight=False,
        )

    def _outcome(
        self,
        summary: Summary,
        records: Sequence[Record],
        result: LoadResult,
        telemetry: ServerSeries,
        notes: list[str],
        steps: Sequence[RateStep] = (),
    ) -> BenchResult:
        gates = self.setup.gates
        due = [r for r in records if summary.warmup_s <= r.scheduled_s < summary.duration_s]
        figures = telemetry.figures()
        cost = None
        if self.cost_per_hour and summary.requests_per_s:
            cost = self.cost_per_hour / 3600.0 / summary.requests_per_s * 1000.0
            figures["cost_per_1000"] = cost
        measured_s = max(summary.duration_s - summary.warmup_s, 1e-9)
        o = self.setup.options
        facts = {
            "endpoint": ", ".join(o.urls),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "workload": str(o.trace or o.workload),
            "load": f"closed loop, {o.concurrency} at once" if o.concurrency else f"open loop, {o.arrivals}",
            "seed": o.seed,
            "stream": o.stream,
            "duration": f"{summary.duration_s:g} s, the first {summary.warmup_s:g} s left out",
            "prompt lengths": self.setup.lengths.how,
            "load processes": self.setup.processes,
        }
        return BenchResult(
            name=self.name,
            facts=facts,
            summary=summary,
            records=due,
            client=result,
            spoilt=client_problems(result, summary),
            notes=notes + telemetry.problems,
            gates=evaluate(gates, RunFigures(due, summary, figures)),
            goodput_per_s=goodput(due, gates) / measured_s if gates else None,
            cost_per_1000=cost,
            telemetry=telemetry,
            steps=steps,
        )


def _measured(plan: LoadPlan, result: LoadResult, *, stopped: bool) -> tuple[float, list[Record]]:
    """Length of the run and its records; after a stop, only what was sent."""
    if not stopped:
        return plan.duration_s, result.records
    sent = [r for r in result.records if r.sent_s is not None]
    end = max((r.scheduled_s for r in sent), default=0.0) + 1e-6
    return max(min(end, plan.duration_s), 1e-3), sent


def _write(outcome: BenchResult, as_json: Path | None, records: Path | None, html: Path | None) -> None:
    doc = document(outcome)
    if as_json is not None:
        text = json.dumps(doc, allow_nan=False) + "\n"
        if as_json == Path("-"):
            typer.echo(text, nl=False)
        else:
            as_json.write_text(text)
    if records is not None:
        with records.open("w") as file:
            for record in outcome.client.records:
                file.write(json.dumps(record.as_dict(), separators=(",", ":")) + "\n")
    if html is not None:
        html.write_text(runs_report(f"Load run: {outcome.name}", [run_view(doc)]))


def _read_result(path: str) -> dict[str, Any]:
    try:
        doc = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(doc, dict) or doc.get("kind") != KIND:
        raise ConfigError(f"{path} is no result of exaserve bench --json")
    return doc


def _read_results(what: str, paths: Sequence[str], as_json: Path | None, html: Path | None) -> None:
    if len(paths) != 2 if what == "compare" else not paths:
        raise ConfigError(f"bench {what} needs {'two result files' if what == 'compare' else 'result files'}")
    if what == "report" and html is None:
        raise ConfigError("bench report needs --html FILE")
    docs = [_read_result(path) for path in paths]
    names = [str(doc["name"]) for doc in docs]
    if len(set(names)) < len(names):
        for doc, path in zip(docs, paths, strict=True):
            doc["name"] = Path(path).stem
        names = [str(doc["name"]) for doc in docs]
    try:
        if html is not None:
            html.write_text(
                runs_report(
                    f"Load run: {names[0]}" if len(names) == 1 else " against ".join(reversed(names)),
                    [run_view(doc) for doc in docs],
                )
            )
        if what == "report":
            return
        differences = compare_runs(docs[0]["samples"], docs[1]["samples"])
        beside, other = lines_beside(docs), unlike(docs[0], docs[1])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"a result file is damaged: {type(error).__name__}: {error}") from None
    console = Console(stderr=as_json == Path("-"))
    for doc in docs:
        for reason in doc["spoilt"]:
            console.print(f"{doc['name']} is NOT VALID: {reason}", style="bold yellow", highlight=False)
    show_differences(console, (names[0], names[1]), differences)
    show_beside(console, names, beside)
    for text in other:
        console.print(f"note: the runs differ in {text}", style="yellow", highlight=False)
    if as_json is not None:
        found = {"names": names, "unlike": other, "differences": [d.as_dict() for d in differences]}
        text = json.dumps(found, indent=2) + "\n"
        if as_json == Path("-"):
            typer.echo(text, nl=False)
        else:
            as_json.write_text(text)
