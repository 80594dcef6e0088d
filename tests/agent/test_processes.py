from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from exaserve.agent.processes import Child, stop_all

pytestmark = pytest.mark.may_block


async def test_output_is_kept_and_told_line_by_line() -> None:
    lines: list[tuple[str, str]] = []
    child = await Child.start(
        "x", ["sh", "-c", "echo one; echo two >&2; exit 4"], on_line=lambda *line: lines.append(line)
    )
    assert await child.wait() == 4
    assert child.describe_end() == "ended with exit code 4"
    assert list(child.tail) == ["one", "two"]
    assert lines == [("x", "one"), ("x", "two")]


async def test_a_line_without_end_does_not_stop_the_reader() -> None:
    child = await Child.start("x", [sys.executable, "-c", "print('a' * 1_000_000); print('end')"])
    assert await child.wait() == 0
    assert child.tail[-1].endswith("end")


async def test_what_ignores_sigterm_is_killed_with_all_it_started() -> None:
    script = "trap '' TERM; sleep 100 & echo $!; while true; do sleep 0.05; done"
    child = await Child.start("x", ["sh", "-c", script])
    while not child.tail:
        await asyncio.sleep(0.01)
    await stop_all([child], grace_s=0.2)
    assert child.describe_end() == "was ended by SIGKILL"
    stat = Path(f"/proc/{child.tail[0]}/stat")
    for _ in range(200):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the grandchild still runs")


async def test_stopping_what_has_ended_does_nothing() -> None:
    child = await Child.start("x", ["true"])
    await child.wait()
    await stop_all([child], grace_s=1.0)
    await stop_all([child], grace_s=1.0)
    assert child.code == 0
