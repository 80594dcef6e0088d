"""Reports arrive on time, dated rightly, and one hung replica delays nobody."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from random import Random

import pytest
from tests.engines.shapes import LLAMACPP, TRTLLM, vllm_now
from tests.gateway.fake_engine import FakeEngine

from exaserve.config import TelemetrySettings
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.health import HealthConfig
from exaserve.observe import EventLog
from exaserve.scheduling import Scheduler, SchedulerConfig
from exaserve.serving.fleet import Fleet
from exaserve.serving.member import ChangeKind

SETTINGS = TelemetrySettings(interval_s=0.05, timeout_s=60.0)
HASTY = TelemetrySettings(interval_s=0.05, timeout_s=0.3)


class Watched:
    """Telemetry over some engines, with what it logged."""

    def __init__(self, *engines: FakeEngine, engine: str = "auto", settings: TelemetrySettings = SETTINGS) -> None:
        self.lines: list[str] = []
        self.reports = 0
        self.scheduler = Scheduler(SchedulerConfig(), Random(0))
        self.fleet = Fleet(self.scheduler, HealthConfig(), lambda: None)
        self.telemetry = Telemetry(settings, self.fleet, EventLog(self.lines.append, burst_max=1000), self._reported)
        for index, one in enumerate(engines):
            spec = ReplicaSpec(ReplicaId(f"r{index}"), one.url, models=("m",), engine=engine)
            self.fleet.add(spec, time.monotonic())
            self.telemetry.add(spec)

    def _reported(self) -> None:
        self.reports += 1

    def report(self, index: int):
        return self.scheduler.states()[ReplicaId(f"r{index}")].seen.report

    def view(self, index: int):
        return self.telemetry.view(ReplicaId(f"r{index}"))

    async def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, self.lines
            await asyncio.sleep(0.01)

    def events(self) -> list[str]:
        return [line.split("event=")[1].split(" ")[0] for line in self.lines]


async def test_reports_arrive_and_are_dated_to_the_poll():
    async with FakeEngine(running=3, waiting=2, kv=0.25) as engine:
        watched = Watched(engine)
        began = time.monotonic()
        watched.telemetry.start()
        await watched.until(lambda: watched.reports >= 4)
        report = watched.report(0)
        assert (report.running, report.waiting, report.kv_use, report.kv_tokens_max) == (3, 2, 0.25, 16000)
        assert began <= report.taken_at <= time.monotonic()
        assert report.seq >= 4
        assert watched.view(0).engine == "vllm"
        assert engine.connections == 1, "keep-alive"
        watched.telemetry.stop()
        assert watched.lines == []


async def test_a_hung_replica_delays_nobody():
    async with FakeEngine() as hung, FakeEngine() as well:
        hung.answers["/metrics"] = "hang"
        watched = Watched(hung, well)
        watched.telemetry.start()
        await watched.until(lambda: hung.asked["/metrics"] and watched.view(1).polls >= 8)
        assert watched.view(0).failures == 0, "it still hangs"
        assert watched.report(0) is None
        watched.telemetry.stop()


async def test_a_hung_replica_is_given_up_in_time():
    async with FakeEngine() as hung:
        hung.answers["/metrics"] = "hang"
        watched = Watched(hung, settings=HASTY)
        watched.telemetry.start()
        await watched.until(lambda: watched.view(0).failures >= 2)
        assert watched.report(0) is None
        assert "no answer within 0.3 s" in watched.view(0).error
        watched.telemetry.stop()


async def test_a_replica_that_is_gone_and_back_again():
    async with FakeEngine() as engine:
        watched = Watched(engine)
        watched.telemetry.start()
        await watched.until(lambda: watched.reports)
        await engine.stop()
        await watched.until(lambda: watched.view(0).failures >= 2)
        await engine.start()
        before = watched.reports
        await watched.until(lambda: watched.reports > before)
        assert watched.view(0).error == ""
        assert watched.events() == ["telemetry_failed", "telemetry_back"]
        watched.telemetry.stop()


async def test_missing_signals_are_unknown_and_told_once():
    async with FakeEngine() as engine:
        engine.answers["/metrics"] = (200, vllm_now().replace("kv_cache_usage_perc", "kv_cache_usage").encode())
        watched = Watched(engine)
        watched.telemetry.start()
        await watched.until(lambda: watched.reports >= 3)
        assert watched.report(0).kv_use is None
        assert watched.report(0).missing == ("kv_use",)
        assert watched.events() == ["signals_missing"]
        text = "".join(line for family in watched.telemetry.families(None) if family for line in family.lines())
        assert 'exaserve_telemetry_signal_missing{replica="r0",signal="kv_use"} 1' in text
        engine.answers["/metrics"] = (200, vllm_now().encode())
        await watched.until(lambda: watched.events() == ["signals_missing", "signals_complete"])
        watched.telemetry.stop()


@pytest.mark.parametrize("answer", [(500, b"broken"), (200, b"<html>"), (200, b""), "garbage", "close"])
async def test_useless_answers_make_no_report(answer):
    async with FakeEngine() as engine:
        engine.answers["/metrics"] = answer
        watched = Watched(engine)
        watched.telemetry.start()
        await watched.until(lambda: watched.view(0).failures >= 2)
        assert watched.report(0) is None
        watched.telemetry.stop()


async def test_the_other_path_is_found_where_the_first_has_no_exposition():
    async with FakeEngine() as engine:
        engine.answers["/metrics"] = (200, b'[{"iter": 1}]')
        engine.answers["/prometheus/metrics"] = (200, TRTLLM.encode())
        watched = Watched(engine)
        watched.telemetry.start()
        await watched.until(lambda: watched.reports)
        assert watched.view(0).path == "/prometheus/metrics"
        assert watched.report(0).running == 4
        watched.telemetry.stop()


async def test_another_engine_at_the_same_address_is_noticed():
    async with FakeEngine() as engine:
        watched = Watched(engine, engine="vllm")
        watched.telemetry.start()
        await watched.until(lambda: watched.reports)
        engine.answers["/metrics"] = (200, LLAMACPP.encode())
        await watched.until(lambda: watched.view(0).engine == "llamacpp")
        await watched.until(lambda: watched.report(0) is not None and watched.report(0).waiting == 5)
        watched.telemetry.stop()


async def test_counters_that_fell_mean_a_restart_and_counters_that_grew_mean_life():
    async with FakeEngine() as engine:
        watched = Watched(engine)
        replica = ReplicaId("r0")
        watched.telemetry.start()
        await watched.until(lambda: watched.reports >= 3)
        assert watched.fleet.health.progress_at(replica) == float("-inf")
        engine.answers["/metrics"] = (200, vllm_now().replace("} 800.0", "} 900.0").encode())
        await watched.until(lambda: watched.fleet.health.progress_at(replica) > 0.0)
        assert watched.fleet.take() == []
        engine.answers["/metrics"] = (200, vllm_now().replace("} 800.0", "} 0.0").encode())
        await watched.until(lambda: watched.report(0) and watched.report(0).generation_tokens_total == 0.0)
        assert [change.kind for change in watched.fleet.take()] == [ChangeKind.RESTARTED]
        watched.telemetry.stop()


async def test_an_engine_without_counters_has_restarted_where_its_address_refused_connections():
    async with FakeEngine() as engine:
        watched = Watched(engine)
        engine.answers["/metrics"] = (200, b"# TYPE tgi_queue_size gauge\ntgi_queue_size 1\n")
        watched.telemetry.start()
        await watched.until(lambda: watched.reports)
        await engine.stop()
        await watched.until(lambda: "refused" in watched.view(0).error)
        await engine.start()
        await watched.until(lambda: [change.kind for change in watched.fleet.take()] == [ChangeKind.RESTARTED])
        watched.telemetry.stop()


async def test_removing_and_stopping_close_the_connections():
    async with FakeEngine() as one, FakeEngine() as two:
        watched = Watched(one, two)
        watched.telemetry.start()
        await watched.until(lambda: watched.report(0) and watched.report(1))
        watched.telemetry.remove(ReplicaId("r0"))
        await watched.until(lambda: one.open == 0)
        asked = one.asked["/metrics"]
        await asyncio.sleep(0.12)
        assert one.asked["/metrics"] == asked
        assert two.open == 1
        watched.telemetry.stop()
        await watched.until(lambda: two.open == 0)


async def test_polls_are_spread_over_the_interval():
    async with FakeEngine() as engine:
        watched = Watched(*[engine] * 8)
        loop = asyncio.get_running_loop()
        began = loop.time()
        watched.telemetry.start()
        firsts = sorted(poller.timer.when() - began for poller in watched.telemetry._pollers.values() if poller.timer)
        assert firsts[-1] - firsts[0] > 0.5 * SETTINGS.interval_s
        gaps = [later - earlier for earlier, later in itertools.pairwise(firsts)]
        assert max(gaps) < 0.5 * SETTINGS.interval_s
        watched.telemetry.stop()
