"""The admin API, on a port of its own: what the gateway knows, and the levers.

=======  =============================  ===================================================================
method   path                           what
=======  =============================  ===================================================================
GET      /replicas                      every replica: health, load, report, ledger, entropy by term
POST     /replicas/{id}/drain           no new requests; those in flight go on
POST     /replicas/{id}/undrain         back in rotation
POST     /replicas/{id}/weight          ``{"weight": 0.5}``; 0 takes it out
POST     /replicas/{id}/score           ``{"score": 1.5}``, ``"inf"`` (nothing at all), ``null`` (computed again)
GET      /discovery                     sources of replicas: whether they answer, what they list
POST     /discovery/believe             {"source": "consul:vllm"}: its answer is right though it takes much away
GET      /peers                         other gateways that share these replicas, and what they told
POST     /policy                        ``{"policy": "entropy"}``
POST     /explain                       a hypothetical request: who is out and why, what the others cost
GET      /keys, /keys/{key}             keys, without secrets; POST, PATCH … in :mod:`exaserve.gateway.admin.keys`
GET      /tenants                       tenants; PUT and DELETE /tenants/{tenant}
GET      /audit                         what administrators did, newest first; ``?count=100&before=NUMBER``
GET      /config                        effective configuration
GET      /queue                         the admission queue
GET      /metrics, /health              as on the data port; ``/metrics?by=replica``: a series for each, at any size
=======  =============================  ===================================================================

Errors are ``{"error": {"message", "type", "param", "code"}}``. It can take replicas out of rotation, so beyond loopback
a bearer token is required, and requests that a web page could have made are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exaserve.config import Cluster, is_loopback, join_address
from exaserve.config.show import shown_to_people
from exaserve.domain.errors import ClientError, ConfigError
from exaserve.gateway.admin.answers import AdminError, as_json, decoded, read_raw
from exaserve.gateway.admin.keys import KeyRoutes
from exaserve.gateway.admin.levers import LeverRoutes, state_of
from exaserve.gateway.admin.nodes import Nodes
from exaserve.gateway.admin.rows import replica_row
from exaserve.gateway.data_plane import DataPlane
from exaserve.gateway.fleet.agents import AgentServer
from exaserve.gateway.fleet.registries import Registries
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.gateway.guard.keeper import GuardKeeper
from exaserve.gateway.http.body import ABSENT
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.parse import Request as ClientRequest
from exaserve.gateway.http.routes import resolve
from exaserve.gateway.peers.peering import Peering
from exaserve.observe import EventLog, GatewayMetrics
from exaserve.scheduling import Admission, ReplicaLedger, Scheduler
from exaserve.serving.fleet import Fleet

__all__ = ["AdminServer", "Control", "build_admin"]

_PAUSE_EVERY = 32
"""Rows between two pauses: about a millisecond."""


class Control(Protocol):
    """What the admin API needs of a gateway."""

    cluster: Cluster
    log: EventLog
    clock: Callable[[], float]
    scheduler: Scheduler
    admission: Admission
    fleet: Fleet
    metrics: GatewayMetrics
    data_plane: DataPlane
    telemetry: Telemetry
    peering: Peering | None
    registries: Registries | None
    agents: AgentServer | None
    keeper: GuardKeeper
    url: str


class _Explain(msgspec.Struct):
    """A request's body, read as the data port reads it, and with it what else it would come with.

    ``path`` is where it would be sent, ``session`` its header, and ``prompt_tokens`` overrides the estimated length.
    """

    model: str
    path: str | None = None
    prompt_tokens: int | None = None
    session: str | None = None
    messages: msgspec.Raw = ABSENT


class _Admin:
    """The handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/replicas", self.replicas),
            ("GET", "/replicas/{replica:path}", self.one),
            ("GET", "/discovery", self.discovery),
            ("GET", "/peers", self.peers),
            ("POST", "/explain", self.explain),
            ("GET", "/config", self.config),
            ("GET", "/queue", self.queue),
            ("GET", "/metrics", self.metrics),
            ("GET", "/health", self.alive),
        ]
        return [Route(path, handler, methods=[method]) for method, path, handler in table]

    # ---- looking ------------------------------------------------------------------------------------------------
    async def replicas(self, _request: Request) -> Response:
        control = self._control
        requests = control.metrics.requests_by_replica()
        rows = []
        for number, (replica, state) in enumerate(list(control.scheduler.states().items())):
            if number % _PAUSE_EVERY == _PAUSE_EVERY - 1:
                await asyncio.sleep(0)  # thousands of rows take longer than a token may wait
            if replica in control.fleet:
                rows.append(msgspec.Raw(msgspec.json.encode(self._row(state, requests.get(replica, 0)))))
        return as_json(
            {
                "url": control.url,
                "policy": control.scheduler.policy_name,
                "stopping": control.data_plane.core.stopping,
                "models": control.scheduler.models(),
                "ready_models": control.scheduler.ready_models(),
                "in_flight": control.data_plane.inflight(),
                "streams": control.metrics.streams_open,
                "queued": len(control.admission),
                "requests_total": control.metrics.finished_total,
                "peers": self._peers(),
                "nodes": self._nodes(),
                "replicas": rows,
            }
        )

    async def one(self, request: Request) -> Response:
        state = self._state(request)
        return as_json(self.row(state))

    def row(self, state: ReplicaLedger) -> dict[str, Any]:
        """A replica as it is now."""
        return self._row(state, self._control.metrics.requests_by_replica().get(state.id, 0))

    def _row(self, state: ReplicaLedger, requests: int) -> dict[str, Any]:
        control = self._control
        word = None if control.agents is None else control.agents.word(state.id)
        polling = control.telemetry.view(state.id)
        return replica_row(control.fleet, polling, word, state, requests, control.clock())

    async def discovery(self, _request: Request) -> Response:
        registries = self._control.registries
        return as_json({"sources": [] if registries is None else registries.as_rows()})

    async def peers(self, _request: Request) -> Response:
        return as_json({"peering": self._peers()})

    def _nodes(self) -> dict[str, object] | None:
        """None for a gateway that takes no agents."""
        agents = self._control.agents
        return None if agents is None else agents.summary()

    def _peers(self) -> dict[str, Any] | None:
        """None for a gateway that is alone."""
        peering = self._control.peering
        return None if peering is None else peering.as_dict()

    async def config(self, _request: Request) -> Response:
        return as_json({"config": shown_to_people(self._control.cluster)})

    async def queue(self, _request: Request) -> Response:
        admission = self._control.admission
        deadline = admission.next_deadline()
        return as_json(
            {
                "queued": len(admission),
                "size_bytes": admission.size_bytes,
                "queue_max": admission.config.queue_max,
                "bytes_max": admission.config.bytes_max,
                "wait_max_s": admission.config.wait_max_s,
                "next_deadline_in_s": None if deadline is None else deadline - self._control.clock(),
            }
        )

    async def metrics(self, request: Request) -> Response:
        metrics = self._control.metrics
        nodes = None if request.query_params.get("by") == "replica" else metrics.nodes()
        parts = []
        for piece in metrics.pieces(nodes):
            parts.append(piece)
            await asyncio.sleep(0)
        return Response(b"".join(parts), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def alive(self, _request: Request) -> Response:
        return as_json({"status": "ok"})

    async def explain(self, request: Request) -> Response:
        raw = await read_raw(request)
        asked = decoded(raw, _Explain)
        scheduler = self._control.scheduler
        path = asked.path or ("/v1/completions" if asked.messages is ABSENT else "/v1/chat/completions")
        sent = ClientRequest()
        sent.body = bytes(raw)
        sent.session = (asked.session or "").encode("latin-1", "replace")
        try:
            facts = inspect(sent, resolve(b"POST", path.encode()), scheduler)
        except ClientError as error:
            raise AdminError(400, error.message, error.code, error.param or "path") from None
        if asked.prompt_tokens is not None:
            if facts.total_tokens_max:
                facts.total_tokens_max += asked.prompt_tokens - facts.prompt_tokens
            facts.prompt_tokens = asked.prompt_tokens
        explained = scheduler.explain(facts, self._control.clock())
        return as_json(explained.as_dict() | {"prompt_tokens": facts.prompt_tokens})

    def _state(self, request: Request) -> ReplicaLedger:
        return state_of(self._control.scheduler, request)


def build_admin(control: Control, token: str | None) -> Starlette:
    """The admin API as an ASGI application; ``token`` None asks for none."""

    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, AdminError)
        return as_json(error.body, error.status)

    async def not_found(request: Request, _error: Exception) -> Response:
        return as_json(AdminError(404, f"There is no {request.url.path}.", "route_not_found").body, 404)

    async def wrong_method(request: Request, _error: Exception) -> Response:
        message = f"{request.method} does not apply to {request.url.path}."
        return as_json(AdminError(405, message, "method_not_allowed").body, 405)

    async def failed(request: Request, error: Exception) -> Response:
        control.log.error("admin_failed", path=request.url.path, error=repr(error))
        return as_json(
            {"error": {"message": "Internal error.", "type": "server_error", "param": None, "code": "internal_error"}},
            500,
        )

    admin = _Admin(control)
    parts = (Nodes(control), KeyRoutes(control), LeverRoutes(control, admin.row), admin)
    app = Starlette(
        routes=[route for part in parts for route in part.routes()],
        exception_handlers={AdminError: refused, 404: not_found, 405: wrong_method, Exception: failed},
    )

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            if (error := _may_not(request, token)) is not None:
                await as_json(error.body, error.status)(scope, receive, send)
                return
        await app(scope, receive, send)

    outer = Starlette()
    outer.mount("/", guarded)
    return outer


def _may_not(request: Request, token: str | None) -> AdminError | None:
    """Why the request is refused, or None."""
    if token is not None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            return AdminError(401, "The admin API needs Authorization: Bearer TOKEN.", "unauthorized")
        return None
    # Without a token, loopback is the only guard, and a browser on this machine is inside it.
    if request.headers.get("origin") is not None or not _is_address(request.headers.get("host", "")):
        return AdminError(403, "The admin API takes no requests from web pages.", "forbidden")
    return None


def _is_address(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AdminServer:
    """Serves :func:`build_admin` in the running loop."""

    def __init__(self, control: Control, host: str, port: int, token: str | None) -> None:
        self._control = control
        self._host = host
        self._port = port
        self._token = token
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listens; returns the URL. OSError where the address cannot be had, ConfigError where a token is needed."""
        if self._token is None and not is_loopback(self._host):
            raise ConfigError(
                f"the admin API on {self._host} can be reached from other machines and needs a token;"
                " give --admin-token-file, or leave it on 127.0.0.1",
                param="gateway.admin_host",
            )
        bound = self._listen()
        config = uvicorn.Config(
            build_admin(self._control, self._token),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            limit_concurrency=256,
        )
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))
        return f"http://{join_address(self._host, bound.getsockname()[1])}"

    def _listen(self) -> socket.socket:
        info = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(info[0], socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(info[4])
            bound.listen(128)
            bound.setblocking(False)  # noqa: FBT003 (the standard library's own signature)
        except OSError:
            bound.close()
            raise
        return bound

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
