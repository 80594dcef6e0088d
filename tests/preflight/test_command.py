# ruff: noqa: E501 - lines of real tools' outputs are long
"""``exaserve preflight`` as a command: here, over SSH (a stand-in, and a real sshd where there is one), from files."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.preflight import shapes
from tests.preflight.test_host import CHRONY, LSCPU
from tests.programs import program

from exaserve.cli.main import build
from exaserve.cli.preflight_hosts import SshOptions, read_hosts, read_saved
from exaserve.domain.errors import ConfigError
from exaserve.preflight import MARK

FAKE_SSH = """\
import subprocess, sys, time, pathlib
log = pathlib.Path(__file__).with_name("log")
host, command = sys.argv[sys.argv.index("--") + 1 :]
with log.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if host == "down":
    sys.stderr.write("ssh: connect to host down port 22: Connection timed out\\n"); sys.exit(255)
if host == "hangs":
    time.sleep(100)
if host == "chatty":
    print("Welcome to the machine", flush=True)
sys.exit(subprocess.run(["sh", "-c", command], stdin=sys.stdin.buffer).returncode)
"""


def run(*args: str) -> int:
    """The command in this process; its exit code."""
    with pytest.raises(SystemExit) as end:
        build().main(args=["preflight", *args], prog_name="exaserve")
    return int(end.value.code or 0)


def report(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    code = run(*args, "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return document


def rows(document: Any, host: str) -> dict[str, str]:
    return {each["check"]: each["verdict"] for each in document["results"] if each["host"] == host}


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    (tmp_path / "ssh.py").write_text(FAKE_SSH)
    path = tmp_path / "ssh"
    # Not the interpreter in the first line: its path may hold a space.
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "ssh.py"}" "$@"\n')
    path.chmod(0o755)
    return path


def test_this_machine_gives_a_useful_report(capsys: pytest.CaptureFixture[str]) -> None:
    document = report(capsys)
    found = rows(document, "this machine")
    assert {"topology", "cpu", "limits", "connections", "clock", "mtu_ping"} <= set(found)
    assert found["mtu_ping"] == "not run"
    assert found["nccl"] == "not run", "it loads the machine"
    if shutil.which("nvidia-smi") is None:
        topology = next(each for each in document["results"] if each["check"] == "topology")
        assert topology["summary"] == "not run: nvidia-smi not found"


def test_table_and_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run("--html", str(page), "--check", "cpu,limits")
    said = capsys.readouterr().out
    assert "Limits of files" in said
    assert "Processors and NUMA layout" in page.read_text()
    assert "topology" not in said, "checks that only lend facts are not shown"


def test_hosts_over_ssh(ssh: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    document = report(
        capsys, "--ssh", f"{ssh} -J bastion", "--host", "n1,n2", "--host", "down", "-H", "chatty", "--save", str(saved)
    )
    assert rows(document, "down") == {"host": "failed"}
    assert rows(document, "n1") == rows(document, "n2") == rows(document, "chatty")
    assert rows(document, "n1")["cpu"] != "not run"
    assert "Connection timed out" in next(each["summary"] for each in document["results"] if each["host"] == "down")
    assert document["exit_code"] == 1
    lines = (ssh.parent / "log").read_text().splitlines()
    assert len(lines) == 4, "one session per host"
    assert all("-J bastion" in line and "BatchMode=yes" in line and "ConnectTimeout=10" in line for line in lines)
    again = report(capsys, "--from", str(saved))
    assert rows(again, "n1")["limits"] == rows(document, "n1")["limits"]


def test_a_host_that_hangs_does_not_hold_up_the_report(ssh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()  # the host hangs for 100 s
    document = report(capsys, "--ssh", str(ssh), "--host", "hangs,n1", "--session-timeout-s", "5", "--check", "cpu")
    assert time.monotonic() - began < 60
    assert rows(document, "hangs") == {"host": "failed"}
    assert rows(document, "n1")["cpu"] in {"ok", "warning"}


def test_no_ssh_client(capsys: pytest.CaptureFixture[str]) -> None:
    document = report(capsys, "--ssh", "/nowhere/ssh", "--host", "n1")
    assert "cannot be started" in document["results"][0]["summary"]


def test_hosts_from_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rack 1\nn1 slots=8\n\nroot@n2  # spare\nn1\n")
    assert read_hosts(["n0,n1"], file) == ["n0", "n1", "root@n2"]
    with pytest.raises(ConfigError):
        read_hosts(["-oProxyCommand=reboot"], None)
    assert SshOptions().argv("n1")[-3:] == ["--", "n1", "sh -s"]


# ------------------------------------------------------------------------------------------------ saved outputs
def test_saved_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "topology.txt").write_text(shapes.topology(8, 8, shapes.hgx()))
    (tmp_path / "n1" / "whatever.log").write_text(CHRONY)
    (tmp_path / "n1" / "cpu.txt").write_text(LSCPU)
    (tmp_path / "paste.md").write_text("```\n" + shapes.topology(4, 0, shapes.everywhere("NV4")) + "```\n")
    (tmp_path / "notes.txt").write_text("bring cables")
    document = report(capsys, "--from", str(tmp_path))
    assert rows(document, "n1") == {"topology": "ok", "clock": "ok", "cpu": "ok"}
    assert rows(document, "paste") == {"topology": "ok"}
    assert rows(document, "notes.txt") == {"file": "warning"}
    assert document["exit_code"] == 3
    assert rows(report(capsys, "--from", str(tmp_path / "n1" / "topology.txt")), "topology") == {"topology": "ok"}


def test_one_check_twice_is_two_hosts(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    for name in ("a", "b"):
        (tmp_path / "n1" / f"{name}.txt").write_text(shapes.topology(8, 8, shapes.hgx()))
    assert len(read_saved(tmp_path)) == 2


def test_script_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--script", "--check", "cpu") == 0
    text = capsys.readouterr().out
    done = subprocess.run(["sh"], input=text.encode(), capture_output=True, check=True, timeout=60)
    assert MARK.encode() in done.stdout
    (tmp_path / "n7.out").write_bytes(done.stdout)
    assert "cpu" in rows(report(capsys, "--from", str(tmp_path)), "n7")


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--explain", "pf-topo-003") == 0
    assert capsys.readouterr().out.startswith("# PF-TOPO-003: Lost link")


@pytest.mark.parametrize(
    "args",
    [
        ["--machine", "none"],
        ["--check", "none"],
        ["--from", "/nowhere"],
        ["--explain", "PF-X-1"],
        ["--from", ".", "--host", "n1"],
    ],
    ids=lambda args: args[0],
)
def test_wrong_flags_are_configuration_errors(args: list[str]) -> None:
    with pytest.raises(ConfigError):
        build().main(args=["preflight", *args], prog_name="exaserve", standalone_mode=False)


def test_type_given_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topology.txt"
    file.write_text(shapes.topology(8, 0, shapes.hgx("NV16")))
    assert report(capsys, "--from", str(file))["verdict"] == "ok"
    assert report(capsys, "--from", str(file), "--machine", "hgx-h100-8")["verdict"] == "failed"


# ------------------------------------------------------------------------------------------------ a real sshd
@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[str]:
    server = program("sshd")
    program("ssh")
    program("ssh-keygen")
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    keys = tmp_path / "authorized_keys"
    keys.write_text((tmp_path / "user_key.pub").read_text())
    keys.chmod(0o600)
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host_key\nAuthorizedKeysFile {keys}\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    process = subprocess.Popen([server, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE)
    try:
        for _ in range(400):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                pytest.skip(
                    f"sshd does not start here: {process.stderr.read().decode()[-200:] if process.stderr else ''}"
                )
            time.sleep(0.05)
        yield f"ssh -p {port} -i {tmp_path}/user_key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    finally:
        process.terminate()
        process.wait(timeout=30)
        if process.stderr:
            process.stderr.close()


def test_over_a_real_ssh_session(sshd: str, capsys: pytest.CaptureFixture[str]) -> None:
    host = f"{getpass.getuser()}@127.0.0.1"
    document = report(capsys, "--ssh", sshd, "--host", host)
    found = rows(document, host)
    assert found.get("cpu") in {"ok", "warning"}, document["results"][0]
    assert found["topology"] in {"ok", "warning", "failed", "not run"}
    refused = report(capsys, "--ssh", sshd, "--host", "nobody@127.0.0.1")
    assert rows(refused, "nobody@127.0.0.1") == {"host": "failed"}
