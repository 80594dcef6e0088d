# compiled
"""The gateway's own metrics. On the request path only plain ints and lists change; text is made when someone scrapes.

Cardinality is bounded: per-replica series carry counters only, histograms are per model, above ``series_max`` pairs of
model and replica the rest shares one series named ``other``, and a large fleet is told by node: whoever has a series
for each replica otherwise has one for each node then, with the label ``node`` in place of ``replica``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from exaserve.domain.request import Outcome, Usage
from exaserve.observe.exposition import Family, Histogram, labels

__all__ = ["DURATION_BUCKETS_S", "QUEUE_BUCKETS_S", "TTFT_BUCKETS_S", "GatewayMetrics"]

TTFT_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.85, 1.2, 1.6, 2.2, 3.0, 4.0, 5.5, 8.0, 12.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""Bounds hold the service levels of the benchmark scenarios exactly: 0.85, 2.2 and 5.5 s."""
DURATION_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
MetricSource = Callable[[Mapping[str, str] | None], Iterable[Family | None]]
"""Families that others keep: by replica, or by node where replicas' nodes are given. None is a good place to pause."""
_PIECE_LINES = 500
_PIECE_PAIRS = 256
QUEUE_BUCKETS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)


class _ModelCell:
    """What is kept per model."""

    __slots__ = ("cached_tokens", "completion_tokens", "durations", "prompt_tokens", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.durations: dict[str, Histogram] = {}
        """By route: tokenizing takes milliseconds, generating minutes."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0


class _PairCell:
    """What is kept per model and replica."""

    __slots__ = ("model", "node", "results", "ttft_count", "ttft_sum")

    def __init__(self, model: _ModelCell) -> None:
        self.model = model
        self.node = ""
        """Where the replica was last known to be: a counter must not change nodes when its replica has left."""
        self.results: dict[str, int] = {}
        """``outcome,status,stream`` → requests."""
        self.ttft_sum = 0.0
        self.ttft_count = 0


class GatewayMetrics:
    """Counters of one gateway process; see the contract of each method for who calls it and how often.

    Args:
        series_max: pairs of model and replica that get series of their own.
        process: whether CPU, memory and collector figures of this process are added.
    """

    def __init__(self, series_max: int = 20_000, *, process: bool = True) -> None:
        self._series_max = series_max
        self._pairs: dict[str, dict[str, _PairCell]] = {}
        self._pair_count = 0
        self._models: dict[str, _ModelCell] = {}
        self._started = 0
        self._finished = 0
        self._streams = 0
        self._queue_depth = 0
        self._queue_wait = Histogram(QUEUE_BUCKETS_S)
        self._retries: dict[tuple[str, str], int] = {}
        self._refusals: dict[str, int] = {}
        self._client_errors: dict[str, int] = {}
        self._sources: list[MetricSource] = []
        self.nodes: Callable[[], Mapping[str, str] | None] = _by_replica
        """Asked at each scrape: the replicas' nodes where figures are by node, None where they are by replica."""
        self._registry: CollectorRegistry | None = None
        if process:
            self._registry = CollectorRegistry()
            ProcessCollector(registry=self._registry)
            GCCollector(registry=self._registry)

    # ---- request path -------------------------------------------------------------------------------------------
    def started(self) -> None:
        """A client's request has been read and will end in exactly one :meth:`finished`."""
        self._started += 1

    def finished(
        self,
        model: str,
        replica: str,
        status: int,
        stream: bool,
        outcome: Outcome,
        ttft_s: float | None,
        duration_s: float,
        usage: Usage | None,
        route: str = "",
    ) -> None:
        """The end of what :meth:`started` began.

        Args:
            model: pool the request was for, "" where it never got that far.
            replica: id of the replica that answered, "" where none did.
            status: HTTP status the client saw, 0 where it saw none.
            ttft_s: request read to first response byte, seconds; None where there was none.
            duration_s: request read to end of the answer, seconds.
            route: its path as the gateway lists it: one of a few.
        """
        self._finished += 1
        try:
            cell = self._pairs[model][replica]
        except KeyError:
            cell = self._new_pair(model, replica)
        key = _RESULT_KEYS.get((outcome._value_, status, stream)) or _result_key(outcome, status, stream)
        results = cell.results
        results[key] = results.get(key, 0) + 1
        per_model = cell.model
        if ttft_s is not None:
            histogram = per_model.ttft
            histogram.counts[bisect_left(TTFT_BUCKETS_S, ttft_s)] += 1
            histogram.total += ttft_s
            cell.ttft_sum += ttft_s
            cell.ttft_count += 1
        durations = per_model.durations
        histogram = (
            durations[route] if route in durations else durations.setdefault(route, Histogram(DURATION_BUCKETS_S))
        )
        histogram.counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        histogram.total += duration_s
        if usage is not None:
            per_model.prompt_tokens += usage.prompt_tokens
            per_model.completion_tokens += usage.completion_tokens
            per_model.cached_tokens += usage.cached_tokens

    def streams(self, delta: int) -> None:
        """+1 when an event stream opens to a client, -1 when it ends."""
        self._streams += delta

    def retried(self, replica: str, why: str) -> None:
        """The request failed on ``replica`` before its first byte and is tried elsewhere."""
        key = (replica, why)
        self._retries[key] = self._retries.get(key, 0) + 1

    def refused(self, why: str) -> None:
        """A request got 429 or 503 from the gateway itself; ``why`` is the error's code."""
        self._refusals[why] = self._refusals.get(why, 0) + 1

    def client_error(self, code: str) -> None:
        """A request was the client's fault; ``code`` is from the error tree, so its values are few."""
        self._client_errors[code] = self._client_errors.get(code, 0) + 1

    def queued(self, depth: int) -> None:
        """The admission queue now holds ``depth`` requests."""
        self._queue_depth = depth

    def queue_wait(self, s: float) -> None:
        """One request waited ``s`` seconds for admission, whatever became of it."""
        self._queue_wait.observe(s)

    # ---- the rest -----------------------------------------------------------------------------------------------
    @property
    def in_flight(self) -> int:
        return self._started - self._finished

    @property
    def streams_open(self) -> int:
        return self._streams

    @property
    def finished_total(self) -> int:
        return self._finished

    def add_source(self, source: MetricSource) -> None:
        """``source`` is asked on every scrape for gauges that others keep (replicas, telemetry, health)."""
        self._sources.append(source)

    def requests_by_replica(self) -> dict[str, int]:
        """Requests finished so far, per replica id, over all models."""
        totals: dict[str, int] = {}
        for replicas in self._pairs.values():
            for replica, cell in replicas.items():
                totals[replica] = totals.get(replica, 0) + sum(cell.results.values())
        return totals

    def _new_pair(self, model: str, replica: str) -> _PairCell:
        if self._pair_count >= self._series_max:
            model = replica = "other"
            if (cell := self._pairs.get(model, {}).get(replica)) is not None:
                return cell
        per_model = self._models.setdefault(model, _ModelCell())
        cell = self._pairs.setdefault(model, {})[replica] = _PairCell(per_model)
        self._pair_count += 1
        return cell

    def validate(self) -> None:
        """Asserts that nothing finished twice and that no gauge is below zero."""
        assert self._finished <= self._started, (self._finished, self._started)
        assert self._streams >= 0, self._streams
        assert self._queue_depth >= 0, self._queue_depth

    def render(self) -> bytes:
        """The whole exposition, ``text/plain; version=0.0.4``."""
        return b"".join(self.pieces(self.nodes()))

    def pieces(self, nodes: Mapping[str, str] | None) -> Iterator[bytes]:
        """The exposition in pieces of about a millisecond, some of them empty: between them others may run."""
        for source in (self._pair_families, self._request_families, *self._sources):
            for family in source(nodes):
                lines: list[str] = []
                if family is not None:
                    for line in family.lines():
                        lines.append(line)
                        if len(lines) == _PIECE_LINES:
                            yield "".join(lines).encode()
                            lines = []
                yield "".join(lines).encode()
        if self._registry is not None:
            yield generate_latest(self._registry)

    def _pair_families(self, nodes: Mapping[str, str] | None) -> Iterator[Family | None]:
        requests = Family("exaserve_requests_total", "counter", "Requests ended, by model, replica and result.")
        ttft_sum = Family("exaserve_replica_ttft_seconds_total", "counter", "Seconds to first byte, summed.")
        ttft_count = Family("exaserve_replica_first_bytes_total", "counter", "Answers that had a first byte.")
        passed = 0
        for model, replicas in list(self._pairs.items()):
            for replica, cell in list(replicas.items()):
                passed += 1
                if passed % _PIECE_PAIRS == 0:
                    yield None
                if nodes is None or not replica:
                    head = labels(model=model, replica=replica)
                else:
                    cell.node = nodes.get(replica, cell.node)
                    head = labels(model=model, node=cell.node)
                for key, count in cell.results.items():
                    requests.sum(count, f"{head[:-1]},{key}}}")
                if replica:
                    ttft_sum.sum(cell.ttft_sum, head)
                    ttft_count.sum(cell.ttft_count, head)
        yield requests
        yield ttft_sum
        yield ttft_count

    def _request_families(self, nodes: Mapping[str, str] | None) -> list[Family | None]:
        ttft = Family("exaserve_ttft_seconds", "histogram", "Request read to first response byte, seconds.")
        duration = Family("exaserve_request_duration_seconds", "histogram", "Request read to end of answer, seconds.")
        prompt = Family("exaserve_prompt_tokens_total", "counter", "Prompt tokens, as engines reported them.")
        output = Family("exaserve_completion_tokens_total", "counter", "Generated tokens, as engines reported them.")
        cached = Family("exaserve_cached_tokens_total", "counter", "Prompt tokens that engines took from a cache.")
        for model, per_model in self._models.items():
            per_model.ttft.render(ttft, model=model)
            for route, histogram in per_model.durations.items():
                histogram.render(duration, model=model, route=route)
            head = labels(model=model)
            prompt.add(per_model.prompt_tokens, head)
            output.add(per_model.completion_tokens, head)
            cached.add(per_model.cached_tokens, head)
        retries = Family("exaserve_retries_total", "counter", "Requests moved off a replica before their first byte.")
        for (replica, why), count in self._retries.items():
            if nodes is None:
                retries.sum(count, labels(replica=replica, why=why))
            else:
                retries.sum(count, labels(node=nodes.get(replica, ""), why=why))
        return [ttft, duration, prompt, output, cached, retries, *self._scalar_families()]

    def _scalar_families(self) -> list[Family]:
        in_flight = Family("exaserve_requests_in_flight", "gauge", "Requests read and not yet ended.")
        in_flight.add(self.in_flight)
        streams = Family("exaserve_streams_open", "gauge", "Event streams open to clients.")
        streams.add(self._streams)
        depth = Family("exaserve_queue_depth", "gauge", "Requests in the admission queue.")
        depth.add(self._queue_depth)
        wait = Family("exaserve_queue_wait_seconds", "histogram", "Time in the admission queue, seconds.")
        self._queue_wait.render(wait)
        refusals = Family("exaserve_refusals_total", "counter", "Requests refused by the gateway for want of capacity.")
        for why, count in self._refusals.items():
            refusals.add(count, labels(why=why))
        errors = Family("exaserve_client_errors_total", "counter", "Requests that were the client's fault.")
        for code, count in self._client_errors.items():
            errors.add(count, labels(code=code))
        return [in_flight, streams, depth, wait, refusals, errors]


def _by_replica() -> Mapping[str, str] | None:
    return None


_RESULT_KEYS: dict[tuple[str, int, bool], str] = {
    (outcome.value, status, stream): labels(outcome=outcome.value, status=str(status), stream=str(stream).lower())[1:-1]
    for outcome in Outcome
    for status in (0, 200, 400, 404, 429, 500, 502, 503, 504)
    for stream in (False, True)
}
"""Label text of the usual results, made once; the rest is made as it comes (statuses are at most three digits)."""


def _result_key(outcome: Outcome, status: int, stream: bool) -> str:
    return labels(outcome=outcome.value, status=str(status), stream=str(stream).lower())[1:-1]
