"""What the guard costs, and whether its limits hold: a table of target, result, met or missed.

    python -m benchmarks.bench_guard                    all of it, about two minutes
    python -m benchmarks.bench_guard --only path        CPU of the data plane alone, with keys and limits and without
    python -m benchmarks.bench_guard --only limits      one limit over four gateways that are peers, under overload

The cost is a difference between two data planes in one process, measured in turn without sockets (see ``bench_path``).
The limits are tried with real gateway processes and emulated engines. Clients come again as soon as they are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.bench_path import COUNTS, WarmPath
from benchmarks.machine import Child, description, environment, start
from exaserve.control.records import Allowance
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import EmulatorProcess
from exaserve.gateway import core as core_module

MODEL = "bench"
GATEWAYS = 4
CLIENTS = 50
SECONDS = 60.0
RPM, TPM = 600, 60_000
START_MAX_S = 60.0


class Verdict(NamedTuple):
    """One line of the table."""

    target: str
    result: str
    met: bool


def path_costs(rounds: int) -> list[Verdict]:
    """Least CPU of each kind over the rounds, µs: what disturbs only ever adds."""
    bounds = Allowance(
        requests_per_minute=10**9, tokens_per_minute=10**12, concurrent_requests=10**6, tokens_per_month=10**15
    )
    paths = {"open": WarmPath(), "guarded": WarmPath(bounds)}
    paths["guarded"].core.guard = paths["guarded"].guard
    kinds: dict[str, Callable[[WarmPath], Callable[[int], None]]] = {
        "plain": lambda p: p.plain,
        "event": lambda p: p.event,
    }
    best: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for name, path in paths.items():
            for kind, run in kinds.items():
                began = time.process_time()
                run(path)(COUNTS[kind])
                took = (time.process_time() - began) / COUNTS[kind] * 1e6
                best[name, kind] = min(best.get((name, kind), took), took)
    more = {kind: best["guarded", kind] - best["open", kind] for kind in kinds}
    form = "plain Python" if str(core_module.__file__).endswith(".py") else "compiled"
    plain = f"{more['plain']:+.2f} µs ({best['open', 'plain']:.2f} without, {form})"
    event = f"{more['event']:+.3f} µs ({best['open', 'event']:.2f} without, {form})"
    return [
        Verdict("keys and limits: at most 4 µs of CPU more per plain request", plain, more["plain"] <= 4.0),
        Verdict(
            "nothing more per streamed event (within 2 % of it)", event, more["event"] <= 0.02 * best["open", "event"]
        ),
    ]


@contextmanager
def gateway(urls: list[str], folder: Path, name: str, peers: list[str]) -> Iterator[tuple[str, str, str]]:
    """URL, admin URL and peer address of a gateway process."""
    command = [sys.executable, "-m", "exaserve", "gateway", "--port", "0", "--admin-port", "0", "--name", name]
    command += ["--state-dir", str(folder), "--peer-listen", "127.0.0.1:0"]
    command += [part for url in urls for part in ("--replica", url)]
    child = start(
        f"gateway {name}", [*command, *(part for peer in peers for part in ("--peer", peer))], None, folder.parent
    )
    try:
        end = time.monotonic() + START_MAX_S
        while (peering := _said(child, "peering")) is None or (listening := _said(child, "listening")) is None:
            if time.monotonic() > end or child.process.poll() is not None:
                raise SystemExit(f"a gateway did not start:\n{child.log_tail()}")
            time.sleep(0.05)
        yield listening["url"], listening["admin"], peering["listen"]
    finally:
        child.stop(60.0)


def _said(child: Child, event: str) -> dict[str, str] | None:
    """The fields of its first log line about ``event``."""
    for line in child.log.read_text().splitlines():
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if fields.get("event") == event:
            return fields
    return None


async def overload(urls: list[str], secret: str, seconds: float) -> tuple[int, int, int]:
    """Requests and tokens admitted, and requests refused, within ``seconds``."""
    admitted = tokens = refused = 0
    end = time.monotonic() + seconds
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello there."}],
        "max_tokens": 60,
        "ignore_eos": True,
    }

    async def one(client: httpx.AsyncClient, number: int) -> None:
        nonlocal admitted, tokens, refused
        while time.monotonic() < end:
            url = urls[number % len(urls)]
            number += 1
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            if answer.status_code == 200:
                admitted += 1
                tokens += answer.json()["usage"]["total_tokens"]
            else:
                refused += 1
                await asyncio.sleep(0.05)

    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(
        headers=headers, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=200)
    ) as client:
        await asyncio.gather(*(one(client, number) for number in range(CLIENTS)))
    return admitted, tokens, refused


def limits_hold(seconds: float) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="exaserve-bench-") as name, ExitStack() as stack:
        folder = Path(name) / "g1"
        bounds = f"--rpm {RPM} --tpm {TPM} --concurrency 1000".split()
        create = [sys.executable, "-m", "exaserve", "keys", "create", *bounds, "--state-dir", str(folder)]
        made = subprocess.run(create, check=True, capture_output=True, text=True, env=environment())
        secret = made.stdout.strip()
        engines = stack.enter_context(
            EmulatorProcess(EmulatorConfig(replicas=8, port=0, speed=20.0, load_s=1.0, served_model_names=(MODEL,)))
        )
        started: list[tuple[str, str, str]] = []
        for number in range(1, GATEWAYS + 1):
            peers = [peer for _, _, peer in started]
            started.append(stack.enter_context(gateway(engines.urls, Path(name) / f"g{number}", f"g{number}", peers)))
        with httpx.Client(trust_env=False, timeout=10) as client:
            end = time.monotonic() + 60
            headers = {"authorization": f"Bearer {secret}"}
            for url, admin, _ in started:
                while (
                    client.get(f"{admin}/limits").json()["gateways"] < GATEWAYS
                    or client.get(f"{url}/v1/models", headers=headers).status_code != 200
                    or client.get(f"{url}/ready").status_code != 200
                ):
                    if time.monotonic() > end:
                        raise SystemExit("the gateways did not find each other")
                    time.sleep(0.1)
            admitted, tokens, refused = asyncio.run(overload([url for url, _, _ in started], secret, seconds))
            time.sleep(1.0)
            rows = [row for _, admin, _ in started for row in client.get(f"{admin}/limits").json()["limits"]]
        left = sum(abs(row["used"]) for row in rows if row["kind"] == "concurrent")
    share = max(admitted / RPM, tokens / TPM)
    result = f"{admitted} requests, {tokens} tokens admitted ({share:.1%} of the bound), {refused} refused"
    return [
        Verdict(
            f"{GATEWAYS} gateways, one limit of {RPM} RPM and {TPM} TPM: within 2 %", result, abs(share - 1.0) <= 0.02
        ),
        Verdict("afterwards every counter of requests under way is 0", f"{left:g}", left == 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("path", "limits"), help="one part")
    parser.add_argument("--rounds", type=int, default=12, help="of each kind (default %(default)d)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of overload (default %(default)g)")
    parser.add_argument("--json", type=Path, help="write the table there too")
    options = parser.parse_args()
    print(description())
    verdicts: list[Verdict] = []
    if options.only != "limits":
        verdicts += path_costs(options.rounds)
    if options.only != "path":
        verdicts += limits_hold(options.seconds)
    for verdict in verdicts:
        print(f"{'met   ' if verdict.met else 'MISSED'}  {verdict.target}: {verdict.result}")
    if options.json:
        options.json.write_text(
            json.dumps([verdict._asdict() for verdict in verdicts], indent=2, ensure_ascii=False) + "\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
