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


async def test_a_line_that_is_too_long_is_told_in_pieces_and_nothing_of_it_is_lost() -> None:
    lines: list[str] = []
    script = "print('a' * 100_000); print('b' * 65_536); print('end')"
    child = await Child.start("x", [sys.executable, "-c", script], on_line=lambda _, line: lines.append(line))
    assert await child.wait() == 0
    assert max(map(len, lines)) <= 2 * 65_536
    assert "".join(lines) == "a" * 100_000 + "b" * 65_536 + "end"
    assert lines[-1] == "end"


async def test_output_is_read_on_where_nobody_can_take_it() -> None:
    def refuse(_name: str, _line: str) -> None:
        raise BrokenPipeError

    child = await Child.start("x", ["sh", "-c", "echo one; echo two"], on_line=refuse)
    assert await child.wait() == 0
    assert [child.tail[0], child.tail[-1]] == ["one", "two"]


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
