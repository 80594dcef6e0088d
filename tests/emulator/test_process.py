"""Processes: configuration and its errors, start, stop, and what is left behind."""

from __future__ import annotations

import dataclasses
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable

import pytest

from exaserve.domain.errors import ConfigError
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess, arguments
from exaserve.emulator.server import Emulator

Start = Callable[..., Awaitable[Emulator]]

QUICK = EmulatorConfig(model="tiny", hardware="null", port=0)


def test_a_process_starts_answers_takes_faults_and_ends() -> None:
    with EmulatorProcess(dataclasses.replace(QUICK, replicas=3, served_model_names=("m", "x"))) as process:
        assert len(process.urls) == 3
        with urllib.request.urlopen(process.urls[2] + "/health") as answer:
            assert answer.status == 200
        process.fault(2, refuse=True)
        assert [s["listening"] for s in process.state()] == [True, True, False]
        with pytest.raises(ConfigError, match="Did you mean 'slow'"):
            process.fault(0, slwo=1)
        with pytest.raises(ConfigError, match="in use"):
            EmulatorProcess(dataclasses.replace(QUICK, port=int(process.urls[0].rsplit(":", 1)[1])))
    assert not process.running
    assert process.stop() == 0


def test_a_process_ends_when_its_parent_is_killed() -> None:
    script = (
        "import sys, time\n"
        "from exaserve.emulator.process import EmulatorProcess\n"
        "from exaserve.emulator.config import EmulatorConfig\n"
        "p = EmulatorProcess(EmulatorConfig(model='tiny', hardware='null', port=0))\n"
        "print(p.urls[0], flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent, parent.stdout:
        url = parent.stdout.readline().decode().strip()
        with urllib.request.urlopen(url + "/health") as answer:
            assert answer.status == 200
        parent.kill()
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url + "/health", timeout=20).close()
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("the emulator outlived its parent")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_cleanly(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "exaserve", "emulate", "--hardware", "null", "--model", "tiny", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hardware", "H10O"], "Did you mean H100"),
        (["--model", "zzz"], "known; the nearest are "),
        (["--model", "Llama-3.1-70B"], "does not fit"),
        (["--tensor-parallel-size", "2", "--dtype", "bfloat16", "--gpu-memory-utilization", "2"], "utilisation must"),
        (["--no-enable-prefix-caching", "--max-num-batched-tokens", "64", "--speed", "0"], "speed"),
        (["--replicas", "0"], "replicas must be at least 1"),
        (["--speed", "0"], "speed"),
        (["--port", "65530", "--replicas", "12"], "would need port 65541"),
        (["--host", "10.0.0.1", "--addressing", "addresses"], "loopback"),
        (["--host", "256.1.1.1", "--port", "0"], "Cannot listen"),
    ],
)
def test_configuration_errors_exit_with_2_and_one_message(flags: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "exaserve", "emulate", *flags], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    err = done.stderr.decode()
    assert said in err
    assert len(err) < 500
    assert "Traceback" not in err


def test_arguments_carry_the_whole_configuration() -> None:
    config = EmulatorConfig(replicas=3, tp=2, prefix_caching=False, served_model_names=("a", "b"), max_model_len=100)
    assert arguments(config) == [
        "--served-model-name", "a", "--served-model-name", "b", "--replicas", "3", "--tp", "2",
        "--max-model-len", "100", "--no-prefix-caching",
    ]  # fmt: skip
    assert arguments(EmulatorConfig()) == []
    with pytest.raises(ConfigError, match="profile"):
        arguments(dataclasses.replace(config, profile=config.engine_profile()))


async def test_replicas_can_have_addresses_of_their_own(start: Start) -> None:
    probe = await start()
    port = probe.replicas[0].port
    probe.close()
    emulator = await start(host="127.0.1.1", port=port, replicas=3, addressing="addresses")
    assert emulator.urls == [f"http://127.0.{k}.1:{port}" for k in (1, 2, 3)]


def free_below_taken() -> tuple[socket.socket, int]:
    """A listening socket, and the free port just below it."""
    for _ in range(50):
        taken = socket.create_server(("127.0.0.1", 0))
        below = taken.getsockname()[1] - 1
        try:
            socket.create_server(("127.0.0.1", below)).close()
        except OSError:
            taken.close()
        else:
            return taken, below
    raise AssertionError("no two ports side by side")


async def test_a_taken_port_leaves_nothing_open(start: Start) -> None:
    taken, below = free_below_taken()
    with taken, pytest.raises(ConfigError, match=f"Port {below + 1} on 127.0.0.1 is in use"):
        await start(port=below, replicas=2)
    again = await start(port=below)
    assert again.replicas[0].port == below
