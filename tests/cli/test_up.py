"""``exaserve up`` as people run it: it comes up, says where it is, and leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ports import free_ports

START_S = 60.0
pytestmark = pytest.mark.xdist_group("up")


def free_base() -> int:
    """First of six consecutive free ports on the addresses that the tests use."""
    return free_ports(6, neighbours=True, hosts=("127.0.0.1", "127.0.1.1", "127.0.2.1"))[0]


class Up:
    """A running ``exaserve up``."""

    def __init__(self, tmp_path: Path) -> None:
        self.base = free_base()
        self.file = tmp_path / "cluster.yaml"
        self.file.write_text(
            "model: Llama-3.2-1B\nnodes: 2\nnum_replicas_per_node: 2\nhardware: H100\n"
            f"base_port: {self.base}\ngateway: {{port: {self.base + 4}, admin_port: {self.base + 5}, drain: 2s}}\n"
        )
        self.url = f"http://127.0.0.1:{self.base + 4}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exaserve", "up", str(self.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_ready(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                return "".join(lines)
        raise AssertionError(
            f"ended: {self.process.wait()}: {self.process.stderr.read() if self.process.stderr else ''}"
        )

    def descendants(self) -> list[int]:
        """Processes that this cluster has started and that run."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid:
                    found.append(int(entry.name))
        return found

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def wait_gone(pids: list[int], limit_s: float = 20.0) -> list[int]:
    """Those of ``pids`` still running after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while True:
        left = [pid for pid in pids if running(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    cluster = Up(tmp_path)
    try:
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.process.kill()
        cluster.process.communicate(timeout=60)


def complete(url: str) -> dict[str, object]:
    body = json.dumps({"model": "Llama-3.2-1B", "prompt": "Hello", "max_tokens": 3}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert isinstance(answer, dict)
    return answer


def test_comes_up_serves_and_leaves_nothing_behind_on_ctrl_c(up: Up) -> None:
    greeting = up.until_ready()
    assert f"{up.url}/v1" in greeting
    assert "4 replicas of Llama-3.2-1B on 2 nodes" in greeting
    assert "curl" in greeting and "OpenAI(base_url=" in greeting
    usage = complete(up.url)["usage"]
    assert isinstance(usage, dict) and usage["completion_tokens"] == 3
    children = up.descendants()
    assert len(children) == 3
    code, _, err = up.end(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in err
    assert wait_gone(children) == []


def test_sigterm_while_starting_leaves_nothing_behind(up: Up) -> None:
    deadline = time.monotonic() + START_S
    while len(children := up.descendants()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    code, out, err = up.end(signal.SIGTERM)
    assert (code, out) == (143, "")
    assert "Traceback" not in err
    assert wait_gone(children) == []


def test_even_sigkill_leaves_nothing_behind(up: Up) -> None:
    up.until_ready()
    children = up.descendants()
    assert len(children) == 3
    up.process.kill()
    assert wait_gone(children) == []


def test_a_dead_node_is_told_and_the_rest_serves(up: Up) -> None:
    up.until_ready()
    node = next(pid for pid in up.descendants() if b"127.0.1.1" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(node, signal.SIGKILL)
    assert up.process.stderr is not None
    assert any("node1 was ended by SIGKILL" in line for line in up.process.stderr)
    for _ in range(8):
        complete(up.url)
    children = up.descendants()
    assert up.end(signal.SIGINT)[0] == 130
    assert wait_gone(children) == []


def test_without_its_gateway_it_ends_with_an_error(up: Up) -> None:
    up.until_ready()
    children = up.descendants()
    gateway = next(pid for pid in children if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    os.kill(gateway, signal.SIGKILL)
    _, err = up.process.communicate(timeout=60)
    assert up.process.returncode == 1
    assert "gateway was ended by SIGKILL" in err
    assert wait_gone(children) == []


def run_up(tmp_path: Path, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "exaserve", "up", str(file), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("taken", "field"), [("replica", "base_port"), ("gateway", "gateway.port"), ("admin", "gateway.admin_port")]
)
def test_a_port_in_use_names_its_field(tmp_path: Path, taken: str, field: str) -> None:
    base = free_base()
    address = {"replica": ("127.0.1.1", base + 1), "gateway": ("127.0.0.1", base + 4), "admin": ("127.0.0.1", base + 5)}
    with socket.socket() as holder:
        holder.bind(address[taken])
        holder.listen()
        done = run_up(
            tmp_path,
            f"model: Llama-3.2-1B\nnum_replicas_per_node: 2\nbase_port: {base}\n"
            f"gateway: {{port: {base + 4}, admin_port: {base + 5}}}\n",
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {field}: {address[taken][0]}:{address[taken][1]} is already in use; give another port\n"
    )


@pytest.mark.parametrize(
    ("text", "flags", "part"),
    [
        ("modle: x", (), "did you mean model?"),
        ("gateway: {port: 1}", (), "there are no replicas"),
        ("model: Llama-3.2-1B\nnodes: [{name: far, address: 192.0.2.7}]", (), "is not an address of this machine"),
        ("model: Llama-3.2-1B", ("--policy", "best"), "--policy: 'best' is not one of"),
        ("model: Llama-3.2-1B", ("--port", "8900"), "error: --port: gateway.admin_port: is the same as gateway.port"),
    ],
)
def test_wrong_configuration_exits_2_at_once(tmp_path: Path, text: str, flags: tuple[str, ...], part: str) -> None:
    done = run_up(tmp_path, text, *flags)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_ends_is_quoted(tmp_path: Path) -> None:
    base = free_base()
    done = run_up(
        tmp_path,
        "model: m\nengine: command\nengine_command: [sh, -c, 'echo no such device {port} >&2; exit 3']\n"
        f"base_port: {base}\ngateway: {{port: {base + 4}, admin_port: {base + 5}}}\n",
    )
    assert done.returncode == 1
    assert f"error: node1/r0 ended with exit code 3; its last lines:\n  no such device {base}\n" in done.stderr


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    base = free_base()
    done = run_up(
        tmp_path,
        f"model: m\nengine: command\nengine_command: [no-such-engine, '{{port}}']\nbase_port: {base}\n"
        f"gateway: {{port: {base + 4}, admin_port: {base + 5}}}\n",
    )
    assert done.returncode == 1
    assert "no-such-engine: No such file or directory" in done.stderr
