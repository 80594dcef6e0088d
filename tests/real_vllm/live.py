"""Two real vLLM replicas under a real ``exaserve agent``, and a real ``exaserve gateway`` in front of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.harness import GatewayProcess
from tests.ports import free_ports
from tests.real_vllm.server import Unavailable, command, environment, install

__all__ = ["ADAPTER", "HEADERS", "KEY", "LATE_ADAPTER", "MODEL", "NODE", "Live", "live", "sample"]

NODE, MODEL, ADAPTER, LATE_ADAPTER = "n1", "tiny", "early", "late"
"""``ADAPTER`` is loaded at the start, ``LATE_ADAPTER`` lies ready."""
KEY = "the-engines-own-key"
HEADERS = {"authorization": f"Bearer {KEY}"}
START_S = 420.0
"""Four imports of vLLM one after the other, twice at the same time."""
STOP_S = 60.0


class Live:
    """What runs, and what tests ask of it."""

    def __init__(self, folder: Path, gateway: GatewayProcess, agent: subprocess.Popen[bytes], port: int) -> None:
        self.folder = folder
        self.gateway = gateway
        self.agent = agent
        self.engines = tuple(f"http://127.0.0.1:{port + index}" for index in range(2))
        self.program = folder / "vllm"
        self.client = httpx.Client(base_url=gateway.url, timeout=90.0, trust_env=False, headers=HEADERS)

    def complete(self, **more: Any) -> httpx.Response:
        """One completion through the gateway."""
        return self.client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 4} | more)

    def row(self, index: int) -> dict[str, Any]:
        """A replica in the gateway's admin API."""
        rows = self.gateway.admin("/replicas")["replicas"]
        return next(row for row in rows if row["id"] == f"{NODE}/r{index}")

    def unit(self, index: int) -> dict[str, Any]:
        """The replica as its agent describes it."""
        (node,) = self.gateway.admin("/nodes/all")["nodes"]
        found: dict[str, Any] = next(unit for unit in node["replicas"] if unit["id"] == f"{NODE}/r{index}")
        return found

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def tree(self, index: int) -> list[int]:
        """Processes of the engine, its API server first; not the agent's shim above it."""
        (first,) = [pid for pid, words in _processes() if _serves(words, self.engines[index])]
        return [first, *_below(first)]

    def wait(self) -> None:
        """Until both replicas are ready. Unavailable where that takes too long, AssertionError where one has failed."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            ended = self.agent.poll()
            if ended is not None or "state=failed" in self.log() or "state=backoff" in self.log():
                raise AssertionError(f"the engines do not start (agent: {ended}):\n{self.log()[-3_000:]}")
            if self.gateway.admin("/nodes")["ready"] == 2:
                return
            time.sleep(0.5)
        raise Unavailable(f"two vLLM replicas were not up within {START_S:g} s on this machine")


def _processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(path.name), (path / "cmdline").read_text().split("\0")


def _serves(words: list[str], url: str) -> bool:
    return "vllm.entrypoints.cli.main" in words and "--port" in words and url.endswith(words[words.index("--port") + 1])


def _below(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *_below(child)]
    return found


def sample(url: str, name: str, label: str = "") -> float:
    """Sum over an engine's own series of ``name`` that carry ``label``."""
    text = httpx.get(f"{url}/metrics", timeout=20.0, trust_env=False).text
    found = re.findall(rf"^{re.escape(name)}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in found if label in labels)


def _cluster(folder: Path, port: int, cache: Path) -> dict[str, Any]:
    return {
        "model": str(folder / "model"),
        "served_model_name": MODEL,
        "engine": "vllm",
        "num_replicas_per_node": 2,
        "base_port": port,
        "max_model_len": 2048,
        "lora_adapters": [f"{ADAPTER}={folder / ADAPTER}"],
        "engine_args": ["--enforce-eager", "--enable-prompt-tokens-details"],
        "environment": {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(cache),  # what it finds out about a model class costs it 15 s
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        },
        "nodes": [{"name": NODE, "address": "127.0.0.1"}],
        "gateway": {"engine_api_key_file": str(folder / "key")},
        # A starved machine must not look like a hang or a lost agent.
        "agents": {
            "enabled": True,
            "port": port + 2,
            "state_dir": str(folder / "state"),
            "interval": "500ms",
            "lost": "10s",
            # After each completion a worker of vLLM spins for a second.
            "probe_interval": "6s",
            "probe_timeout": "30s",
            "hang": "120s",
        },
    }


@contextlib.contextmanager
def live(folder: Path) -> Iterator[Live]:
    """The whole set-up, ready. Unavailable where vLLM cannot be had in time; AssertionError where it does not start."""
    python = install()
    program = command(python, folder)
    script = Path(__file__).with_name("tiny_model.py")
    words = [str(python), str(script), *(str(folder / name) for name in ("model", ADAPTER, LATE_ADAPTER))]
    subprocess.run(words, env=environment(), check=True, timeout=120, capture_output=True)
    (folder / "key").write_text(KEY)
    port = free_ports(3, neighbours=True)[0]
    config = folder / "cluster.yaml"
    config.write_text(json.dumps(_cluster(folder, port, python.parent.parent / ".cache")))
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "exaserve", "agent", "--config", str(config)],
            env={**os.environ, "PATH": path, "VLLM_API_KEY": KEY},  # its engines inherit it
            stdout=log,
            stderr=log,
        )
    try:
        with GatewayProcess([], config=config) as gateway:
            made = Live(folder, gateway, agent, port)
            with made.client:
                made.wait()
                yield made
    finally:
        agent.terminate()
        try:
            agent.wait(STOP_S)
        finally:
            agent.kill()  # its shims end what it leaves
            agent.wait()
