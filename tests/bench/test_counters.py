"""Counters of failures that a gateway tells: by how much they grew, and what is not told is not 0."""

from __future__ import annotations

from exaserve.bench.telemetry import MetricsWatch


def test_growth_is_counted_over_addresses_and_restarts() -> None:
    watch = MetricsWatch(["http://a/metrics", "http://b/metrics"])

    def look(url: str, *lines: str) -> dict[str, float]:
        watch._count(url, "".join(f"{line}\n" for line in lines).encode())
        return dict(watch.telemetry.counts)

    exits = 'exaserve_engine_exits_total{{replica="r0",cause="{}"}} {}'
    failures = 'exaserve_discovery_failures_total{{source="consul"}} {}'
    assert look("http://a/metrics", "other_total 5") == {}
    assert look("http://a/metrics", failures.format(7)) == {"discovery_failures": 0.0}
    assert look("http://b/metrics", failures.format(1)) == {"discovery_failures": 0.0}
    assert look("http://a/metrics", failures.format(9)) == {"discovery_failures": 2.0}
    assert look("http://b/metrics", failures.format(0)) == {"discovery_failures": 2.0}, "a process that began anew"
    assert look("http://b/metrics", failures.format(3)) == {"discovery_failures": 5.0}
    look("http://a/metrics", exits.format("out of accelerator memory", 0), exits.format("NCCL", 1))
    found = look("http://a/metrics", exits.format("out of accelerator memory", 2), exits.format("NCCL", 1))
    assert (found["out_of_memory"], found["nccl_failures"]) == (2.0, 0.0)
    assert watch.telemetry.figures()["discovery_failures"] == 5.0
