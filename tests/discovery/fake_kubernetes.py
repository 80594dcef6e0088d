"""A stand-in for the Kubernetes API: list and watch of pods and EndpointSlices.

Kept from the real one: one resourceVersion for everything; lists in pages with ``limit`` and ``continue`` (410 when a
continuation is too old); watches from a resourceVersion that replay what came after it, or are refused with an ERROR
event of code 410 where history does not go back that far; bookmarks; the server ends a watch after ``timeoutSeconds``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from tests.discovery.http_stub import Asked, HttpStub, Told


class FakeKubernetes(HttpStub):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.version = 100
        self.oldest = 0
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.changed = asyncio.Event()
        self.token = ""
        self.gone_by_status = False
        self.cut_watches = asyncio.Event()
        self.refuse: tuple[int, str] | None = None
        self.watches = 0
        self.lists = 0

    # ---- what a test does ---------------------------------------------------------------------------------------
    def pod(self, name: str, address: str, port: int = 8000, *, ready: bool = True, **more: Any) -> None:
        metadata: dict[str, Any] = {"labels": {"app": "vllm"}, "annotations": more.get("annotations", {})}
        if more.get("terminating"):
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        ports = more.get("ports", [{"name": "http", "containerPort": port}])
        self.put(
            "pods",
            name,
            metadata,
            spec={"nodeName": "worker-1", "containers": [{"name": "engine", "ports": ports}]},
            status={
                "phase": "Running",
                "podIP": address,
                "conditions": [
                    {"type": "Ready", "status": str(ready), "reason": "" if ready else "ContainersNotReady"}
                ],
            },
        )

    def slice(self, name: str, endpoints: list[dict[str, Any]], port: int = 8000, **more: Any) -> None:
        self.put(
            "endpointslices",
            name,
            {"labels": {"kubernetes.io/service-name": "vllm"}, "annotations": more.get("annotations", {})},
            addressType="IPv4",
            ports=[{"name": "http", "port": port, "protocol": "TCP"}],
            endpoints=endpoints,
        )

    def put(self, kind: str, name: str, metadata: dict[str, Any], **rest: Any) -> None:
        self.version += 1
        each = {
            "metadata": {
                "name": name, "namespace": "default", "uid": f"uid-{name}",
                "resourceVersion": str(self.version), **metadata,
            },
            **rest,
        }  # fmt: skip
        event = "MODIFIED" if (kind, name) in self.objects else "ADDED"
        self.objects[kind, name] = each
        self._happened(event, kind, each)

    def delete(self, kind: str, name: str) -> None:
        self.version += 1
        each = self.objects.pop((kind, name))
        each = each | {"metadata": each["metadata"] | {"resourceVersion": str(self.version)}}
        self._happened("DELETED", kind, each)

    def compact(self) -> None:
        """History is forgotten: older versions are gone."""
        self.oldest = self.version
        self.history.clear()

    def cut(self) -> None:
        """Ends every watch, as the server does now and then."""
        self.cut_watches.set()
        self.cut_watches = asyncio.Event()
        self._wake()

    def bookmark(self) -> None:
        self.version += 1
        self.history.append(
            (self.version, "BOOKMARK", {"kind": "*", "metadata": {"resourceVersion": str(self.version)}})
        )
        self._wake()

    def _happened(self, event: str, kind: str, each: dict[str, Any]) -> None:
        self.history.append((self.version, event, each | {"_kind": kind}))
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # ---- the API ------------------------------------------------------------------------------------------------
    async def handle(self, asked: Asked) -> Told:
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.refuse is not None:
            return _status(*self.refuse)
        kind = asked.path.rpartition("/")[2]
        assert asked.path in (
            "/api/v1/namespaces/default/pods",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        ), asked.path
        if asked.params.get("watch") == "1":
            self.watches += 1
            if int(asked.params["resourceVersion"]) < self.oldest and self.gone_by_status:
                return _status(410, "Expired")
            return Told(parts=self._watch(asked, kind))
        return self._list(asked, kind)

    def _list(self, asked: Asked, kind: str) -> Told:
        self.lists += 1
        chosen = [each for (k, _), each in sorted(self.objects.items()) if k == kind and _matches(each, asked)]
        start = 0
        if "continue" in asked.params:
            version, _, at = asked.params["continue"].partition(":")
            if int(version) < self.oldest:
                return _status(410, "The provided continue parameter is too old")
            start = int(at)
        end = start + int(asked.params.get("limit", "500"))
        meta = {"resourceVersion": str(self.version)}
        if end < len(chosen):
            meta["continue"] = f"{self.version}:{end}"
        return Told(body=msgspec.json.encode({"kind": "List", "metadata": meta, "items": chosen[start:end]}))

    async def _watch(self, asked: Asked, kind: str) -> AsyncIterator[bytes]:
        version = int(asked.params["resourceVersion"])
        loop = asyncio.get_running_loop()
        end = loop.time() + float(asked.params.get("timeoutSeconds", "300"))
        cut = self.cut_watches
        if version < self.oldest:
            gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
            yield _line("ERROR", gone)
            return
        yield b"\n"
        while loop.time() < end and not cut.is_set():
            changed = self.changed
            for at, event, each in list(self.history):
                if at > version:
                    version = at
                    if event == "BOOKMARK":
                        if asked.params.get("allowWatchBookmarks") == "true":
                            yield _line(event, each)
                    elif each["_kind"] == kind and _matches(each, asked):
                        yield _line(event, {k: v for k, v in each.items() if k != "_kind"})
            try:
                await asyncio.wait_for(changed.wait(), max(0.0, end - loop.time()))
            except TimeoutError:
                return


def _line(event: str, each: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": event, "object": each}) + b"\n"


def _matches(each: dict[str, Any], asked: Asked) -> bool:
    labels = each["metadata"].get("labels", {})
    wanted = [part.split("=") for part in asked.params.get("labelSelector", "").split(",") if part]
    return all(labels.get(key) == value for key, value in wanted)


def _status(code: int, message: str) -> Told:
    return Told(code, msgspec.json.encode({"kind": "Status", "status": "Failure", "code": code, "message": message}))
