"""Consul: the healthy instances of a service, followed by blocking queries; and the other side, a registration.

A blocking query (``/v1/health/service/NAME?index=N&wait=…``) is answered when the service's index passes N or the wait
is over. Consul's own rules for the index are kept: it starts again at 0 when it goes backwards (a restored snapshot,
another server) or is not positive, and after every failure. All instances are asked for, not only passing ones, so that
one that turns critical is told with its reason; it leaves rotation in the same answer.

With several servers (or agents) the next is asked as soon as one fails. When all are away the last known set stays.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

import httpx
import msgspec

from exaserve.discovery.entries import Defaults, spec_of, tags_as_mapping
from exaserve.discovery.feed import Source, SourceError, Tell, silent
from exaserve.discovery.http import BODY_BYTES_MAX, Tls, client_for, extensions_of, read_text, why
from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["ConsulDiscovery", "ConsulRegistration"]

WAIT_MAX_S = 600.0
PAUSE_MIN_S = 0.05
"""Between two queries at least: a service that changes all the time must not keep a core busy."""
PAUSE_SHARE = 4.0
"""And this many times what the last answer took to read: thousands of instances come as one answer of megabytes."""
PAUSE_MAX_S = 0.5
POLL_S = 1.0
"""A query after an answer without an index does not block: the pause before it is what bounds their number."""
QUERIES_PER_S = 2.0
QUERIES_BURST = 10
"""Queries in the long run, and at once: a server that answers without blocking, or a service whose index moves all the
time, must not be asked in a circle (Consul leaves that to its clients)."""
ANSWER_S = 10.0
_MAINTENANCE = ("_node_maintenance", "_service_maintenance")
"""Checks by which an operator takes a node or an instance out."""


class _Node(msgspec.Struct, rename="pascal"):
    node: str = ""
    address: str = ""


class _Weights(msgspec.Struct, rename="pascal"):
    passing: float = 1.0
    warning: float = 1.0


class _Service(msgspec.Struct, rename="pascal"):
    id: str = msgspec.field(name="ID", default="")
    address: str = ""
    port: int = 0
    tags: list[str] | None = None
    meta: dict[str, str] | None = None
    weights: _Weights | None = None


class _Check(msgspec.Struct, rename="pascal"):
    check_id: str = msgspec.field(name="CheckID", default="")
    status: str = ""
    name: str = ""
    output: str = ""


class _Entry(msgspec.Struct, rename="pascal"):
    node: _Node
    service: _Service
    checks: list[_Check] | None = None


_DECODER = msgspec.json.Decoder(list[_Entry])


class ConsulDiscovery(Source):
    """Replicas that are registered as instances of one Consul service.

    An instance's id is ``NODE/SERVICE-ID`` unless its meta says ``replica``; models, weight, version, engine and limits
    come from its meta or from ``key=value`` tags, the weight otherwise from Consul's own weights.

    Args:
        service: the service's name.
        servers: base URLs, asked in turn when one fails.
        datacenter / namespace / partition / tag: narrow the query; "" leaves each out.
        token_file: ACL token; needs ``service:read`` and ``node:read``.
        wait_s: how long a query may block.
        stale: let any server answer, also while the cluster has no leader.
        answer_s: how long an answer may take beyond the time that its query asked to block.
        poll_s: pause before the next query where an answer has no index, or one that goes backwards.
    """

    def __init__(
        self,
        service: str,
        servers: Sequence[str] = ("http://127.0.0.1:8500",),
        *,
        datacenter: str = "",
        namespace: str = "",
        partition: str = "",
        tag: str = "",
        token_file: str = "",
        tls: Tls | None = None,
        wait_s: float = 15.0,
        stale: bool = False,
        answer_s: float = ANSWER_S,
        poll_s: float = POLL_S,
        defaults: Defaults | None = None,
        tell: Tell = silent,
        rng: Random | None = None,
    ) -> None:
        super().__init__(f"consul:{service}", tell, rng)
        self._path = f"/v1/health/service/{service}"
        self._servers = itertools.cycle(servers)
        self._several = len(servers)
        self._token_file = token_file
        self._tls = tls or Tls()
        self._wait_s = min(wait_s, WAIT_MAX_S)
        self._answer_s = answer_s
        self._poll_s = poll_s
        self._defaults = defaults or Defaults()
        narrowed = {"dc": datacenter, "ns": namespace, "partition": partition, "tag": tag}
        self._params = {key: value for key, value in narrowed.items() if value} | ({"stale": ""} if stale else {})
        self._in: frozenset[ReplicaId] = frozenset()
        self._allowed, self._allowed_at = float(QUERIES_BURST), 0.0

    async def _follow(self) -> None:
        """One round over the servers: each is followed until it fails."""
        failures = []
        for server in itertools.islice(self._servers, self._several):
            updates = self._updates
            try:
                await self._follow_one(server)
            except SourceError as error:
                failures.append(f"{server}: {error}")
            if self._updates > updates and self._several > 1:
                failures.clear()
                self._tell("info", "discovery_failover", source=self.name, left=server)
        raise SourceError("; ".join(failures) or "every server failed in turn")

    async def _follow_one(self, server: str) -> None:
        headers = {"accept": "application/json"}
        if self._token_file:
            headers["x-consul-token"] = await read_text(self._token_file, "token_file")
        async with await client_for(server, self._tls, read_s=self._answer_s) as client:
            client.headers.update(headers)
            index = 0
            while True:
                index = await self._query(client, index)

    async def _query(self, client: httpx.AsyncClient, index: int) -> int:
        """Asks once and publishes; returns the index to ask with next."""
        params, limit_s = dict(self._params), self._answer_s
        if index:
            params |= {"index": str(index), "wait": f"{max(1, round(self._wait_s * 1000))}ms"}
            # Consul adds up to a sixteenth to the wait, so that queries do not end in step.
            limit_s += self._wait_s * 17 / 16
        await self._ration()
        try:
            answer = await client.get(self._path, params=params, extensions=extensions_of(self._tls), timeout=limit_s)
        except httpx.HTTPError as error:
            raise SourceError(why(error)) from None
        began = asyncio.get_running_loop().time()
        _refuse(answer)
        entries = _decode(answer)
        new = _index(answer.headers.get("x-consul-index", ""))
        self._well()
        if new != index or not index:
            self._take(entries)
        took_s = asyncio.get_running_loop().time() - began
        pause_s = min(max(PAUSE_MIN_S, PAUSE_SHARE * took_s), PAUSE_MAX_S) if new >= max(index, 1) else self._poll_s
        await asyncio.sleep(pause_s * self._rng.uniform(1.0, 1.5))
        return 0 if new < index else new

    async def _ration(self) -> None:
        """Waits until one more query is within :data:`QUERIES_PER_S`."""
        now = asyncio.get_running_loop().time()
        self._allowed = min(float(QUERIES_BURST), self._allowed + (now - self._allowed_at) * QUERIES_PER_S) - 1.0
        self._allowed_at = now
        if self._allowed < 0.0:
            await asyncio.sleep(-self._allowed / QUERIES_PER_S)

    def _take(self, entries: list[_Entry]) -> None:
        specs: list[ReplicaSpec] = []
        reasons: dict[ReplicaId, str] = {}
        leaving: list[ReplicaId] = []
        for entry in entries:
            try:
                spec = self._spec(entry)
            except ValueError as error:
                self._ignore(f"{entry.node.node}/{entry.service.id}", str(error))
                continue
            status, reason = _status(entry.checks or [])
            reasons[spec.id] = reason
            if status != "critical":
                specs.append(spec)
            elif any(check.check_id.startswith(_MAINTENANCE) for check in entry.checks or ()):
                leaving.append(spec.id)
        self._in, before = frozenset(spec.id for spec in specs), self._in
        reasons |= {each: "deregistered" for each in before - self._in if each not in reasons}
        self.publish(specs, reasons, leaving)

    def _spec(self, entry: _Entry) -> ReplicaSpec:
        service, node = entry.service, entry.node
        said = tags_as_mapping(service.tags or ()) | (service.meta or {})
        weights = service.weights or _Weights()
        status, _ = _status(entry.checks or [])
        return spec_of(
            said.get("replica", "") or f"{node.node}/{service.id}",
            service.address or node.address,
            service.port,
            said,
            self._defaults,
            node=node.node,
            weight=weights.warning if status == "warning" else weights.passing,
        )


def _refuse(answer: httpx.Response) -> None:
    """SourceError unless the answer holds all that was asked for."""
    if answer.status_code == 403:
        raise SourceError("the ACL token may not read this service (it needs service:read and node:read)")
    if answer.status_code != 200:
        raise SourceError(f"status {answer.status_code}: {' '.join(answer.text[:200].split())}")
    if answer.headers.get("x-consul-results-filtered-by-acls", "").lower() == "true":
        # An answer that silently lacks nodes would take healthy replicas out.
        raise SourceError("the ACL token hides part of the answer (it needs service:read and node:read)")


def _decode(answer: httpx.Response) -> list[_Entry]:
    if len(answer.content) > BODY_BYTES_MAX:
        raise SourceError("the answer is too large")
    try:
        return _DECODER.decode(answer.content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"the answer is not Consul's: {error}") from None


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 21 else 0


def _status(checks: list[_Check]) -> tuple[Literal["passing", "warning", "critical"], str]:
    """The worst check decides. Anything that is not passing or warning counts as critical, as maintenance does."""
    worst: Literal["passing", "warning", "critical"] = "passing"
    reason = "passing"
    for check in checks:
        if check.status == "warning" and worst == "passing":
            worst, reason = "warning", f"warning: {check.name}"
        elif check.status not in ("passing", "warning"):
            output = " ".join(check.output[:120].split())
            return "critical", f"critical: {check.name}{': ' if output else ''}{output}"
    return worst, reason


class ConsulRegistration:
    """A replica's own entry, for whoever runs next to it (the node agent): registered with a TTL check and kept alive.

    The check turns critical when :meth:`beat` has not been called for ``ttl_s``, so a node that dies is out of rotation
    within that time without anybody's help.

    Args:
        agent: base URL of the node's own Consul agent.
        ttl_s: at most 15 s.
        forget_s: after this long in critical Consul removes the entry by itself.
    """

    TTL_MAX_S = 15.0

    def __init__(
        self,
        service: str,
        spec: ReplicaSpec,
        agent: str = "http://127.0.0.1:8500",
        *,
        token_file: str = "",
        tls: Tls | None = None,
        ttl_s: float = 10.0,
        forget_s: float = 600.0,
        tags: Sequence[str] = (),
    ) -> None:
        if not 1.0 <= ttl_s <= self.TTL_MAX_S:
            raise ValueError(f"ttl_s must be from 1 to {self.TTL_MAX_S:g}, not {ttl_s:g}")
        host, _, port = spec.url.removeprefix("http://").rpartition(":")
        self._id = spec.id.replace("/", "-")
        self._check = f"service:{self._id}"
        self._agent = agent
        self._token_file = token_file
        self._tls = tls or Tls()
        self._client: httpx.AsyncClient | None = None
        self.beat_every_s = ttl_s / 3
        """How often to call :meth:`beat`: two may be lost before the check turns critical."""
        self._body: dict[str, Any] = {
            "ID": self._id,
            "Name": service,
            "Address": host.strip("[]"),
            "Port": int(port),
            "Tags": list(tags),
            "Meta": _meta_of(spec),
            "Check": {
                "CheckID": self._check,
                "Name": "exaserve replica",
                "TTL": f"{ttl_s:g}s",
                "Status": "critical",
                "DeregisterCriticalServiceAfter": f"{forget_s:g}s",
            },
        }

    async def beat(self, status: Literal["passing", "warning", "critical"] = "passing", output: str = "") -> None:
        """Says how the replica is, and registers it where the agent does not know it. SourceError if that fails."""
        put = {"Status": status, "Output": output[:1000]}
        answer = await self._put(f"/v1/agent/check/update/{self._check}", put)
        if answer.status_code in (404, 500):  # older agents say 500 of a check they do not know
            await self.register()
            answer = await self._put(f"/v1/agent/check/update/{self._check}", put)
        _expect(answer)

    async def register(self) -> None:
        """Makes the entry, or describes it anew; critical until the next :meth:`beat`. SourceError if that fails."""
        _expect(await self._put("/v1/agent/service/register?replace-existing-checks=true", self._body))

    async def close(self) -> None:
        """Takes the entry away; gateways hear of it at once. Trouble does not matter any more: the TTL runs out."""
        try:
            await self._put(f"/v1/agent/service/deregister/{self._id}", None)
        except SourceError:
            pass
        finally:
            await self.hang_up()

    async def hang_up(self) -> None:
        """Closes the connection and leaves the entry."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _put(self, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        if self._client is None:
            self._client = await client_for(self._agent, self._tls, read_s=3.0)
        headers = {}
        if self._token_file:
            headers["x-consul-token"] = await read_text(self._token_file, "token_file")
        try:
            return await self._client.put(path, json=body, headers=headers, extensions=extensions_of(self._tls))
        except httpx.HTTPError as error:
            raise SourceError(f"{self._agent}: {why(error)}") from None


def _expect(answer: httpx.Response) -> None:
    if answer.status_code == 403:
        raise SourceError("the ACL token may not register this service (it needs service:write)")
    if answer.status_code != 200:
        raise SourceError(f"status {answer.status_code}: {' '.join(answer.text[:200].split())}")


def _meta_of(spec: ReplicaSpec) -> dict[str, str]:
    """What :func:`exaserve.discovery.entries.spec_of` reads back; Consul's values are texts."""
    said = {
        "replica": spec.id,
        "models": ",".join(spec.models),
        "version": spec.version,
        "node": spec.node,
        "engine": "" if spec.engine == "auto" else spec.engine,
        "weight": "" if spec.weight == 1.0 else f"{spec.weight:g}",
        "max_model_len": str(spec.max_model_len or ""),
        "max_num_seqs": str(spec.max_num_seqs or ""),
        "kv_tokens_max": str(spec.kv_tokens_max or ""),
        "prefill_tokens_per_s": f"{spec.prefill_tokens_per_s:g}" if spec.prefill_tokens_per_s else "",
        "decode_step_s": f"{spec.decode_step_s:g}" if spec.decode_step_s else "",
    }
    return {key: value for key, value in said.items() if value}
