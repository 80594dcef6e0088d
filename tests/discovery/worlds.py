"""One registry of each kind with the same few levers, for the suite that every source must pass."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.discovery.fake_consul import FakeConsul
from tests.discovery.fake_dns import FakeDns
from tests.discovery.fake_kubernetes import FakeKubernetes

from exaserve.discovery import Discovery, FileDiscovery
from exaserve.discovery.consul import ConsulDiscovery
from exaserve.discovery.dns import DnsDiscovery
from exaserve.discovery.feed import Feed
from exaserve.discovery.http import Tls
from exaserve.discovery.kubeconfig import ApiAccess
from exaserve.discovery.kubernetes import KubernetesDiscovery
from exaserve.domain.replica import ReplicaId, ReplicaSpec


class World(Protocol):
    """A registry and the source under test that looks at it. Replicas are called by short names."""

    @property
    def source(self) -> Feed: ...

    events: list[tuple[str, dict[str, Any]]]
    can_break: bool

    def id_of(self, name: str, address: str) -> str: ...

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None: ...

    async def drop(self, name: str) -> None: ...

    async def break_down(self) -> None: ...

    async def mend(self) -> None: ...

    async def spoil(self) -> bool:
        """Adds an entry that is of no use; False where the registry has no such thing."""
        ...


class _Base:
    can_break = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def tell(self, _level: str, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def id_of(self, name: str, address: str) -> str:
        return name

    async def break_down(self) -> None:
        raise NotImplementedError

    async def mend(self) -> None:
        raise NotImplementedError

    async def spoil(self) -> bool:
        return False


def feed_of(*specs: ReplicaSpec) -> Feed:
    """A source whose list the test publishes itself."""
    feed = Feed("feed")
    feed.publish(specs)
    return feed


def spec(name: str, address: str, port: int, weight: float) -> ReplicaSpec:
    return ReplicaSpec(ReplicaId(name), f"http://{address}:{port}", weight=weight)


class FeedWorld(_Base):
    can_break = False

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, ReplicaSpec] = {}
        self.source = feed_of()

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None:
        self.held[name] = spec(name, address, port, weight)
        self.source.publish(self.held.values())

    async def drop(self, name: str) -> None:
        del self.held[name]
        self.source.publish(self.held.values())


class FileWorld(_Base):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "replicas.yaml"
        self.held: dict[str, str] = {}
        self.path.write_text("[]")
        self.source = FileDiscovery(self.path, interval_s=0.02, tell=self.tell, rng=Random(0))

    def _write(self, text: str | None = None) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text("".join(self.held.values()) or "[]" if text is None else text)
        os.replace(aside, self.path)

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None:
        self.held[name] = f"- {{id: {name}, url: 'http://{address}:{port}', weight: {weight}}}\n"
        self._write()

    async def drop(self, name: str) -> None:
        del self.held[name]
        self._write()

    async def spoil(self) -> bool:
        self.held["bad"] = "- {id: bad, url: 'http://10.0.0.99:8000', weight: heavy}\n"
        self._write()
        return True

    async def break_down(self) -> None:
        self._write("- {id: x, url: nonsense}\n")

    async def mend(self) -> None:
        self._write()


class ConsulWorld(_Base):
    def __init__(self, consul: FakeConsul) -> None:
        super().__init__()
        self.consul = consul
        self.source = ConsulDiscovery("vllm", [consul.url], wait_s=5.0, tell=self.tell, rng=Random(0))

    def id_of(self, name: str, address: str) -> str:
        return f"node-{name}/{name}"

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None:
        self.consul.put("vllm", name, address, port, meta={"weight": str(weight)})

    async def drop(self, name: str) -> None:
        self.consul.drop("vllm", name)

    async def break_down(self) -> None:
        await self.consul.stop()

    async def mend(self) -> None:
        await self.consul.start()

    async def spoil(self) -> bool:
        self.consul.put("vllm", "bad", "10.0.0.99", 8000, meta={"weight": "heavy"})
        return True


class PodWorld(_Base):
    def __init__(self, api: FakeKubernetes) -> None:
        super().__init__()
        self.api = api
        self.source = KubernetesDiscovery(
            lambda: ApiAccess(api.url, Tls()), selector="app=vllm", tell=self.tell, rng=Random(0), watch_s=5
        )

    def id_of(self, name: str, address: str) -> str:
        return f"default/{name}"

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None:
        self.api.pod(name, address, port, annotations={"exaserve.io/weight": str(weight)})

    async def drop(self, name: str) -> None:
        self.api.delete("pods", name)

    async def break_down(self) -> None:
        await self.api.stop()

    async def mend(self) -> None:
        await self.api.start()

    async def spoil(self) -> bool:
        self.api.pod("bad", "10.0.0.99", ports=[])
        return True


class SliceWorld(PodWorld):
    """Every replica in a slice of its own, so that weights can differ."""

    def __init__(self, api: FakeKubernetes) -> None:
        super().__init__(api)
        self.source = KubernetesDiscovery(
            lambda: ApiAccess(api.url, Tls()), service="vllm", tell=self.tell, rng=Random(0), watch_s=5
        )

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None:
        endpoint = {
            "addresses": [address],
            "conditions": {"ready": True},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": name},
        }
        self.api.slice(f"vllm-{name}", [endpoint], port, annotations={"exaserve.io/weight": str(weight)})

    async def drop(self, name: str) -> None:
        self.api.delete("endpointslices", f"vllm-{name}")

    async def spoil(self) -> bool:
        self.api.put(
            "endpointslices", "bad", {"labels": {"kubernetes.io/service-name": "vllm"}}, endpoints=[{}], ports=[]
        )
        return True


class DnsWorld(_Base):
    """Weights are relative, so the suite's weights show as shares of their mean; a fixed companion keeps it simple."""

    NAME = "_http._tcp.vllm.test"

    def __init__(self, server: FakeDns) -> None:
        super().__init__()
        self.server = server
        self.source = DnsDiscovery(
            self.NAME,
            nameservers=[("127.0.0.1", server.port)],
            ttl_min_s=0.03,
            ttl_max_s=1.0,
            tell=self.tell,
            rng=Random(0),
        )
        self.held: dict[str, tuple[int, int, int, str]] = {}

    def id_of(self, name: str, address: str) -> str:
        return f"{name}.vllm.test:8000"

    async def put(self, name: str, address: str, port: int = 8000, weight: float = 1.0) -> None:
        self.held[name] = (10, int(weight * 10), port, f"{name}.vllm.test")
        self.server.a[f"{name}.vllm.test"] = [address]
        self.server.srv[self.NAME] = list(self.held.values())

    async def drop(self, name: str) -> None:
        del self.held[name]
        self.server.srv[self.NAME] = list(self.held.values())

    async def break_down(self) -> None:
        self.server.code = 2

    async def mend(self) -> None:
        self.server.code = 0


@contextlib.asynccontextmanager
async def _with(kind: Callable[[Any], World], registry: Any) -> AsyncIterator[World]:
    async with registry as opened:
        yield kind(opened)


@contextlib.asynccontextmanager
async def _plain(world: World) -> AsyncIterator[World]:
    yield world


WORLDS: dict[str, Callable[[Path], AbstractAsyncContextManager[World]]] = {
    "feed": lambda _folder: _plain(FeedWorld()),
    "file": lambda folder: _plain(FileWorld(folder)),
    "consul": lambda _folder: _with(ConsulWorld, FakeConsul()),
    "kubernetes pods": lambda _folder: _with(PodWorld, FakeKubernetes()),
    "kubernetes slices": lambda _folder: _with(SliceWorld, FakeKubernetes()),
    "dns": lambda _folder: _with(DnsWorld, FakeDns()),
}


def typed(source: Feed) -> Discovery:
    """Every source is a Discovery, for the type checker to agree."""
    return source
