"""Real processes under supervision: start, crash, damaged weights, hang, stages, stop, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.ports import free_port, free_ports

from exaserve.agent.host import ProcessHost, _LogFile
from exaserve.agent.lifecycle import UnitState
from exaserve.agent.machine import NodeMachine
from exaserve.agent.meters import Meters
from exaserve.agent.node import NodeAgent
from exaserve.agent.plan import plan_node
from exaserve.agent.ports import Hold
from exaserve.agent.state_folder import StateFolder
from exaserve.config import AgentSettings, Cluster, NodeEntry, Pool
from exaserve.domain.errors import ConfigError
from exaserve.observe import EventLog

pytestmark = pytest.mark.may_block

ENGINE = str(Path(__file__).with_name("engine.py"))
QUICK = AgentSettings(
    interval_s=0.05, probe_interval_s=0.1, probe_timeout_s=20.0, warm_requests=1, hang_s=60.0, backoff_s=0.05,
    backoff_max_s=0.1, restarts_max=2, drain_s=1.0, stop_s=0.5, start_timeout_s=60.0,
)  # fmt: skip
"""Little waiting, and patience with engines that a busy machine makes late."""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(condition, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def node(
    folder: Path,
    *flags: str,
    settings: AgentSettings = QUICK,
    api_key: str = "",
    clock: Callable[[], float] = time.monotonic,
    log_path: Path | None = None,
    host: Any = None,
    state: StateFolder | None = None,
    registrar: Any = None,
    **pool,
) -> AsyncIterator[Any]:
    entry = NodeEntry(name="n", address="127.0.0.1")
    command = (sys.executable, ENGINE, "{host}", "{port}", *flags)
    pool.setdefault("base_port", free_ports(pool.get("num_replicas_per_node", 1), neighbours=True)[0])
    made = Pool(model="m", engine="command", engine_command=command, **pool)
    cluster = Cluster(nodes=(entry,), pools=(made,), agents=settings)
    lines: list[str] = []
    plans = plan_node(cluster, entry, NodeMachine(), folder)
    agent = NodeAgent(
        "n",
        plans if log_path is None else [replace(plan, log_path=log_path) for plan in plans],
        (),
        settings,
        host or ProcessHost(settings.stop_s, settings.log_bytes_max),
        EventLog(lines.append, burst_max=1000),
        meters=Meters(time.monotonic),
        rng=Random(0),
        engine_api_key=api_key,
        clock=clock,
        state=state,
        registrar=registrar,
    )
    agent.lines = lines  # type: ignore[attr-defined]
    agent.start()
    try:
        yield agent
    finally:
        await agent.stop(0.0)


async def test_an_engine_goes_through_its_life_and_ends_with_its_log_kept(tmp_path) -> None:
    async with node(tmp_path, "--words", "hello from the engine", environment={"MARK": "x"}) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        pid = unit.engine.pid
        assert alive(pid)
        await until(lambda: unit.sampler.last is not None)
    states = [line.split("state=")[1].split()[0] for line in agent.lines if "event=replica_state" in line]
    assert states == ["starting", "loading", "warming", "ready", "draining", "stopping", "stopped"]
    assert not alive(pid)
    assert "hello from the engine" in (tmp_path / "logs" / "n_r0.log").read_text()


async def test_an_engine_that_asks_for_a_key_is_probed_and_sampled_with_it(tmp_path) -> None:
    async with node(tmp_path, "--api-key", "the engine's own", api_key="the engine's own") as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        await until(lambda: unit.sampler.last is not None)
        unit.ask("restart", 0.5)
        await until(lambda: unit.state is not UnitState.READY)
        await until(lambda: unit.ready and unit.sampler.last is not None)


async def test_an_engine_that_asks_for_another_key_never_serves_and_the_reason_says_why(tmp_path) -> None:
    settings = msgspec.structs.replace(QUICK, restarts_max=0)
    late_s = 0.0
    flags = ("--api-key", "the engine's own")
    async with node(
        tmp_path, *flags, api_key="another", settings=settings, clock=lambda: time.monotonic() + late_s
    ) as agent:
        (unit,) = agent.units.values()
        await until(lambda: "does the engine want a key?" in unit.reason)
        late_s = QUICK.start_timeout_s
        await until(lambda: unit.state is UnitState.FAILED)
        assert "status 401" in unit.reason
        told = [line for line in agent.lines if "event=replica_probe" in line and "status 401" in line]
        assert len(told) == 1


async def test_adapters_that_come_and_go_in_the_engine_are_taken_over(tmp_path) -> None:
    names = tmp_path / "names"
    names.write_text("m one")
    async with node(tmp_path, "--models-file", str(names), lora_adapters=("one=/a", "gone=/b")) as agent:
        (unit,) = agent.units.values()
        assert unit.spec.models == ("m", "one", "gone"), "as planned, before it can say"
        await until(lambda: unit.ready)
        assert (unit.spec.models, unit.spec.max_model_len) == (("m", "one"), 2048)
        names.write_text("two m")
        await until(lambda: unit.spec.models == ("m", "two"))
        assert agent._state_of(unit).models == ("m", "two")
        names.write_text("/some/path/of/m")
        await asyncio.sleep(0.3)
        assert unit.spec.models == ("m", "two"), "a list in other words says nothing"


async def test_a_crash_is_restarted_and_given_up_in_the_end(tmp_path) -> None:
    crash = tmp_path / "crash"
    async with node(tmp_path, "--crash-file", str(crash)) as agent:
        (unit,) = agent.units.values()
        for number in range(3):
            await until(lambda number=number: unit.restarts == number and unit.ready)
            crash.touch()
            await until(lambda: not crash.exists())
        await until(lambda: unit.state is UnitState.FAILED)
        assert unit.restarts == 2
        assert "ended with exit code 3" in unit.reason and "gave up" in unit.reason


async def test_an_engine_whose_log_cannot_be_written_is_supervised_all_the_same(tmp_path) -> None:
    """A full disk: what the engine says is lost and told to be lost; its end is seen, and it comes back."""
    crash = tmp_path / "crash"
    flags = ("--crash-file", str(crash), "--words", "lost words")
    async with node(tmp_path, *flags, log_path=Path("/dev/full")) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        await until(lambda: any("event=log_not_written" in line for line in agent.lines))
        assert [each.name for each in agent.watching.wrong()] == ["log_not_written"]
        assert "No space left on device" in agent.watching.wrong()[0].detail
        pid = unit.engine.pid
        crash.touch()
        await until(lambda: unit.restarts == 1 and unit.ready)
        assert unit.engine.pid != pid
        pid = unit.engine.pid
        unit.ask("restart", 0.0)
        await until(lambda: unit.ready and unit.engine.pid != pid)
    assert unit.state is UnitState.STOPPED
    assert not any("failed" in line for line in agent.lines)


def test_a_log_is_written_again_when_there_is_room_and_no_link_is_followed(tmp_path) -> None:
    folder, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    folder.touch()  # not a folder yet: nothing can be written there
    log = _LogFile(folder / "x.log", 10)
    log.write("one\n")
    assert "Not a directory" in log.problem or "File exists" in log.problem
    folder.unlink()
    log.write("two is long enough\n")
    assert log.problem == ""
    log.write("three\n")
    log.close()
    assert (folder / "x.log").read_text() == "three\n"
    assert (folder / "x.log.1").read_text() == "two is long enough\n"
    elsewhere.write_text("not ours\n")
    (folder / "x.log").unlink()
    (folder / "x.log").symlink_to(elsewhere)
    linked = _LogFile(folder / "x.log", 10)
    linked.write("four\n")
    assert "is a symbolic link" in linked.problem
    assert elsewhere.read_text() == "not ours\n"


class _OddHost:
    """Fails in ways that nobody foresaw: at the first start, then at each stop."""

    def __init__(self) -> None:
        self.inner = ProcessHost(QUICK.stop_s, QUICK.log_bytes_max)
        self.starts = 0

    async def start(self, plan, on_end):
        self.starts += 1
        if self.starts == 1:
            raise RuntimeError("odd")
        engine = await self.inner.start(plan, on_end)
        stop = engine.stop

        async def odd_stop() -> None:
            await stop()
            raise ZeroDivisionError("odd again")

        engine.stop = odd_stop  # type: ignore[method-assign]
        return engine


async def test_an_error_of_the_supervision_itself_is_told_at_once_and_supervision_goes_on(tmp_path) -> None:
    async with node(tmp_path, host=_OddHost()) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.state is UnitState.BACKOFF)
        assert any("event=supervision_failed" in line and "odd" in line for line in agent.lines)
        assert "RuntimeError" in unit.reason
        await until(lambda: unit.ready)
        pid = unit.engine.pid
        unit.ask("restart", 0.0)
        await until(lambda: unit.ready and unit.engine.pid != pid)
        assert any("event=stop_failed" in line and "odd again" in line for line in agent.lines)
    assert unit.state is UnitState.STOPPED


async def test_damaged_weights_are_reported_and_never_serve(tmp_path) -> None:
    words = "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"
    async with node(tmp_path, "--words", words, "--exit", "1") as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.state is UnitState.FAILED)
        assert unit.restarts == 0
        assert "damaged weights" in unit.reason and "HeaderTooLarge" in unit.reason
        assert not any("state=ready" in line for line in agent.lines)
        assert any("event=last_words" in line and "HeaderTooLarge" in line for line in agent.lines)
        assert unit.last_words == [words]


async def test_a_failed_engine_starts_again_when_asked(tmp_path) -> None:
    async with node(tmp_path, "--exit", "1", settings=AgentSettings(restarts_max=0, interval_s=0.05)) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.state is UnitState.FAILED)
        assert unit.exits == {"other": 1}
        before = len(agent.lines)
        unit.ask("start")
        await until(lambda: any("state=starting" in line for line in agent.lines[before:]))
        await until(lambda: unit.state is UnitState.FAILED)


async def test_an_engine_that_hangs_is_restarted(tmp_path) -> None:
    freeze = tmp_path / "freeze"
    settings = msgspec.structs.replace(QUICK, probe_timeout_s=0.5, hang_s=5.0)
    async with node(tmp_path, "--freeze-file", str(freeze), settings=settings) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        pid = unit.engine.pid
        freeze.touch()
        await until(lambda: not unit.ready)
        assert unit.state is UnitState.READY, "first it is only called not ready"
        await until(lambda: unit.restarts >= 1)
        freeze.unlink()
        await until(lambda: unit.ready)
        assert unit.engine.pid != pid
        assert not alive(pid)
        assert any("event=replica_hangs" in line for line in agent.lines)


async def test_an_engine_that_says_its_core_died_is_asked_at_once(tmp_path) -> None:
    """Its front end still answers, and the next regular probe would be a minute away."""
    slow = msgspec.structs.replace(QUICK, probe_interval_s=60.0, hang_s=60.0)
    die = tmp_path / "die"
    async with node(tmp_path, "--die-file", str(die), settings=slow) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        die.touch()
        await until(lambda: not unit.ready)
        assert unit.state is UnitState.READY, "what a log says is a reason to ask, not to end it"
        assert "status 500" in unit.reason


async def test_verbs(tmp_path) -> None:
    async with node(tmp_path) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        unit.ask("drain")
        await until(lambda: unit.state is UnitState.DRAINING)
        unit.ask("resume")
        await until(lambda: unit.ready)
        pid = unit.engine.pid
        unit.ask("restart", 0.5)
        await until(lambda: unit.ready and unit.engine.pid != pid)
        assert unit.restarts == 0, "an asked for restart is no failure"
        unit.ask("stop")
        await until(lambda: unit.state is UnitState.STOPPED)
        with pytest.raises(ValueError, match="rm -rf"):
            unit.ask("rm -rf /")


async def test_stages_start_in_order_and_before_the_engine(tmp_path) -> None:
    stage = ("sh", "-c", f'echo stage {{stage}}; exec "{sys.executable}" "{ENGINE}" {{host}} {{stage_port}}')
    async with node(tmp_path, pipeline_parallel_size=3, stage_command=stage) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.ready)
        pids = unit.engine.pids()
        assert len(pids) == 4
    assert not any(alive(pid) for pid in pids)
    log = (tmp_path / "logs" / "n_r0.log").read_text()
    assert [line for line in log.splitlines() if "stage " in line] == [f"stage{k} | stage {k}" for k in range(3)]


async def test_a_stage_that_ends_at_once_is_named_once(tmp_path) -> None:
    async with node(tmp_path, pipeline_parallel_size=1, stage_command=("sh", "-c", "exit 127")) as agent:
        (unit,) = agent.units.values()
        await until(lambda: unit.state is UnitState.FAILED)
        assert unit.reason == "stage0 ended with exit code 127"


def test_ports_are_held_against_agents_and_strangers() -> None:
    port = free_port()
    hold = Hold("127.0.0.1", (port,))
    with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
        Hold("127.0.0.1", (port,))
    hold.close()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        with pytest.raises(ConfigError, match="in use"):
            Hold("127.0.0.1", (port,))
    Hold("127.0.0.1", (port,)).close()


@pytest.mark.parametrize("by", ["file", "flag"])
def test_the_command_takes_the_engines_key_from_a_file(by, tmp_path) -> None:
    key, config = tmp_path / "key", tmp_path / "cluster.yaml"
    key.write_text("the engine's own\n")
    named = f"gateway: {{engine_api_key_file: {key}}}\n" if by == "file" else ""
    config.write_text(
        f"model: m\nengine: command\nengine_command: ['{sys.executable}', '{ENGINE}', '{{host}}', '{{port}}', "
        f'--api-key, "the engine\'s own"]\nnodes: [{{name: n, address: 127.0.0.1}}]\nbase_port: {free_port()}\n'
        f"agents: {{enabled: true, port: {free_port()}, state_dir: {tmp_path}, stop: 500ms}}\n{named}"
    )
    command = [sys.executable, "-m", "exaserve", "agent", "-c", str(config)]
    command += ["--engine-api-key-file", str(key)] if by == "flag" else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stderr is not None
            assert any("state=ready" in line for line in agent.stderr)
        finally:
            agent.terminate()


def test_no_survivors_when_the_agent_itself_is_killed(tmp_path) -> None:
    """Not even a grandchild that has left its session and ignores SIGTERM."""
    daemon, port = tmp_path / "daemon", free_port()
    config = tmp_path / "cluster.yaml"
    config.write_text(
        f"model: m\nengine: command\nengine_command: ['{sys.executable}', '{ENGINE}', '{{host}}', '{{port}}', "
        f"'--daemon', '{daemon}']\nnodes: [{{name: n, address: 127.0.0.1}}]\nbase_port: {port}\n"
        f"agents: {{enabled: true, port: {free_port()}, state_dir: {tmp_path}, stop: 500ms}}\n"
    )
    command = [sys.executable, "-m", "exaserve", "agent", "-c", str(config)]
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        engine = 0
        assert agent.stderr is not None
        for line in agent.stderr:
            if "state=loading" in line:
                engine = int(line.split("pid ")[1].rstrip('"\n'))
            if "state=ready" in line:
                break
        grandchild = int(daemon.read_text())
        assert alive(engine) and alive(grandchild)
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait()
        end = time.monotonic() + 20.0
        while (alive(engine) or alive(grandchild)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not alive(engine) and not alive(grandchild)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    finally:
        agent.kill()
        agent.wait()
        agent.stderr.close()  # type: ignore[union-attr]
