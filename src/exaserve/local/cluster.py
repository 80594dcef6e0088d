"""A whole cluster on this machine: one process with every node's agent, and a gateway.

Addresses are checked before anything starts, so that the field at fault can be named. Replicas are ready when they have
answered a completion of one token, not when a port is open. The gateway is a child of its own: it gets a core, and its
end is seen like any other's. Whatever happens, :meth:`LocalCluster.stop` ends all of them.

Where every replica is emulated and no agents are asked for, one process for each node holds its emulators instead: an
agent starts a process for each replica, and the 48 of the demonstration would take half a minute of two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from exaserve.agent.processes import Child, stop_all
from exaserve.config import Cluster, read_secret, state_folder, to_yaml
from exaserve.domain.errors import ConfigError, ExaServeError
from exaserve.domain.replica import ReplicaSpec
from exaserve.engines.fetch import Fetched
from exaserve.engines.probe import ask_completion, ask_models, reason_of
from exaserve.local.addresses import check_addresses, shown_url
from exaserve.local.commands import EXASERVE, emulator_commands, needs_agents

__all__ = ["LocalCluster", "StartFailed", "StartStep"]

EMULATOR_START_S = 60.0
ENGINE_START_S = 1800.0
"""Large models take long to load from a shared file system."""
GATEWAY_START_S = 30.0
STOP_GRACE_S = 5.0
"""Beyond what a process may take by its own settings; then it is killed."""
_PROBE_TIMEOUT_S = 10.0
_PROBES_AT_ONCE = 32
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0


class StartFailed(ExaServeError):
    """A process of the cluster did not come up."""

    fault = "operator"
    code = "start_failed"


@dataclass(frozen=True, slots=True)
class StartStep:
    """Progress of a start: ``done`` of ``total`` replicas answer."""

    text: str
    done: int
    total: int


class LocalCluster:
    """Starts and stops the processes of one cluster.

    Args:
        cluster: what to run; its replicas must be on this machine, or already running.
        config_path: the file it came from, if unchanged: the gateway then reads it again on SIGHUP.
        on_step: told of progress.
        on_line: given every line of the children's output, as (name, line).
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        config_path: str | None = None,
        on_step: Callable[[StartStep], None] | None = None,
        on_line: Callable[[str, str], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self.url = shown_url(cluster.gateway.host, cluster.gateway.port)
        self.admin_url = shown_url(cluster.gateway.admin_host, cluster.gateway.admin_port)
        self._config_path = config_path
        self._tell = on_step
        self._on_line = on_line
        self._children: list[Child] = []
        self._starting: set[asyncio.Task[Child]] = set()
        self._memory_file: int | None = None

    @property
    def children(self) -> Sequence[Child]:
        """Every process, the gateway last."""
        return tuple(self._children)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when the gateway serves a completion.

        Raises:
            ConfigError: an address is in use or not of this machine.
            StartFailed: a process ended or did not answer in time.
        """
        replicas = self.cluster.replicas()
        if not replicas:
            raise ConfigError(
                "there are no replicas: give the cluster file a model, or replicas with URLs", param="replicas"
            )
        check_addresses(self.cluster)
        if needs_agents(self.cluster):
            await self._start_with_agents()
            return
        self._step(StartStep("starting replicas", 0, len(replicas)))
        for name, argv in emulator_commands(self.cluster):
            await self._launch(name, argv)
        await self._until_answering(replicas)
        self._step(StartStep("starting the gateway", len(replicas), len(replicas)))
        argv = [*EXASERVE, "gateway", "--config", self._gateway_config()]
        await self._launch("gateway", argv, pass_fds=() if self._memory_file is None else (self._memory_file,))
        await self._until_gateway_serves()

    async def _start_with_agents(self) -> None:
        """The gateway and one process with every node's agent, at the same time: neither waits for the other."""
        cluster = self.cluster
        config = self._gateway_config()
        fds = () if self._memory_file is None else (self._memory_file,)
        started = sum(len(cluster.started(pool)) for pool in cluster.pools)
        self._step(StartStep("starting the gateway and the nodes' agents", 0, started))
        agents = [*EXASERVE, "agent", "--all-nodes", "--config", config]
        if not cluster.agents.state_dir:  # another cluster on this machine may have nodes of the same names
            agents += ["--state-dir", str(state_folder() / f"up-{cluster.gateway.port}")]
        await self._launch("agents", agents, pass_fds=fds)
        await self._launch("gateway", [*EXASERVE, "gateway", "--config", config], pass_fds=fds)
        null = all(pool.engine in ("null", "emulator") for pool in cluster.pools if pool.starts_replicas)
        limit_s = EMULATOR_START_S if null else ENGINE_START_S
        models = tuple({model: None for spec in cluster.replicas() for model in spec.models})
        async with self._client() as client:
            what = f"gateway ({self.url})"
            await self._until(lambda: self._agents_ready(client, started), what, limit_s, pause_max_s=0.2)
            await self._until(lambda: _completes(client, self.url, models), what, GATEWAY_START_S)
            if started < len(cluster.replicas()):  # others run already
                await self._until(lambda: _all_available(client, self.admin_url), what, GATEWAY_START_S)

    async def _agents_ready(self, client: httpx.AsyncClient, replicas: int) -> str:
        """ "" once every replica may take requests, else how many may. StartFailed where one has ended."""
        try:
            answer = (await client.get(f"{self.admin_url}/nodes")).json()
            ready, troubled = int(answer["ready"]), int(answer["troubled"])
            if troubled:
                raise StartFailed(await self._trouble(client))
        except (httpx.HTTPError, ValueError, LookupError) as error:
            return str(error) or type(error).__name__
        self._step(StartStep("waiting until every replica answers", ready, replicas))
        return "" if ready >= replicas else f"{ready} of {replicas} replicas are ready"

    async def _trouble(self, client: httpx.AsyncClient) -> str:
        """Of the first replica that has ended: how, and its last lines."""
        nodes = (await client.get(f"{self.admin_url}/nodes/all")).json()["nodes"]
        node, row = next(
            (node["node"], row) for node in nodes for row in node["replicas"] if row["state"] in ("backoff", "failed")
        )
        asked = {"replica": row["id"], "lines": 8}
        lines = (await client.post(f"{self.admin_url}/nodes/{node}/logs", json=asked)).json()["lines"]
        words = "\n  ".join(lines)
        how = str(row["reason"]).partition("; last line: ")[0]
        return f"{row['id']} {how}" + (f"; its last lines:\n  {words}" if words else "")

    async def stop(self) -> None:
        """Ends every process, the gateway first so that it does not see its replicas die.

        It has its own drain, and agents the time in which they stop engines, before they are killed.
        """
        agents = self.cluster.agents
        others_s = agents.drain_s + agents.stop_s if needs_agents(self.cluster) else 0.0
        if self._starting:  # cancelled in the middle of a start: that process exists or is about to
            self._children += [
                each
                for each in await asyncio.gather(*self._starting, return_exceptions=True)
                if isinstance(each, Child)
            ]
        gateway = [child for child in self._children if child.name == "gateway"]
        await stop_all(gateway, self.cluster.gateway.drain_s + STOP_GRACE_S)
        await stop_all([child for child in self._children if child not in gateway], others_s + STOP_GRACE_S)
        if self._memory_file is not None:
            os.close(self._memory_file)
            self._memory_file = None

    async def next_end(self) -> Child:
        """The next child that ends by itself."""
        running = [child for child in self._children if child.code is None]
        waits = {asyncio.ensure_future(child.wait()): child for child in running}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    # -- starting --------------------------------------------------------------------------------------------------

    async def _launch(self, name: str, argv: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        task = asyncio.ensure_future(Child.start(name, argv, pass_fds=pass_fds, on_line=self._on_line))
        self._starting.add(task)
        self._children.append(await asyncio.shield(task))
        self._starting.discard(task)

    def _gateway_config(self) -> str:
        if self._config_path is not None:
            return self._config_path
        if self._memory_file is None:
            self._memory_file = os.memfd_create("exaserve-cluster")
            os.write(self._memory_file, to_yaml(self.cluster).encode())
        return f"/proc/self/fd/{self._memory_file}"

    def kill(self) -> None:
        """Ends every process at once."""
        for child in self._children:
            child.signal(signal.SIGKILL)

    def _step(self, step: StartStep) -> None:
        if self._tell is not None:
            self._tell(step)

    async def _until_answering(self, replicas: Sequence[ReplicaSpec]) -> None:
        elsewhere = any(not pool.starts_replicas for pool in self.cluster.pools)
        limit_s = ENGINE_START_S if elsewhere else EMULATOR_START_S
        at_once = asyncio.Semaphore(_PROBES_AT_ONCE)
        answered = 0

        async def until_answers(spec: ReplicaSpec, client: httpx.AsyncClient) -> None:
            nonlocal answered
            await self._until(
                lambda: _completes(client, spec.url, spec.models, spec.engine, alive_is_enough=True),
                f"replica {spec.id} ({spec.url})",
                limit_s,
                at_once,
            )
            answered += 1
            self._step(StartStep("waiting until every replica answers", answered, len(replicas)))

        try:
            async with self._client() as client, asyncio.TaskGroup() as group:
                for spec in replicas:
                    group.create_task(until_answers(spec, client))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _until_gateway_serves(self) -> None:
        """A completion passes through it, and it has seen every replica healthy by its own probes."""
        models = tuple({model: None for spec in self.cluster.replicas() for model in spec.models})
        async with self._client() as client:
            what = f"gateway ({self.url})"
            await self._until(lambda: _completes(client, self.url, models), what, GATEWAY_START_S)
            await self._until(lambda: _all_available(client, self.admin_url), what, GATEWAY_START_S)

    def _client(self) -> httpx.AsyncClient:
        """A client that shows engines and gateway the engines' key, and the admin API its own token."""
        settings = self.cluster.gateway
        key_file, admin_file = settings.engine_api_key_file, settings.admin_token_file
        key = read_secret(key_file, "gateway.engine_api_key_file", characters_min=1) if key_file else ""
        admin = read_secret(admin_file, "gateway.admin_token_file") if admin_file else ""

        def authorise(request: httpx.Request) -> httpx.Request:
            token = admin if str(request.url).startswith(f"{self.admin_url}/") else key
            if token:
                request.headers["Authorization"] = f"Bearer {token}"
            return request

        # trust_env=False: a proxy of the environment must not stand between us and our own loopback.
        return httpx.AsyncClient(
            timeout=_PROBE_TIMEOUT_S,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
            auth=authorise,
        )

    async def _until(
        self,
        check: Callable[[], Awaitable[str]],
        what: str,
        limit_s: float,
        at_once: asyncio.Semaphore | None = None,
        pause_max_s: float = _PAUSE_MAX_S,
    ) -> None:
        """Asks until the answer is good, a child of ours has ended, or the time is over."""
        began, pause_s, last = time.monotonic(), _PAUSE_MIN_S, ""
        while time.monotonic() - began < limit_s:
            async with at_once or contextlib.nullcontext():
                last = await check()
            if not last:
                return
            for child in self._children:
                if child.code is not None:
                    await child.wait()
                    raise StartFailed(_last_words(child))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, pause_max_s)
        newest = self._children[-1]
        raise StartFailed(f"{what} did not answer within {limit_s:.0f} s: {last}\n{_last_words(newest)}")


def _last_words(child: Child) -> str:
    words = "\n  ".join(list(child.tail)[-8:])
    return f"{child.name} {child.describe_end()}" + (f"; its last lines:\n  {words}" if words else "")


_ASKS_FOR_A_KEY = 401
"""A gateway that guards its endpoint serves; whether its replicas do is asked of them."""


async def _completes(
    client: httpx.AsyncClient, url: str, models: Sequence[str], engine: str = "", *, alive_is_enough: bool = False
) -> str:
    """Empty if every model (or the first one listed) answers the smallest request at ``url``, else what went wrong."""

    async def ask(method: str, path: str, body: bytes) -> Fetched:
        began = time.monotonic()
        status, answered, error = None, b"", ""
        try:
            response = await client.request(
                method, url + path, content=body, headers={"Content-Type": "application/json"} if body else None
            )
            status, answered = response.status_code, response.content
        except (httpx.HTTPError, ValueError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        return Fetched(status, answered, error, began, time.monotonic() - began)

    if not models:
        listing, cards = await ask_models(ask)
        if not cards:
            return listing.error or f"/v1/models answers {listing.status} and lists no model"
        models = (cards[0].id,)
    for model in models:
        result, worked = await ask_completion(ask, model, engine, alive_is_enough=alive_is_enough)
        if worked is None and result.status != _ASKS_FOR_A_KEY:
            return result.error or f"status {result.status}: {reason_of(result.status, result.body)}"
    return ""


async def _all_available(client: httpx.AsyncClient, admin_url: str) -> str:
    """Empty if the gateway would send requests to each of its replicas."""
    try:
        rows = (await client.get(f"{admin_url}/replicas")).json()["replicas"]
        down = [str(row["id"]) for row in rows if not row["share"] > 0.0]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"it has not seen {len(down)} replicas healthy yet, such as {down[0]}" if down else ""
