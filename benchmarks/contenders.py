"""What is compared: how each gateway is found, configured and started in front of the same replicas."""

from __future__ import annotations

import http.client
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.machine import Child, find_program, free_port, install_peer, start
from benchmarks.stub import MODEL

VLLM_ROUTER = "vllm-router==0.1.17"

_HAPROXY = """\
global
    nbthread 1
    maxconn {connections}
defaults
    mode http
    option http-keep-alive
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-keep-alive 1h
    timeout http-request 10s
frontend in
    bind 127.0.0.1:{port} backlog 8192
    default_backend out
backend out
    balance {balance}
    option httpchk GET /health
    default-server check inter 2s
{servers}
"""


@dataclass
class Contender:
    """A way to the replicas.

    Attributes:
        name: as printed.
        urls: where the client sends; the replicas themselves for the direct path.
        child: its process, None for the direct path.
        version: what the program says of itself.
    """

    name: str
    urls: tuple[str, ...]
    child: Child | None = None
    version: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Programs:
    """Where the peers are; None leaves one out."""

    haproxy: str | None
    vllm_router: str | None


def find_programs(haproxy: str | None, vllm_router: str | None, *, install: bool) -> Programs:
    router = find_program("vllm-router", vllm_router, "VLLM_ROUTER")
    if router is None and install:
        router = install_peer(VLLM_ROUTER, "vllm-router")
    return Programs(find_program("haproxy", haproxy, "HAPROXY"), router)


def start_haproxy(program: str, balance: str, replicas: list[str], core: int | None, directory: Path) -> Contender:
    port = free_port()
    connections = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - 200  # it needs two files for each
    servers = "\n".join(f"    server s{index} {urlsplit(url).netloc}" for index, url in enumerate(replicas))
    config = directory / f"haproxy-{balance}.cfg"
    config.write_text(_HAPROXY.format(port=port, balance=balance, servers=servers, connections=connections))
    name = f"HAProxy {balance}"
    child = start(name, [program, "-db", "-f", str(config)], core, directory)
    first = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout.splitlines()
    return Contender(name, (f"http://127.0.0.1:{port}",), child, first[0] if first else "")


def start_vllm_router(program: str, policy: str, replicas: list[str], core: int | None, directory: Path) -> Contender:
    port = free_port()
    name = f"vllm-router {policy}"
    command = [program, "--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "error"]
    command += [
        "--prometheus-port",
        str(free_port()),
        "--worker-startup-check-interval",
        "1",
        "--worker-urls",
        *replicas,
    ]
    return Contender(name, (f"http://127.0.0.1:{port}",), start(name, command, core, directory), VLLM_ROUTER)


def start_exaserve(policy: str, replicas: list[str], core: int | None, directory: Path, *options: str) -> Contender:
    """Our gateway as a user starts it: telemetry, probes, prefix index, metrics, retries and limits are all on."""
    port = free_port()
    name = f"exaserve {policy}"
    command = [sys.executable, "-m", "exaserve", "gateway", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", policy, "--admin-port", "0"]
    for url in replicas:
        command += ["--replica", url]
    return Contender(
        name, (f"http://127.0.0.1:{port}",), start(name, [*command, *options], core, directory), "this tree"
    )


def wait_ready(contender: Contender, wait_s: float = 60.0) -> None:
    """Until a completion comes back.

    Raises:
        RuntimeError: it ended, or did not answer in time; the message has the end of its log.
    """
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
    until = time.monotonic() + wait_s
    where = urlsplit(contender.urls[0]).netloc
    while time.monotonic() < until:
        if contender.child is not None and contender.child.process.poll() is not None:
            break
        connection = http.client.HTTPConnection(where, timeout=2.0)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    tail = contender.child.log_tail() if contender.child else ""
    raise RuntimeError(f"{contender.name} did not become ready within {wait_s:.0f} s:\n{tail}")
