"""The command itself: start, signals, reload, wrong input."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.harness import MODEL, GatewayProcess, emulator, run, until
from tests.e2e.tenants import cached_tokens
from tests.ports import free_port

from exaserve.emulator.process import EmulatorProcess

pytestmark = pytest.mark.xdist_group("e2e-process")


@pytest.fixture(scope="module")
def engines():
    with emulator(3, speed=1.0) as process:
        yield process


@pytest.fixture(autouse=True)
def _no_faults(engines: EmulatorProcess):
    yield
    engines.fault("all", refuse=False, freeze=False, metrics="ok", slow=1.0)


def ask(url: str, tokens: int = 3, **options: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=100, trust_env=False, **options)


def test_ready_by_the_first_probes(engines, tmp_path):
    path = cluster_file(tmp_path / "cluster.yaml", engines.urls)
    path.write_text(path.read_text() + "health: {probe_interval: 100s, probe_fast: 100s}\n")
    with GatewayProcess([], config=path) as gateway:
        gateway.ready()
        assert gateway.get("/ready").status_code == 200
        assert ask(gateway.url).status_code == 200
        assert gateway.stop() == 0


def test_term_finishes_what_is_under_way(engines):
    with GatewayProcess(engines.urls) as gateway:
        gateway.ready()
        engines.fault("all", slow=50.0)  # until the signal has come
        got: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: got.append(ask(gateway.url, tokens=150)))
        thread.start()
        until(lambda: gateway.admin("/replicas")["in_flight"] == 1)
        gateway.send(signal.SIGTERM)
        gateway.wait_for("event=stopping")
        engines.fault("all", slow=1.0)
        thread.join()
        assert got[0].status_code == 200
        assert got[0].json()["usage"]["completion_tokens"] == 150
        assert gateway.process.wait(20) == 0
        assert "cut=0" in gateway.wait_for("event=stopped")


def test_a_second_signal_ends_it_at_once(engines):
    with GatewayProcess(engines.urls) as gateway:
        gateway.ready()
        got: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: got.append(ask(gateway.url, tokens=5000)))
        thread.start()
        until(lambda: gateway.admin("/replicas")["in_flight"] == 1)
        gateway.send(signal.SIGINT)
        gateway.wait_for("event=stopping")
        time.sleep(0.5)
        assert gateway.process.poll() is None, "waits for the request"
        gateway.send(signal.SIGINT)
        assert gateway.process.wait(20) == 0  # the request would last for longer
        thread.join()
        assert (got[0].status_code, got[0].json()["error"]["code"]) == (503, "shutting_down"), "it is told, not cut"


def cluster_file(path: Path, urls: list[str], strategy: str = "entropy") -> Path:
    lines = ["scheduling:", f"  strategy: {strategy}", "replicas:", *(f"  - {url}" for url in urls)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_hup_reloads_and_keeps_the_old_on_error(engines, tmp_path):
    path = cluster_file(tmp_path / "cluster.yaml", engines.urls[:1])
    with GatewayProcess([], config=path) as gateway:
        gateway.ready()
        assert len(gateway.admin("/replicas")["replicas"]) == 1
        cluster_file(path, engines.urls, "round_robin")
        gateway.send(signal.SIGHUP)
        gateway.wait_for("event=reloaded")
        data = until(lambda: (d := gateway.admin("/replicas")) and all(r["eligible"] for r in d["replicas"]) and d)
        assert (len(data["replicas"]), data["policy"]) == (3, "round_robin")
        assert any("entropy -> round_robin" in line for line in gateway.lines)
        assert not any("connections_max:" in line for line in gateway.lines), "only what changed in the file"
        path.write_text("replicas: 7\nstrategi: x\n")
        gateway.send(signal.SIGHUP)
        assert "strategi" in gateway.wait_for("event=reload_failed")
        assert len(gateway.admin("/replicas")["replicas"]) == 3
        assert ask(gateway.url).status_code == 200
        cluster_file(path, engines.urls[2:], "round_robin")
        gateway.send(signal.SIGHUP)
        until(lambda: len(gateway.admin("/replicas")["replicas"]) == 1)
        assert ask(gateway.url).headers["x-exaserve-replica"] in engines.urls[2]
        assert gateway.stop() == 0


def test_hup_without_a_file_is_told_and_harmless(engines):
    with GatewayProcess(engines.urls) as gateway:
        gateway.send(signal.SIGHUP)
        gateway.wait_for("event=reload_ignored")
        assert gateway.stop() == 0


def test_unreachable_replicas_do_not_stop_the_others(engines):
    dead = f"http://127.0.0.1:{free_port()}"
    with GatewayProcess([dead, *engines.urls[:1]]) as gateway:
        gateway.ready()
        assert all(ask(gateway.url).status_code == 200 for _ in range(4))
        rows = {row["url"]: row for row in gateway.admin("/replicas")["replicas"]}
        assert rows[dead]["state"] == "unknown"
        assert "refused" in rows[dead]["reason"]
        assert gateway.stop() == 0


def test_a_replica_that_refuses_is_left_and_taken_again(engines):
    with GatewayProcess(engines.urls) as gateway:
        gateway.ready()
        until(lambda: all(row["eligible"] for row in gateway.admin("/replicas")["replicas"]))
        engines.fault(0, refuse=True)
        assert all(ask(gateway.url).status_code == 200 for _ in range(30))
        until(lambda: not gateway.admin("/replicas")["replicas"][0]["eligible"])
        engines.fault(0, refuse=False)
        until(lambda: gateway.admin("/replicas")["replicas"][0]["eligible"])


def test_status_shows_the_replicas(engines):
    with GatewayProcess(engines.urls) as gateway:
        gateway.ready()
        until(lambda: all(row["report_age_s"] is not None for row in gateway.admin("/replicas")["replicas"]))
        done = run("status", "--admin", gateway.admin_url, "--once")
        assert done.returncode == 0
        assert all(url.removeprefix("http://") in done.stdout for url in engines.urls)
        assert json.loads(run("status", "--admin", gateway.admin_url, "--json").stdout)["policy"] == "entropy"
    gone = run("status", "--admin", gateway.admin_url, "--once")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "no gateway answers at" in gone.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no replicas"),
        (["--replica", "127.0.0.1:8001"], "http://"),
        (["--replica", "http://127.0.0.1:1/v1"], "path"),
        (["--replica", "http://127.0.0.1:1", "--replica", "http://localhost:1/"], "same address"),
        (["--replica", "http://127.0.0.1:1", "--policy", "entropie"], "unknown policy 'entropie'"),
        (["--replica", "http://127.0.0.1:1", "--log-level", "loud"], "--log-level"),
        (["--auth", "open", "--replica", "http://127.0.0.1:1", "--host", "192.0.2.1"], "does not have that address"),
        (["--replica", "http://127.0.0.1:1", "--admin-host", "0.0.0.0", "--port", "0"], "admin_token_file"),
        (["--config", "/nonexistent.yaml"], "no such file"),
    ],
)
def test_wrong_input_is_exit_code_2_with_one_message(args, said):
    done = run("gateway", *args)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use(engines):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("gateway", "--replica", engines.urls[0], "--port", port)
        assert done.returncode == 2
        assert f"127.0.0.1:{port} for clients (gateway.port): the port is in use" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_admin_token_is_read_from_a_file(engines, tmp_path):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    with GatewayProcess(engines.urls, "--admin-token-file", str(file)) as gateway:
        assert httpx.get(gateway.admin_url + "/replicas", trust_env=False).status_code == 401
        done = run("status", "--admin", gateway.admin_url, "--once", "--token-file", str(file))
        assert done.returncode == 0, done.stderr
    file.write_text("short")
    assert run("gateway", "--replica", engines.urls[0], "--admin-token-file", str(file)).returncode == 2


def test_tenants_share_no_prefix_cache(engines):
    with GatewayProcess(engines.urls[:1], "--auth", "keys") as gateway:
        gateway.ready()
        first, again, others, others_again = cached_tokens(gateway, MODEL)
    assert (first, others) == (0, 0)
    assert again > 0
    assert others_again > 0
