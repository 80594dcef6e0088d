from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from exaserve.observe import EventLog, LineSink, null_log


def test_one_line_of_key_value_pairs():
    lines: list[str] = []
    log = EventLog(lines.append, clock=lambda: 1_700_000_000.25)
    log.info("ready", port=8000, url="http://a:1", ratio=0.5, why="two words", none=None)
    assert lines == [
        'ts=2023-11-14T22:13:20.250Z level=info event=ready port=8000 url=http://a:1 ratio=0.5 why="two words"'
    ]


def test_below_the_level_nothing_is_written():
    lines: list[str] = []
    log = EventLog(lines.append, level="warning")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [line.split("event=")[1] for line in lines] == ["c", "d"]
    null_log().warning("x")


def test_a_storm_of_one_event_is_bounded_counted_and_hides_no_other():
    lines: list[str] = []
    now = [0.0]
    log = EventLog(lines.append, burst_max=5, clock=lambda: now[0])
    for _ in range(100):
        log.warning("storm")
    log.info("other")
    assert len(lines) == 6
    now[0] = 1.0
    log.warning("storm")
    assert lines[-1].endswith("event=storm suppressed=95")


@given(st.text())
def test_no_value_breaks_the_line(value):
    lines: list[str] = []
    EventLog(lines.append).info("e", value=value)
    assert len(lines) == 1
    assert len(lines[0].splitlines()) == 1


def test_the_sink_writes_in_order_and_ends():
    stream = io.StringIO()
    sink = LineSink(stream)
    for index in range(100):
        sink(str(index))
    sink.close()
    assert stream.getvalue().split() == [str(index) for index in range(100)]
    assert sink.dropped == 0


def test_a_reader_that_is_gone_stops_nobody():
    stream = io.StringIO()
    stream.close()
    sink = LineSink(stream)
    for _ in range(10_000):
        sink("x")
    sink.close()
    assert sink.dropped > 0
