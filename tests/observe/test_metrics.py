"""Counting is right, the text is valid, and both are cheap."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.programs import program

from exaserve.domain.request import Outcome, Usage
from exaserve.observe import Family, GatewayMetrics, Histogram, labels
from exaserve.observe.exposition import number


def read(metrics: GatewayMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for one in text_string_to_metric_families(text)
        for sample in one.samples
    }


def test_whole_numbers_read_alike_in_both_forms():
    """A compiled function makes a float of the count that it is handed."""
    values = (0, 0.0, 12.0, 0.5, 1e300, float("inf"), float("nan"))
    assert [number(value) for value in values] == ["0", "0", "12", "0.5", "1e+300", "+Inf", "NaN"]


def test_a_request_is_counted_once_everywhere():
    metrics = GatewayMetrics(process=False)
    metrics.started()
    metrics.streams(1)
    assert (metrics.in_flight, metrics.streams_open) == (1, 1)
    metrics.streams(-1)
    metrics.finished("m", "r1", 200, True, Outcome.COMPLETED, 0.85, 3.0, Usage(10, 20, 4), "/v1/completions")
    samples = read(metrics)
    key = (("model", "m"), ("outcome", "completed"), ("replica", "r1"), ("status", "200"), ("stream", "true"))
    assert samples["exaserve_requests_total", key] == 1
    assert samples["exaserve_ttft_seconds_bucket", (("le", "0.85"), ("model", "m"))] == 1
    assert samples["exaserve_ttft_seconds_bucket", (("le", "0.5"), ("model", "m"))] == 0
    assert samples["exaserve_request_duration_seconds_sum", (("model", "m"), ("route", "/v1/completions"))] == 3.0
    assert samples["exaserve_prompt_tokens_total", (("model", "m"),)] == 10
    assert samples["exaserve_completion_tokens_total", (("model", "m"),)] == 20
    assert samples["exaserve_requests_in_flight", ()] == 0
    assert metrics.requests_by_replica() == {"r1": 1}
    metrics.validate()


def test_the_rest_is_counted_by_reason():
    metrics = GatewayMetrics(process=False)
    metrics.retried("r1", "connect")
    metrics.refused("queue_full")
    metrics.client_error("bad_framing")
    metrics.queued(3)
    metrics.queue_wait(0.02)
    samples = read(metrics)
    assert samples["exaserve_retries_total", (("replica", "r1"), ("why", "connect"))] == 1
    assert samples["exaserve_refusals_total", (("why", "queue_full"),)] == 1
    assert samples["exaserve_client_errors_total", (("code", "bad_framing"),)] == 1
    assert samples["exaserve_queue_depth", ()] == 3
    assert samples["exaserve_queue_wait_seconds_bucket", (("le", "0.02"),)] == 1


def test_sources_are_asked_on_every_scrape():
    metrics = GatewayMetrics(process=False)
    asked = []

    def source(_nodes: object) -> list[Family]:
        asked.append(1)
        one = Family("exaserve_replica_up", "gauge", "x")
        one.add(float(len(asked)), labels(replica="r1"))
        return [one]

    metrics.add_source(source)
    read(metrics)
    assert read(metrics)["exaserve_replica_up", (("replica", "r1"),)] == 2


def test_a_large_fleet_is_told_by_node_and_a_counter_stays_with_the_node_of_a_replica_that_left():
    metrics = GatewayMetrics(process=False)
    for replica in ("n1/r0", "n1/r1", "n2/r0"):
        metrics.started()
        metrics.finished("m", replica, 200, True, Outcome.COMPLETED, 0.5, 1.0, None)
        metrics.retried(replica, "connect")
    nodes = {"n1/r0": "n1", "n1/r1": "n1", "n2/r0": "n2"}
    metrics.nodes = lambda: nodes
    for _ in range(2):
        samples = read(metrics)
        result = (("model", "m"), ("node", "n1"), ("outcome", "completed"), ("status", "200"), ("stream", "true"))
        assert samples["exaserve_requests_total", tuple(sorted(result))] == 2
        assert samples["exaserve_replica_first_bytes_total", (("model", "m"), ("node", "n2"))] == 1
        assert not any(("replica", "n1/r0") in sample for _, sample in samples)
        nodes = {"n2/r0": "n2"}
    assert read(metrics)["exaserve_ttft_seconds_count", (("model", "m"),)] == 3


def test_an_exposition_comes_in_pieces_that_are_the_whole():
    metrics = GatewayMetrics(process=False)
    for index in range(2000):
        metrics.started()
        metrics.finished("m", f"r{index}", 200, True, Outcome.COMPLETED, 0.5, 1.0, None)
    pieces = list(metrics.pieces(None))
    assert b"".join(pieces) == metrics.render()
    assert max(piece.count(b"\n") for piece in pieces) <= 502


def test_cardinality_is_bounded():
    metrics = GatewayMetrics(series_max=3, process=False)
    for index in range(50):
        metrics.started()
        metrics.finished(f"m{index}", "r", 200, False, Outcome.COMPLETED, None, 0.1, None)
    counted = metrics.requests_by_replica()
    assert sum(counted.values()) == 50
    assert counted["other"] == 47


@given(st.text(max_size=30))
def test_any_label_value_survives(value):
    metrics = GatewayMetrics(process=False)
    metrics.started()
    metrics.finished(value, "r", 200, False, Outcome.COMPLETED, None, 0.1, None)
    expected = value.encode("utf-8", "replace").decode()
    text = metrics.render().decode()
    found = [s.labels["model"] for f in text_string_to_metric_families(text) for s in f.samples if "model" in s.labels]
    if "\r" not in value and all(char.isprintable() or char == "\n" for char in value):
        assert set(found) == {expected}


@given(st.lists(st.floats(0, 100), max_size=50))
def test_histogram_buckets_are_cumulative_and_sum_up(seen):
    histogram = Histogram((0.5, 1.0, 10.0))
    for value in seen:
        histogram.observe(value)
    one = Family("h", "histogram", "x")
    histogram.render(one)
    buckets = [value for suffix, _, value in one.samples if suffix == "_bucket"]
    assert buckets == [sum(value <= bound for value in seen) for bound in (0.5, 1.0, 10.0)] + [len(seen)]


@pytest.mark.may_block
def test_promtool_has_nothing_to_say():
    promtool = program("promtool")
    metrics = GatewayMetrics()
    metrics.started()
    metrics.finished("m", "r1", 200, True, Outcome.COMPLETED, 0.2, 1.0, Usage(1, 2))
    metrics.retried("r1", "connect")
    metrics.refused("queue_full")
    metrics.client_error("bad_framing")
    checked = subprocess.run([promtool, "check", "metrics"], input=metrics.render(), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
