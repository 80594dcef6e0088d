"""Kubernetes: the ready endpoints of a service (EndpointSlices), or pods by label, followed through the API's watch.

List, then watch from the list's resourceVersion. Bookmarks move that version on while nothing changes. A watch that
ends goes on from the last version; one whose version is gone (410, as a status or as an ERROR event) lists again, and
the set that comes out replaces the old one in one step, so nothing flaps. While the API server is away the last known
set stays.

Out of rotation at once: what is not ready, what is being deleted (a pod with a deletion timestamp still answers, but
takes no new requests), what is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx
import msgspec

from exaserve.discovery.entries import KEYS, Defaults, spec_of
from exaserve.discovery.feed import Source, SourceError, Tell, silent
from exaserve.discovery.http import BODY_BYTES_MAX, client_with, extensions_of, read_text, why
from exaserve.discovery.kubeconfig import ApiAccess
from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["PREFIX", "KubernetesDiscovery"]

PREFIX = "exaserve.io/"
"""Annotations (or labels) of a pod, or of a service, that say what a replica is: ``exaserve.io/models`` and so on."""
WATCH_S = 60
"""The API server ends a watch after this; a connection that died unnoticed costs no more than that."""
RELIST_PAUSE_S = 0.2
"""Before a new list, so that a server whose every version is gone at once is not asked in a circle."""
LIST_LIMIT = 500
"""As kubectl asks for: a page of so many pods is a few megabytes."""
LINE_BYTES_MAX = 4 * 2**20
OBJECTS_MAX = 50_000
_TERMINATING = "terminating"
"""Someone has deleted it: it leaves at once, as against what is not ready or not listed."""


class _Gone(Exception):
    """The resourceVersion is too old: list again."""


class KubernetesDiscovery(Source):
    """Replicas of one service, or of the pods that a selector names.

    Args:
        access: called at each connection, since credentials are rotated; SourceError or OSError where there are none.
        service / selector: exactly one of them.
        namespace: "" is the pod's own, or the kubeconfig's, or ``default``.
        port: name or number of the port; "" takes the only one.
        watch_s: asked of the API server as the length of one watch, whole seconds.
        list_limit: objects in one page of a list.
    """

    def __init__(
        self,
        access: Callable[[], ApiAccess],
        *,
        service: str = "",
        selector: str = "",
        namespace: str = "",
        port: str = "",
        defaults: Defaults | None = None,
        watch_s: int = WATCH_S,
        list_limit: int = LIST_LIMIT,
        tell: Tell = silent,
        rng: Random | None = None,
    ) -> None:
        if bool(service) == bool(selector):
            raise ValueError("give either service or selector")
        super().__init__(f"kubernetes:{service or selector}", tell, rng)
        self._access = access
        self._slices = bool(service)
        self._selector = f"kubernetes.io/service-name={service}" if service else selector
        self._namespace = namespace
        self._port = port
        self._defaults = defaults or Defaults()
        self._watch_s = watch_s
        self._list_limit = list_limit
        self._objects: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._reasons_seen: dict[ReplicaId, str] = {}
        self._read: dict[str, tuple[Any, list[ReplicaSpec]]] = {}
        """Objects already turned into replicas: an event of one pod among thousands must cost one."""

    # ---- list and watch -----------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        access = await asyncio.to_thread(self._access)
        context = await asyncio.to_thread(access.context)
        async with client_with(access.server, context, read_s=self._watch_s + 15.0) as client:
            await _authorise(client, access)
            namespace = self._namespace or access.namespace or "default"
            group = "/apis/discovery.k8s.io/v1" if self._slices else "/api/v1"
            path = f"{group}/namespaces/{namespace}/{'endpointslices' if self._slices else 'pods'}"
            extensions = extensions_of(access.tls)
            while True:
                await self._list(client, path, extensions)
                try:
                    while True:
                        await self._watch(client, path, extensions)
                        await _authorise(client, access)  # a service account's token is rotated meanwhile
                except _Gone:
                    self._tell("debug", "discovery_relist", source=self.name)
                    await asyncio.sleep(RELIST_PAUSE_S)

    async def _list(self, client: httpx.AsyncClient, path: str, extensions: dict[str, Any]) -> None:
        objects: dict[str, dict[str, Any]] = {}
        params = {"labelSelector": self._selector, "limit": str(self._list_limit)}
        while True:
            try:
                answer = await client.get(path, params=params, extensions=extensions)
            except httpx.HTTPError as error:
                raise SourceError(why(error)) from None
            if answer.status_code == 410 and "continue" in params:
                objects.clear()  # the list took so long that its own continuation is gone
                del params["continue"]
                continue
            _refuse(answer.status_code, answer.text)
            page = _decoded(answer.content)
            for each in page.get("items") or []:
                objects[_uid(each)] = each
            meta = page.get("metadata") or {}
            if len(objects) > OBJECTS_MAX:
                raise SourceError(f"the selector matches more than {OBJECTS_MAX} objects")
            if not meta.get("continue"):
                break
            params["continue"] = meta["continue"]
        self._objects, self._version = objects, str(meta.get("resourceVersion", ""))
        self._well()
        self._take()

    async def _watch(self, client: httpx.AsyncClient, path: str, extensions: dict[str, Any]) -> None:
        """Follows until the server ends the watch (then the next one goes on) or the version is gone."""
        params = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._watch_s),
        }
        began = asyncio.get_running_loop().time()
        try:
            async with client.stream("GET", path, params=params, extensions=extensions) as answer:
                if answer.status_code == 410:
                    raise _Gone
                if answer.status_code != 200:
                    await answer.aread()
                _refuse(answer.status_code, answer.text if answer.status_code != 200 else "")
                self._well()
                rest = b""
                async for part in answer.aiter_bytes():
                    *lines, rest = (rest + part).split(b"\n")
                    if len(rest) > LINE_BYTES_MAX:
                        raise SourceError("an event is too large")
                    changed = [self._event(_decoded(line)) for line in lines if line.strip()]
                    if any(changed):
                        self._take()
        except httpx.HTTPError as error:
            raise SourceError(why(error)) from None
        if asyncio.get_running_loop().time() - began < 1.0:
            await asyncio.sleep(1.0)  # a server that ends each watch at once is not asked in a circle

    def _event(self, event: dict[str, Any]) -> bool:
        """Whether the set may have changed. _Gone where the version is too old."""
        kind, each = event.get("type"), event.get("object")
        if not isinstance(each, dict):
            raise SourceError("an event has no object")
        if kind == "ERROR":
            if each.get("code") == 410:
                raise _Gone
            raise SourceError(f"the watch failed: {each.get('message') or each.get('reason') or each.get('code')}")
        meta = each.get("metadata") or {}
        self._version = str(meta.get("resourceVersion") or self._version)
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            gone = self._objects.pop(_uid(each), None)
            if gone is not None and not self._slices:
                self._note(f"{meta.get('namespace')}/{meta.get('name')}", "deleted")
        elif kind in ("ADDED", "MODIFIED"):
            if len(self._objects) >= OBJECTS_MAX:
                raise SourceError(f"the selector matches more than {OBJECTS_MAX} objects")
            self._objects[_uid(each)] = each
        return True

    # ---- objects into replicas ----------------------------------------------------------------------------------
    def _take(self) -> None:
        specs: dict[ReplicaId, ReplicaSpec] = {}
        before, self._read = self._read, {}
        for uid, each in self._objects.items():
            read = before.get(uid)
            if read is None or read[0] is not each:
                read = (each, self._replicas_of(each))
            self._read[uid] = read
            for spec in read[1]:
                specs.setdefault(spec.id, spec)  # during an update an endpoint may be in two slices
        reasons, self._reasons_seen = self._reasons_seen, {}
        gone = {each: reason for each, reason in reasons.items() if each not in specs}
        self.publish(specs.values(), gone, [each for each, reason in gone.items() if reason == _TERMINATING])

    def _replicas_of(self, each: dict[str, Any]) -> list[ReplicaSpec]:
        meta = each.get("metadata") or {}
        name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
        try:
            return list(self._from_slice(each, meta) if self._slices else self._from_pod(each, meta, name))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            self._ignore(name, str(error))
            return []

    def _note(self, replica: str, reason: str) -> None:
        self._reasons_seen[ReplicaId(replica)] = reason

    def _from_pod(self, pod: dict[str, Any], meta: dict[str, Any], name: str) -> Iterator[ReplicaSpec]:
        status, spec = pod.get("status") or {}, pod.get("spec") or {}
        ready: dict[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
        if meta.get("deletionTimestamp"):
            self._note(name, _TERMINATING)
        elif ready.get("status") != "True":
            self._note(name, f"not ready: {ready.get('reason') or status.get('phase') or 'unknown'}")
        elif status.get("podIP"):
            containers = spec.get("containers") or []
            listed = [(p.get("name"), p.get("containerPort")) for c in containers for p in c.get("ports") or []]
            yield spec_of(
                name, status["podIP"], self._pick(listed), _said(meta), self._defaults, node=spec.get("nodeName") or ""
            )

    def _from_slice(self, each: dict[str, Any], meta: dict[str, Any]) -> Iterator[ReplicaSpec]:
        port = self._pick([(p.get("name"), p.get("port")) for p in each.get("ports") or []])
        said = _said(meta)
        for endpoint in each.get("endpoints") or []:
            addresses = endpoint.get("addresses") or []
            conditions = endpoint.get("conditions") or {}
            target = endpoint.get("targetRef") or {}
            pod = f"{target.get('namespace', '')}/{target['name']}" if target.get("name") else ""
            # Only the first address counts: the API says that the others are the same endpoint.
            replica = pod or (f"{addresses[0]}:{port}" if addresses else "")
            if conditions.get("terminating"):
                self._note(replica, _TERMINATING)
            elif conditions.get("ready") is False:  # absent means ready
                self._note(replica, "not ready")
            elif addresses:
                yield spec_of(replica, addresses[0], port, said, self._defaults, node=endpoint.get("nodeName") or "")

    def _pick(self, ports: list[tuple[str | None, int | None]]) -> int:
        """The replica's port. ValueError where it is in doubt."""
        if self._port.isdigit():
            return int(self._port)
        numbers = [number for name, number in ports if number and (not self._port or name == self._port)]
        if len(numbers) == 1:
            return numbers[0]
        shown = ", ".join(f"{name or '(no name)'} {number}" for name, number in ports) or "none"
        wanted = f"port {self._port!r} is not there" if self._port else "name the port to use"
        raise ValueError(f"port: {wanted}; ports listed: {shown}")


def _said(meta: dict[str, Any]) -> dict[str, str]:
    """Our annotations and labels; annotations win, since labels cannot hold every model's name."""
    both = (meta.get("labels") or {}) | (meta.get("annotations") or {})
    return {key: str(both[PREFIX + key]) for key in (*KEYS, "model") if PREFIX + key in both}


def _uid(each: dict[str, Any]) -> str:
    meta = each.get("metadata") or {}
    return str(meta.get("uid") or f"{meta.get('namespace')}/{meta.get('name')}")


def _refuse(status: int, text: str) -> None:
    if status == 200:
        return
    words = {401: "the credentials are not accepted", 403: "the account may not list and watch here; give it a role"}
    said = " ".join(text[:300].split())
    try:
        message = msgspec.json.decode(text.encode()).get("message") or said
    except (msgspec.DecodeError, AttributeError):
        message = said
    raise SourceError(f"{words.get(status, f'status {status}')}: {message}")


def _decoded(data: bytes) -> dict[str, Any]:
    if len(data) > BODY_BYTES_MAX:
        raise SourceError("the answer is too large")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"the answer is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise SourceError("the answer is not an object")
    return value


async def _authorise(client: httpx.AsyncClient, access: ApiAccess) -> None:
    token = access.token or (await read_text(access.token_file, "token file") if access.token_file else "")
    if token:
        client.headers["authorization"] = f"Bearer {token}"
    elif access.user:
        client.auth = httpx.BasicAuth(access.user, access.password)
