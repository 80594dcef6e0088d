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
import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exaserve.config import Cluster, is_loopback, join_address
from exaserve.config.show import shown_to_people
from exaserve.domain.errors import ClientError, ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.admin.nodes import Nodes
from exaserve.gateway.admin.rows import replica_row
from exaserve.gateway.data_plane import DataPlane
from exaserve.gateway.fleet.agents import AgentServer
from exaserve.gateway.fleet.registries import Registries
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.gateway.http.body import ABSENT
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.parse import Request as ClientRequest
from exaserve.gateway.http.routes import resolve
from exaserve.gateway.peers.peering import Peering
from exaserve.observe import EventLog, GatewayMetrics
from exaserve.scheduling import Admission, ReplicaLedger, Scheduler
from exaserve.serving.fleet import Fleet

__all__ = ["AdminServer", "Control", "build_admin"]

BODY_BYTES_MAX = 1_048_576
_PAUSE_EVERY = 32
"""Rows between two pauses: about a millisecond."""
_T = TypeVar("_T")


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
    url: str


class _Weight(msgspec.Struct, forbid_unknown_fields=True):
    weight: float


class _Score(msgspec.Struct, forbid_unknown_fields=True):
    score: float | Literal["inf"] | None


class _Policy(msgspec.Struct, forbid_unknown_fields=True):
    policy: str


class _Believe(msgspec.Struct, forbid_unknown_fields=True):
    """``source`` as GET /discovery names it; "" for all."""

    source: str = ""


class _Explain(msgspec.Struct):
    """A request's body, read as the data port reads it, and with it what else it would come with.

    ``path`` is where it would be sent, ``session`` its header, and ``prompt_tokens`` overrides the estimated length.
    """

    model: str
    path: str | None = None
    prompt_tokens: int | None = None
    session: str | None = None
    messages: msgspec.Raw = ABSENT


class _AdminError(Exception):
    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code},
        }


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _body(request: Request, kind: type[_T]) -> _T:
    return _decoded(await _raw(request), kind)


async def _raw(request: Request) -> bytearray:
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > BODY_BYTES_MAX:
            raise _AdminError(413, f"The body is above {BODY_BYTES_MAX} bytes.", "body_too_large")
    return raw


def _decoded(raw: bytearray, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`").lstrip(".") or (message.split("`")[1] if " field `" in message else None)
        raise _AdminError(400, f"{message}.", "invalid_body", field) from None
    except msgspec.DecodeError as error:
        raise _AdminError(400, f"The body is not JSON: {error}.", "invalid_body") from None


class _Admin:
    """The handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/replicas", self.replicas),
            ("POST", "/replicas/{replica:path}/drain", self.drain),
            ("POST", "/replicas/{replica:path}/undrain", self.undrain),
            ("POST", "/replicas/{replica:path}/weight", self.weight),
            ("POST", "/replicas/{replica:path}/score", self.score),
            ("GET", "/replicas/{replica:path}", self.one),
            ("GET", "/discovery", self.discovery),
            ("POST", "/discovery/believe", self.believe),
            ("GET", "/peers", self.peers),
            ("POST", "/policy", self.policy),
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
        return _json(
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
        return _json(self._row(state, self._control.metrics.requests_by_replica().get(state.id, 0)))

    def _row(self, state: ReplicaLedger, requests: int) -> dict[str, Any]:
        control = self._control
        word = None if control.agents is None else control.agents.word(state.id)
        polling = control.telemetry.view(state.id)
        return replica_row(control.fleet, polling, word, state, requests, control.clock())

    async def discovery(self, _request: Request) -> Response:
        registries = self._control.registries
        return _json({"sources": [] if registries is None else registries.as_rows()})

    async def peers(self, _request: Request) -> Response:
        return _json({"peering": self._peers()})

    def _nodes(self) -> dict[str, object] | None:
        """None for a gateway that takes no agents."""
        agents = self._control.agents
        return None if agents is None else agents.summary()

    def _peers(self) -> dict[str, Any] | None:
        """None for a gateway that is alone."""
        peering = self._control.peering
        return None if peering is None else peering.as_dict()

    async def config(self, _request: Request) -> Response:
        return _json({"config": shown_to_people(self._control.cluster)})

    async def queue(self, _request: Request) -> Response:
        admission = self._control.admission
        deadline = admission.next_deadline()
        return _json(
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
        return _json({"status": "ok"})

    async def explain(self, request: Request) -> Response:
        raw = await _raw(request)
        asked = _decoded(raw, _Explain)
        scheduler = self._control.scheduler
        path = asked.path or ("/v1/completions" if asked.messages is ABSENT else "/v1/chat/completions")
        sent = ClientRequest()
        sent.body = bytes(raw)
        sent.session = (asked.session or "").encode("latin-1", "replace")
        try:
            facts = inspect(sent, resolve(b"POST", path.encode()), scheduler)
        except ClientError as error:
            raise _AdminError(400, error.message, error.code, error.param or "path") from None
        if asked.prompt_tokens is not None:
            if facts.total_tokens_max:
                facts.total_tokens_max += asked.prompt_tokens - facts.prompt_tokens
            facts.prompt_tokens = asked.prompt_tokens
        explained = scheduler.explain(facts, self._control.clock())
        return _json(explained.as_dict() | {"prompt_tokens": facts.prompt_tokens})

    # ---- levers -------------------------------------------------------------------------------------------------
    async def drain(self, request: Request) -> Response:
        state = self._state(request)
        self._control.scheduler.drain(state.id)
        return self._did(request, state)

    async def undrain(self, request: Request) -> Response:
        state = self._state(request)
        self._control.scheduler.undrain(state.id)
        return self._did(request, state)

    async def weight(self, request: Request) -> Response:
        state = self._state(request)
        asked = await _body(request, _Weight)
        try:
            self._control.scheduler.set_weight(state.id, asked.weight)
        except ValueError as error:
            raise _AdminError(400, f"{error}.", "invalid_value", "weight") from None
        return self._did(request, state, weight=asked.weight)

    async def score(self, request: Request) -> Response:
        state = self._state(request)
        asked = (await _body(request, _Score)).score
        try:
            self._control.scheduler.force_score(state.id, math.inf if asked == "inf" else asked)
        except ValueError as error:
            raise _AdminError(400, f"{error}.", "invalid_value", "score") from None
        return self._did(request, state, score=asked)

    async def believe(self, request: Request) -> Response:
        asked = await _body(request, _Believe)
        registries = self._control.registries
        known = [] if registries is None else [each.name for each in registries.sources]
        if asked.source and asked.source not in known:
            raise _AdminError(404, f"There is no source {asked.source!a}.", "not_found", "source")
        leave = 0 if registries is None else registries.believe(asked.source)
        self._control.log.info("discovery_believed", source=asked.source or "all", leave=leave)
        return _json({"source": asked.source, "leave": leave})

    async def policy(self, request: Request) -> Response:
        asked = await _body(request, _Policy)
        try:
            self._control.scheduler.set_policy(asked.policy)
        except ConfigError as error:
            raise _AdminError(400, f"{error.message}.", "unknown_policy", "policy") from None
        self._control.log.info("admin_change", what="policy", policy=asked.policy, client=_client(request))
        return _json({"policy": self._control.scheduler.policy_name})

    def _did(self, request: Request, state: ReplicaLedger, **fields: object) -> Response:
        """Tells the log, lets queued requests have another look, and shows the replica as it is now."""
        what = request.url.path.rsplit("/", 1)[-1]
        self._control.log.info("admin_change", what=what, replica=state.id, client=_client(request), **fields)
        self._control.data_plane.wake()
        return _json(self._row(state, self._control.metrics.requests_by_replica().get(state.id, 0)))

    def _state(self, request: Request) -> ReplicaLedger:
        replica = ReplicaId(request.path_params["replica"])
        state = self._control.scheduler.states().get(replica)
        if state is None:
            raise _AdminError(404, f"There is no replica {replica!r}.", "replica_not_found", "replica")
        return state


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def build_admin(control: Control, token: str | None) -> Starlette:
    """The admin API as an ASGI application; ``token`` None asks for none."""

    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, _AdminError)
        return _json(error.body, error.status)

    async def not_found(request: Request, _error: Exception) -> Response:
        return _json(_AdminError(404, f"There is no {request.url.path}.", "route_not_found").body, 404)

    async def wrong_method(request: Request, _error: Exception) -> Response:
        message = f"{request.method} does not apply to {request.url.path}."
        return _json(_AdminError(405, message, "method_not_allowed").body, 405)

    async def failed(request: Request, error: Exception) -> Response:
        control.log.error("admin_failed", path=request.url.path, error=repr(error))
        return _json(
            {"error": {"message": "Internal error.", "type": "server_error", "param": None, "code": "internal_error"}},
            500,
        )

    app = Starlette(
        routes=[*Nodes(control).routes(), *_Admin(control).routes()],
        exception_handlers={_AdminError: refused, 404: not_found, 405: wrong_method, Exception: failed},
    )

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            if (error := _may_not(request, token)) is not None:
                await _json(error.body, error.status)(scope, receive, send)
                return
        await app(scope, receive, send)

    outer = Starlette()
    outer.mount("/", guarded)
    return outer


def _may_not(request: Request, token: str | None) -> _AdminError | None:
    """Why the request is refused, or None."""
    if token is not None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            return _AdminError(401, "The admin API needs Authorization: Bearer TOKEN.", "unauthorized")
        return None
    # Without a token, loopback is the only guard, and a browser on this machine is inside it.
    if request.headers.get("origin") is not None or not _is_address(request.headers.get("host", "")):
        return _AdminError(403, "The admin API takes no requests from web pages.", "forbidden")
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
