"""``exaserve bench``: what an endpoint does under load."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence

import typer
from rich.console import Console

from exaserve.bench import LoadResult, Progress, Summary, summarise
from exaserve.bench.knee import KneeSearch, judge_step
from exaserve.bench.outcome import BenchResult, RateStep, client_problems
from exaserve.bench.record import Record
from exaserve.bench.slo import RunFigures, evaluate, goodput
from exaserve.bench.telemetry import MetricsWatch, ServerSeries, query_prometheus
from exaserve.bench.workers import run_load
from exaserve.cli.bench_files import read_results, write_result
from exaserve.cli.bench_live import LiveView
from exaserve.cli.bench_options import BenchOptions
from exaserve.cli.bench_setup import RATE, Setup, prepare
from exaserve.cli.bench_show import show_outcome, show_steps
from exaserve.cli.flags import command
from exaserve.cli.outputs import STDOUT, check_writable
from exaserve.domain.errors import ConfigError
from exaserve.report import number, seconds
from exaserve.workload import LoadPlan

__all__ = ["bench"]

EXIT_MISSED, EXIT_SPOILT = 1, 4


def _bench(options: BenchOptions) -> None:
    """Put an OpenAI-compatible endpoint under load and say what its users felt.

    Requests are due at their own instants, whatever the server does, and latency counts from there. Exit code: 0 good
    (every objective met), 1 an objective missed or not one good answer, 2 wrong options, 4 the client itself was too
    slow for the figures to mean anything.

    bench compare A.json B.json   two results with confidence intervals
    bench report A.json … --html REPORT.html   a page with plots
    """
    o = options
    files = (("--json", o.as_json), ("--csv", o.as_csv), ("--records", o.records), ("--html", o.html))
    for flag, path in files:
        check_writable(path, flag)
    if o.targets[0] in ("compare", "report"):
        read_results(o.targets[0], o.targets[1:], o.as_json, o.html)
        return
    if o.profile and (o.concurrency or o.trace is not None):
        raise ConfigError("--profile steps the rate of an open loop; it does not go with --concurrency or --trace")
    setup = prepare(o)
    console = Console(stderr=STDOUT in [path for _, path in files])
    outcome = _Run(setup, console).go()
    if o.profile:
        show_steps(console, outcome.steps, max((s.rate_per_s for s in outcome.steps if s.held), default=0.0))
    show_outcome(console, outcome)
    write_result(outcome, o)
    raise typer.Exit(_exit_code(outcome))


bench = command("bench", BenchOptions, _bench)


def _exit_code(outcome: BenchResult) -> int:
    if not outcome.summary.all.ok:
        return EXIT_MISSED
    if outcome.spoilt:
        return EXIT_SPOILT
    return EXIT_MISSED if outcome.passed is False else 0


def _metric_urls(given: Sequence[str], targets: Sequence[str]) -> list[str]:
    if list(given) != ["auto"]:
        return [url if "://" in url else f"http://{url}" for url in given]
    return [url.rstrip("/").removesuffix("/v1") + "/metrics" for url in targets]


class _Run:
    """One call of the command."""

    def __init__(self, setup: Setup, console: Console) -> None:
        self.setup = setup
        self.console = console
        o = setup.options
        self.metric_urls = _metric_urls(o.metrics or [], o.urls)
        self.name = o.name or o.urls[0]
        self.stop = asyncio.Event()

    def go(self) -> BenchResult:
        """Runs it. The first Ctrl-C sends nothing more and waits for answers; the second one ends it at once."""
        import uvloop

        async def main() -> BenchResult:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(self._profile() if self.setup.options.profile else self._once())

            def on_signal() -> None:
                if self.stop.is_set():
                    task.cancel()
                self.stop.set()

            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(signum, on_signal)
            return await task

        try:
            return uvloop.run(main())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _load(self, plan: LoadPlan, title: str) -> tuple[LoadResult, ServerSeries]:
        began: list[float] = []
        o = self.setup.options
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
        if o.prometheus and began:
            asked = await query_prometheus(o.prometheus, began[0], time.time(), o.gpu_query, o.kv_query)
            asked.kv = asked.kv or telemetry.kv
            asked.gpu = asked.gpu or telemetry.gpu
            asked.counts = telemetry.counts
            telemetry = asked
        return result, telemetry

    def _load_text(self, plan: LoadPlan) -> str:
        """The load in words: what was asked for, and what chance made of it."""
        o = self.setup.options
        if o.concurrency:
            return o.load_text()
        due_s = plan.requests[-1].scheduled_s if o.requests_max is not None and len(plan) > 1 else plan.duration_s
        drawn = f"{number(len(plan) / max(due_s, 1e-9))} requests/s"
        asked = number(o.rate_per_s or RATE)
        if o.trace is not None and o.rate_per_s is None:
            return f"{drawn} by the trace"
        return f"{asked} requests/s ({drawn} drawn)" if drawn != f"{asked} requests/s" else drawn

    async def _once(self) -> BenchResult:
        setup, o = self.setup, self.setup.options
        plan = setup.plan()
        how = self._load_text(plan)
        self._announce(plan, how)
        result, telemetry = await self._load(plan, f"{o.urls[0]}  {how}")
        stopped = self.stop.is_set()
        duration_s, due_until_s, records = _measured(setup, plan, result, stopped=stopped)
        warmup_s = setup.warmup_s(duration_s)
        summary = summarise(
            records,
            duration_s=duration_s,
            window_s=min(setup.window_s(duration_s), duration_s),
            warmup_s=warmup_s,
            scenarios=plan.scenarios,
            due_until_s=due_until_s,
        )
        notes = list(setup.notes)
        if stopped:
            notes.append(f"stopped after {duration_s:.1f} s")
        if result.waited:
            notes.append(
                f"{result.waited:,} requests waited for one of {o.inflight_max:,} connections (--inflight-max); "
                "the wait is in their latency"
            )
        return self._outcome(summary, records, result, telemetry.cut(warmup_s, duration_s), notes, how)

    async def _profile(self) -> BenchResult:
        setup, step_s = self.setup, self.setup.options.step_s
        search = KneeSearch(setup.options.rate_per_s or RATE)
        steps: list[RateStep] = []
        kept: tuple[Summary, list[Record], LoadResult, ServerSeries] | None = None
        for count, rate in enumerate(search.rates()):
            plan = setup.plan(rate, step_s, setup.options.seed + count)
            if not count:
                self._announce(plan, f"from {number(rate)} requests/s, {step_s:g} s a step")
            result, telemetry = await self._load(plan, f"step {count + 1}: {number(rate)} requests/s")
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
                f"{number(rate)} requests/s: P50 {seconds(summary.all.ttft.p50)}, P99 {seconds(summary.all.ttft.p99)}, "
                + ("held" if held else why),
                highlight=False,
            )
            if kept is None or (held and rate >= search.held_per_s):
                kept = (summary, result.records, result, telemetry)
        if kept is None:
            raise KeyboardInterrupt
        notes = [*setup.notes, "latencies are those of the highest rate that held"]
        best = max((s.rate_per_s for s in steps if s.held), default=steps[0].rate_per_s)
        return self._outcome(*kept, notes, f"{number(best)} requests/s, of a profile", steps)

    def _announce(self, plan: LoadPlan, how: str) -> None:
        setup = self.setup
        planned = "" if setup.options.concurrency else f"{len(plan):,} requests in {number(plan.duration_s)} s; "
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
        how: str,
        steps: Sequence[RateStep] = (),
    ) -> BenchResult:
        gates, o = self.setup.gates, self.setup.options
        due = [r for r in records if summary.warmup_s <= r.scheduled_s < summary.duration_s]
        figures = telemetry.figures()
        cost = None
        if o.cost_per_hour and summary.requests_per_s:
            cost = o.cost_per_hour / 3600.0 / summary.requests_per_s * 1000.0
            figures["cost_per_1000"] = cost
        measured_s = max(summary.duration_s - summary.warmup_s, 1e-9)
        facts = {
            "endpoint": ", ".join(o.urls),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "workload": str(o.trace or o.workload),
            "load": f"closed loop, {o.concurrency} at once" if o.concurrency else f"open loop, {o.arrivals.value}",
            "rate": how,
            "seed": o.seed,
            "stream": o.stream,
            "duration": f"{number(summary.duration_s)} s, the first {summary.warmup_s:g} s left out",
            "prompt lengths": self.setup.lengths.how,
            "load processes": self.setup.processes,
        }
        if not summary.all.ok:
            notes = [*notes, "there was not one good answer: this run has failed"]
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


def _measured(
    setup: Setup, plan: LoadPlan, result: LoadResult, *, stopped: bool
) -> tuple[float, float | None, list[Record]]:
    """End of the measured time, end of the time in which requests were due (None: the same), and the records.

    Where a number of requests was asked for, the time ends with the last of their answers; after a stop, only what was
    sent counts.
    """
    if stopped:
        sent = [r for r in result.records if r.sent_s is not None]
        end = max((r.scheduled_s for r in sent), default=0.0) + 1e-6
        return max(min(end, plan.duration_s), 1e-3), None, sent
    if not setup.by_number(plan, result.records):
        return plan.duration_s, None, result.records
    ends = [at for r in result.records for at in (r.scheduled_s, r.last_s) if at is not None]
    end = max(ends, default=0.0) + 1e-6
    return max(end, 1e-3), None if setup.options.concurrency else min(end, plan.duration_s), result.records
