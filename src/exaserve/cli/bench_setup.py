"""From the options of ``exaserve bench`` to a plan and a configured client."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from exaserve.bench import LoadConfig
from exaserve.bench.load import UNTIL_ANSWERED_S
from exaserve.bench.record import Record
from exaserve.bench.slo import Gate, parse_gate, parse_objectives, reference_gates, unknown_scenarios
from exaserve.bench.tokens import Lengths, ServerTokenizer, local_counter, measure_lengths
from exaserve.cli.bench_options import BenchOptions
from exaserve.domain.errors import ConfigError
from exaserve.workload import (
    MIXES,
    Arrivals,
    BodyRenderer,
    Conversations,
    LoadPlan,
    Mix,
    OutputLengths,
    Sessions,
    TraceRow,
    make_plan,
    parse_mix,
    plan_from_rows,
    read_rows,
)

__all__ = ["RATE", "Setup", "prepare"]

MODELS_TIMEOUT_S = 10.0
RATE = 10.0
DURATION_S = 60.0
CLOSED_PLAN_MAX = 2_000
"""Requests drawn for a closed loop; it begins again with new heads when they are used up."""
RATE_PER_PROCESS = 2_500.0
"""A load process does several times this; so it is never late because it is busy."""
STREAMS_PER_PROCESS = 3_000
LENGTHS_CHECKED_MAX = 8
OUTPUT_TOKENS = 256


@dataclass
class Setup:
    """A run that is ready to begin."""

    options: BenchOptions
    config: LoadConfig
    processes: int
    lengths: Lengths
    gates: list[Gate]
    notes: list[str] = field(default_factory=list)
    mix: Mix | None = None
    rows: list[TraceRow] = field(default_factory=list)
    auth: dict[str, str] = field(default_factory=dict)

    def plan(
        self, rate_per_s: float | None = None, duration_s: float | None = None, seed: int | None = None
    ) -> LoadPlan:
        """The requests; ``--profile`` gives each step its own rate and seed."""
        o = self.options
        seed = o.seed if seed is None else seed
        rate = rate_per_s if rate_per_s is not None else o.rate_per_s
        length = duration_s if duration_s is not None else o.duration_s
        if o.concurrency:
            by_number = length is None and o.requests_max is not None
            return self._closed_plan(UNTIL_ANSWERED_S if by_number else length or DURATION_S, seed)
        if self.rows:
            timed = rate is None and self.rows[0].at_s is not None
            arrivals = None if timed else self._arrivals(rate or RATE, length or self._time_for(rate or RATE))
            return plan_from_rows(
                self.rows,
                seed,
                speed=o.trace_speed,
                duration_s=length,
                requests_max=o.requests_max,
                arrivals=arrivals,
            )
        assert self.mix is not None
        plan = make_plan(
            self.mix, self._arrivals(rate or RATE, length or self._time_for(rate or RATE)), seed, **self._sessions()
        )
        if o.requests_max is not None:
            kept = plan.requests[: o.requests_max]
            plan = LoadPlan(
                kept, min(plan.duration_s, kept[-1].scheduled_s + 1e-6) if kept else 1.0, seed, plan.scenarios
            )
        return plan

    def _time_for(self, rate_per_s: float) -> float:
        """Long enough for ``--requests``; the plan is cut there."""
        wanted = self.options.requests_max
        if wanted is None or self.options.arrivals in ("ramp", "day"):
            return DURATION_S
        return (wanted + 10.0 * math.sqrt(wanted * self.options.burst_mean) + 10.0) / rate_per_s

    def by_number(self, plan: LoadPlan, records: Sequence[Record]) -> bool:
        """Whether a number of requests was measured, not a time: each of them counts, to the end of the last answer."""
        o = self.options
        if o.requests_max is not None:
            return (len(records) if o.concurrency else len(plan)) >= o.requests_max
        return bool(self.rows) and o.duration_s is None and o.rate_per_s is None and not o.concurrency

    def _arrivals(self, rate: float, duration_s: float) -> Arrivals:
        o = self.options
        if o.arrivals == "ramp" and o.end_rate_per_s <= 0.0:
            raise ConfigError("--arrivals ramp needs --end-rate", param="end_rate")
        return Arrivals(rate, duration_s, o.arrivals.value, o.end_rate_per_s, o.burst_mean)

    def _sessions(self) -> dict[str, Any]:
        o = self.options
        if o.turns > 1.0:
            return {
                "conversations": Conversations(
                    o.turns, o.question_tokens, o.think_s, prompt_tokens_max=_longest(self.mix) * 4
                )
            }
        if o.sessions or o.cache_hit:
            return {"sessions": Sessions(o.sessions or 16, o.cache_hit or 0.5)}
        return {}

    def _closed_plan(self, duration_s: float, seed: int) -> LoadPlan:
        count = min(self.options.requests_max or CLOSED_PLAN_MAX, CLOSED_PLAN_MAX)
        arrivals = Arrivals(float(count), 1.0, "constant")
        if self.rows:
            plan = plan_from_rows(self.rows, seed, arrivals=arrivals)
        else:
            assert self.mix is not None
            plan = make_plan(self.mix, arrivals, seed, **self._sessions())
        return LoadPlan(plan.requests, duration_s, seed, plan.scenarios)

    def warmup_s(self, duration_s: float) -> float:
        given = self.options.warmup_s
        if given is not None:
            return min(given, duration_s)
        if self.options.requests_max is not None:
            return 0.0
        return min(10.0, duration_s / 10.0) if duration_s >= 10.0 else 0.0

    def window_s(self, duration_s: float) -> float:
        return self.options.window_s or min(60.0, max(0.5, duration_s / 20.0))


def _longest(mix: Mix | None) -> int:
    assert mix is not None
    return max((s.prompt.tokens_max if s.prompt else s.prompt_tokens) for s in mix.scenarios)


def prepare(o: BenchOptions) -> Setup:
    """Everything that can be wrong is found here, before the first request.

    Raises:
        ConfigError: an option, a file or the endpoint is not as it should be.
    """
    _check(o)
    headers, auth = _headers(o)
    mix: Mix | None = None
    rows: list[TraceRow] = []
    notes: list[str] = []
    if o.trace is not None:
        rows, skipped = _read_trace(o.trace, OUTPUT_TOKENS if o.output_tokens is None else o.output_tokens)
        if skipped:
            notes.append(f"{skipped:,} lines of the trace asked or answered nothing and were left out")
        if o.path == "/v1/completions" and any(row.content.startswith("[") for row in rows):
            raise ConfigError(f"{o.trace} has messages, which --api completions does not take")
        if any(row.content for row in rows):
            notes.append("prompts are the file's own; their lengths are estimated, and repeated ones meet the cache")
    else:
        mix = _with_answers(_mix(o.workload), o.output_tokens)
    names = [s.name for s in mix.scenarios] if mix else list(dict.fromkeys(row.scenario for row in rows))
    gates = _gates(o.slo or (), names)
    model = o.model or _first_model(o, auth)
    lengths, why = _lengths(o, model, auth, mix, rows)
    if why:
        notes.append(why)
    secure = any(url.startswith("https:") for url in o.urls)
    exact = (not secure) if o.ignore_eos is None else o.ignore_eos
    try:
        renderer = BodyRenderer(
            model,
            stream=o.stream,
            path=o.path,
            overhead_tokens=lengths.overhead_tokens,
            exact_output=exact,
            words=lengths.words,
            extra=_extra(o.extra),
            output_field=o.output_field,
        )
        config = LoadConfig(
            urls=o.urls,
            renderer=renderer,
            inflight_max=o.inflight_max,
            request_timeout_s=o.timeout_s,
            drain_s=o.drain_s,
            headers=headers,
            concurrency=o.concurrency,
            requests_max=o.requests_max,
            tls_verify=not o.insecure,
            ca_file=str(o.ca_file or ""),
        )
        setup = Setup(o, config, 1, lengths, gates, notes, mix, rows, auth)
        plan = setup.plan()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not exact:
        notes.append("answers end where the model ends them; their lengths are limits")
    setup.processes = _processes(o, plan)
    return setup


def _check(o: BenchOptions) -> None:
    for name, value in (("--rate", o.rate_per_s), ("--duration", o.duration_s), ("--window", o.window_s)):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise ConfigError(f"{name} must be above 0, not {value:g}")
    for name, number in (("--concurrency", o.concurrency), ("--sessions", o.sessions)):
        if number < 0:
            raise ConfigError(f"{name} must be 0 or more, not {number}")
    for name, limit in (("--requests", o.requests_max), ("--output-tokens", o.output_tokens)):
        if limit is not None and limit < 1:
            raise ConfigError(f"{name} must be 1 or more, not {limit}")
    length = o.duration_s or (DURATION_S if o.requests_max is None and o.trace is None else math.inf)
    if o.warmup_s is not None and not 0.0 <= o.warmup_s < length:
        raise ConfigError(f"--warmup {o.warmup_s:g} must leave something of the {length:g} s to measure")
    if o.concurrency and o.rate_per_s is not None:
        raise ConfigError("--rate (open loop) and --concurrency (closed loop) exclude each other")
    if o.turns > 1.0 and (o.sessions or o.cache_hit or o.concurrency):
        raise ConfigError("--turns excludes --sessions, --cache-hit and --concurrency")
    if not 0.0 <= o.cache_hit <= 1.0:
        raise ConfigError("--cache-hit is a share, 0..1")
    if o.trace is not None and (o.turns > 1.0 or o.sessions or o.cache_hit):
        raise ConfigError("a trace has its own sessions: --turns, --sessions and --cache-hit do not go with --trace")


def _gates(texts: Sequence[str], scenarios: Sequence[str]) -> list[Gate]:
    gates: list[Gate] = []
    for text in texts:
        if text.lower() == "reference":
            gates += reference_gates(scenarios)
        elif "<" in text or ">" in text:
            gates.append(parse_gate(text))
        else:
            gates += parse_objectives(_yaml(Path(text)), text)
    if unknown := unknown_scenarios(gates, scenarios):
        raise ConfigError(
            f"--slo: {unknown[0]!r} is no scenario of this run: it has {', '.join(scenarios)}", param="slo"
        )
    return gates


def _with_answers(mix: Mix, output_tokens: int | None) -> Mix:
    """The mix, with answers of one length where ``--output-tokens`` gives it."""
    if output_tokens is None:
        return mix
    lengths = OutputLengths("fixed", float(output_tokens), tokens_max=output_tokens)
    return Mix(tuple((replace(scenario, output=lengths), share) for scenario, share in mix.parts))


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _mix(name: str) -> Mix:
    if name in MIXES:
        return MIXES[name]
    if Path(name).suffix in (".yaml", ".yml", ".json") or Path(name).exists():
        return parse_mix(_yaml(Path(name)), name)
    raise ConfigError(f"--workload: {name!r} is not one of {', '.join(MIXES)}, nor a YAML file")


def _read_trace(path: Path, output_tokens: int) -> tuple[list[TraceRow], int]:
    try:
        with path.open(encoding="utf-8") as file:
            return read_rows(file, output_tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def _extra(text: str) -> dict[str, object] | None:
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--extra must be a JSON object")
    return value


def _headers(o: BenchOptions) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    headers = []
    for text in o.headers or ():
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"--header {text!r} must look like 'name: value'")
        headers.append((name.strip().lower(), value.strip()))
    if o.api_key:
        headers.append(("authorization", f"Bearer {o.api_key}"))
    return tuple(headers), dict(headers)


def _first_model(o: BenchOptions, auth: dict[str, str]) -> str:
    url = o.urls[0].rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        response = httpx.get(url, headers=auth, timeout=MODELS_TIMEOUT_S, verify=_verify(o))
        response.raise_for_status()
        models = [str(each["id"]) for each in response.json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{url}: {str(error) or type(error).__name__}; is the endpoint up? (--model skips this)"
        ) from None
    if not models:
        raise ConfigError(f"{url} lists no model; name one with --model")
    return models[0]


def _verify(o: BenchOptions) -> Any:
    if o.insecure:
        return False
    if o.ca_file is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=str(o.ca_file))
    except OSError as error:
        raise ConfigError(f"--ca-file {o.ca_file}: {error}") from None


def _lengths(
    o: BenchOptions, model: str, auth: dict[str, str], mix: Mix | None, rows: Sequence[TraceRow]
) -> tuple[Lengths, str]:
    """How prompts get their length, and what to say where it is only an estimate."""
    estimate = Lengths(None, 0, None, "estimated: four bytes a token")
    if o.tokenizer == "estimate" or (rows and any(row.content for row in rows)):
        return estimate, ""
    wanted = [s.prompt_tokens for s in mix.scenarios] if mix else sorted({row.prompt_tokens for row in rows})
    wanted = wanted[:: max(1, len(wanted) // LENGTHS_CHECKED_MAX)]
    if o.tokenizer not in ("auto", "server"):
        found = measure_lengths(local_counter(o.tokenizer), wanted, o.path, source=Path(o.tokenizer).name)
        return found, _inexact(found)
    server = ServerTokenizer(o.urls[0], model, auth, verify=_verify(o))
    try:
        found = measure_lengths(server.count, wanted, o.path, server.count_chat)
        return found, _inexact(found)
    except ConfigError as error:
        if o.tokenizer == "server":
            raise
        return estimate, f"prompt lengths are estimated at four bytes a token: {error.message}"
    finally:
        server.close()


def _inexact(lengths: Lengths) -> str:
    return "" if lengths.error_tokens == 0 and ";" not in lengths.how else f"prompt lengths {lengths.how}"


def _processes(o: BenchOptions, plan: LoadPlan) -> int:
    if o.processes is not None:
        return max(0, o.processes)
    rate = len(plan) / max(plan.duration_s, 1e-9)
    wanted = max(math.ceil(rate / RATE_PER_PROCESS), math.ceil(o.concurrency / STREAMS_PER_PROCESS), 1)
    return min(wanted, max(1, (os.cpu_count() or 1)))
