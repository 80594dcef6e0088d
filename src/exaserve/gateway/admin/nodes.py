"""The admin API's part for nodes: which agents are connected, and the life-cycle verbs that they obey.

=======  ===========================  =====================================================================
GET      /nodes                       counts only: nodes, replicas, ready
GET      /nodes/all                   every connected node with its replicas' states
POST     /nodes/{node}/{verb}         start, stop, drain, resume, restart, logs; ``{"replica": "r3"}`` for one only,
                                      ``{"drain_s": 60}``, ``{"lines": 100}``
=======  ===========================  =====================================================================
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exaserve.domain.errors import ExaServeError
from exaserve.gateway.admin.answers import AdminError, as_json, client_of, decoded, read_raw
from exaserve.gateway.fleet.agents import AgentServer
from exaserve.observe import EventLog
from exaserve.wire.messages import VERBS

__all__ = ["Nodes"]


class _Ask(msgspec.Struct, forbid_unknown_fields=True):
    replica: str = ""
    lines: int = 100
    drain_s: float | None = None


class NodeControl(Protocol):
    """What of a gateway this needs."""

    agents: AgentServer | None
    log: EventLog


class Nodes:
    """The handlers."""

    def __init__(self, control: NodeControl) -> None:
        self._control = control

    def routes(self) -> list[Route]:
        return [
            Route("/nodes", self.summary, methods=["GET"]),
            Route("/nodes/all", self.all, methods=["GET"]),
            Route("/nodes/{node:path}/{verb}", self.verb, methods=["POST"]),
        ]

    async def summary(self, _request: Request) -> Response:
        agents = self._control.agents
        return as_json({"nodes": 0, "replicas": 0, "ready": 0, "address": ""} if agents is None else agents.summary())

    async def all(self, _request: Request) -> Response:
        agents = self._control.agents
        return as_json({"nodes": [] if agents is None else agents.as_rows()})

    async def verb(self, request: Request) -> Response:
        agents = self._control.agents
        node, name = request.path_params["node"], request.path_params["verb"]
        if agents is None:
            message = "No agents run here: set agents.enabled in the cluster file, so that one runs on each node."
            raise AdminError(404, message, "no_agents", "node")
        verb = next((verb for verb in VERBS if verb == name), None)
        if verb is None:
            raise AdminError(404, f"{name!r} is none of {', '.join(VERBS)}.", "unknown_verb", "verb")
        raw = await read_raw(request)
        asked = decoded(raw, _Ask) if raw else _Ask()
        drain_s = -1.0 if asked.drain_s is None else asked.drain_s
        try:
            result = await agents.ask(node, verb, asked.replica, lines_max=asked.lines, drain_s=drain_s)
        except ExaServeError as error:
            raise AdminError(error.status, error.message, error.code, error.param) from None
        if name != "logs":
            self._control.log.info(
                "admin_change", what=name, node=node, replica=asked.replica or None, client=client_of(request)
            )
        if not result.ok:
            raise AdminError(409, f"{result.message}.", "verb_failed", "replica")
        return as_json({"node": node, "verb": name, "lines": result.lines})
