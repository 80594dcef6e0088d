"""A stand-in for Consul's HTTP API, as far as discovery and registration use it.

Kept from the real one: an index per service that grows with every change of its instances or checks and never repeats;
blocking queries with ``index`` and ``wait`` (5 minutes unless given, 10 at most, a sixteenth added); 403 for a token
without rights on the service, silent filtering with its header where only nodes are hidden; 500 for an unknown
datacenter and while there is no leader; TTL checks that turn critical by themselves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.discovery.http_stub import Asked, HttpStub, Told


class FakeConsul(HttpStub):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.index = 10
        self.service_index: dict[str, int] = {}
        self.instances: dict[str, dict[str, dict[str, Any]]] = {}
        self.changed = asyncio.Event()
        self.token = ""
        self.filtered = False
        self.leader = True
        self.datacenters = {"dc1"}
        self.raw: tuple[int, bytes, dict[str, str]] | None = None
        self.waiting = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ---- what a test does ---------------------------------------------------------------------------------------
    def put(self, service: str, instance: str, address: str, port: int, status: str = "passing", **more: Any) -> None:
        """Registers or changes one instance, on a node of its own name."""
        self.instances.setdefault(service, {})[instance] = {
            "Node": {
                "ID": "0",
                "Node": more.pop("node", f"node-{instance}"),
                "Address": "10.9.9.9",
                "Datacenter": "dc1",
            },
            "Service": {
                "ID": instance,
                "Service": service,
                "Tags": more.pop("tags", []),
                "Address": address,
                "Port": port,
                "Meta": more.pop("meta", {}),
                "Weights": more.pop("weights", {"Passing": 1, "Warning": 1}),
            },
            "Checks": [
                {"Node": "n", "CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing", "Output": ""},
                {"Node": "n", "CheckID": f"service:{instance}", "Name": "ttl", "Status": status, "Output": "TTL"},
            ],
        }
        self.touch(service)

    def drop(self, service: str, instance: str) -> None:
        del self.instances[service][instance]
        self.touch(service)

    def set_status(self, service: str, instance: str, status: str) -> None:
        check = self.instances[service][instance]["Checks"][1]
        if check["Status"] != status:
            check["Status"] = status
            self.touch(service)

    def touch(self, service: str) -> None:
        self.index += 1
        self.service_index[service] = self.index
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # ---- the API ------------------------------------------------------------------------------------------------
    async def handle(self, asked: Asked) -> Told:
        if self.raw is not None:
            return Told(self.raw[0], self.raw[1], self.raw[2])
        if self.token and asked.headers.get("x-consul-token") != self.token:
            return Told(403, b"Permission denied: token with AccessorID '0' lacks permission 'service:read'")
        if asked.path.startswith("/v1/agent/"):
            return self._agent(asked)
        assert asked.path.startswith("/v1/health/service/"), asked.path
        if not self.leader and "stale" not in asked.params:
            return Told(500, b"No cluster leader")
        if asked.params.get("dc", "dc1") not in self.datacenters:
            return Told(500, b"No path to datacenter")
        return await self._health(asked, asked.path.rpartition("/")[2])

    async def _health(self, asked: Asked, service: str) -> Told:
        wanted = int(asked.params.get("index", "0"))
        if wanted:
            wait_s = min(_seconds(asked.params.get("wait", "5m")), 600.0)
            end = asyncio.get_running_loop().time() + wait_s * 17 / 16
            self.waiting += 1
            try:
                while self.service_index.get(service, 1) <= wanted:
                    left = end - asyncio.get_running_loop().time()
                    if left <= 0:
                        break
                    changed = self.changed
                    try:
                        await asyncio.wait_for(changed.wait(), left)
                    except TimeoutError:
                        break
                    if self.service_index.get(service, 1) < wanted:
                        break  # the index went backwards: the real one answers too
            finally:
                self.waiting -= 1
        listed = [
            each
            for each in self.instances.get(service, {}).values()
            if asked.params.get("tag", "") in ("", *each["Service"]["Tags"])
        ]
        headers = {
            "X-Consul-Index": str(self.service_index.get(service, 1)),
            "X-Consul-KnownLeader": str(self.leader).lower(),
            "X-Consul-LastContact": "0",
        }
        if self.filtered:
            headers["X-Consul-Results-Filtered-By-ACLs"] = "true"
            listed = []
        return Told(200, msgspec.json.encode(listed), headers)

    def _agent(self, asked: Asked) -> Told:
        assert asked.method == "PUT"
        what = asked.path.removeprefix("/v1/agent/")
        if what == "service/register":
            body = msgspec.json.decode(asked.body)
            ttl = _seconds(body["Check"]["TTL"])
            self.put(
                body["Name"],
                body["ID"],
                body["Address"],
                body["Port"],
                body["Check"]["Status"],
                meta=body["Meta"],
                tags=body["Tags"],
            )
            self._arm(body["Name"], body["ID"], ttl)
            self.ttl_s = ttl
            return Told()
        verb, _, ident = what.partition("/")
        for service, each in self.instances.items():
            for instance in list(each):
                if what == f"service/deregister/{instance}":
                    self.drop(service, instance)
                    return Told()
                if (verb, ident) == ("check", f"update/service:{instance}"):
                    self.set_status(service, instance, msgspec.json.decode(asked.body)["Status"])
                    self._arm(service, instance, self.ttl_s)
                    return Told()
        return Told(404, b'Unknown check ID "' + ident.encode() + b'"')

    def _arm(self, service: str, instance: str, ttl: float) -> None:
        if instance in self._timers:
            self._timers[instance].cancel()
        self._timers[instance] = asyncio.get_running_loop().call_later(ttl, self._expire, service, instance)

    def _expire(self, service: str, instance: str) -> None:
        if instance in self.instances.get(service, {}):
            self.set_status(service, instance, "critical")


def _seconds(text: str) -> float:
    for unit, factor in (("ms", 1e-3), ("s", 1.0), ("m", 60.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise AssertionError(text)
