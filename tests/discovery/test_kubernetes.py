"""List and watch, bookmarks, 410 Gone in both shapes, readiness, terminating pods, ports, credentials."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from tests.discovery.certificates import Certificates
from tests.discovery.fake_kubernetes import FakeKubernetes
from tests.discovery.following import following
from tests.gateway.running import until

from exaserve.discovery import Removed, SourceError
from exaserve.discovery.http import Tls
from exaserve.discovery.kubeconfig import ApiAccess, in_cluster, read_kubeconfig
from exaserve.discovery.kubernetes import KubernetesDiscovery

pytestmark = pytest.mark.may_block


def source_of(api: FakeKubernetes, **settings: Any) -> KubernetesDiscovery:
    chosen: dict[str, Any] = {"selector": "app=vllm", "rng": Random(0), "watch_s": 5} | settings
    return KubernetesDiscovery(lambda: ApiAccess(api.url, Tls()), **chosen)


def ready(address: str, pod: str, **conditions: bool) -> dict[str, Any]:
    target = {"kind": "Pod", "namespace": "default", "name": pod}
    return {"addresses": [address], "conditions": conditions, "targetRef": target, "nodeName": "worker-7"}


async def test_annotations_say_what_a_pod_is():
    async with FakeKubernetes() as api:
        api.pod(
            "a",
            "10.0.0.1",
            annotations={"exaserve.io/models": "org/m,org/m:lora", "exaserve.io/version": "v3", "other.io/models": "x"},
        )
        async with following(source_of(api)) as seen:
            await until(lambda: seen.held)
            spec = seen.held["default/a"]
            assert (spec.models, spec.version, spec.node) == (("org/m", "org/m:lora"), "v3", "worker-1")


async def test_only_ready_pods_and_none_that_terminates():
    async with FakeKubernetes() as api:
        api.pod("a", "10.0.0.1")
        api.pod("b", "10.0.0.2", ready=False)
        async with following(source_of(api)) as seen:
            await until(lambda: seen.held)
            assert list(seen.held) == ["default/a"]
            api.pod("b", "10.0.0.2")
            await until(lambda: len(seen.held) == 2)
            api.pod("a", "10.0.0.1", terminating=True)
            await until(lambda: list(seen.held) == ["default/b"])
            assert seen.changes[-1].reason == "terminating"
            api.pod("b", "10.0.0.2", ready=False)
            await until(lambda: not seen.held)
            assert seen.changes[-1].reason == "not ready: ContainersNotReady"
            api.pod("c", "10.0.0.3")
            await until(lambda: seen.held)
            api.delete("pods", "c")
            await until(lambda: not seen.held)
            assert seen.changes[-1].reason == "deleted"


async def test_endpoint_conditions_count_and_absent_means_ready():
    async with FakeKubernetes() as api:
        api.slice(
            "s1", [ready("10.0.0.1", "a", ready=True), ready("10.0.0.2", "b"), ready("10.0.0.3", "c", ready=False)]
        )
        api.slice("s2", [ready("10.0.0.4", "d", ready=True, serving=True, terminating=False), ready("10.0.0.1", "a")])
        async with following(source_of(api, selector="", service="vllm")) as seen:
            await until(lambda: len(seen.held) == 3)
            assert sorted(seen.held) == ["default/a", "default/b", "default/d"]
            assert seen.held["default/a"].node == "worker-7"
            api.slice("s2", [ready("10.0.0.4", "d", ready=False, serving=True, terminating=True)])
            await until(lambda: "default/d" not in seen.held)
            assert seen.changes[-1].reason == "terminating"
            assert "default/a" in seen.held, "it is still in the other slice"


async def test_an_endpoint_without_a_pod_is_called_by_its_address():
    async with FakeKubernetes() as api:
        api.slice("s1", [{"addresses": ["10.0.0.9"]}])
        async with following(source_of(api, selector="", service="vllm")) as seen:
            await until(lambda: list(seen.held) == ["10.0.0.9:8000"])


async def test_bookmarks_move_the_version_on_so_that_no_watch_is_too_old():
    async with FakeKubernetes() as api:
        api.pod("a", "10.0.0.1")
        source = source_of(api)
        async with following(source) as seen:
            await until(lambda: api.watches == 1)
            for _ in range(5):
                api.bookmark()
            await until(lambda: source._version == str(api.version))
            api.compact()  # what came before the bookmark is gone
            api.cut()
            await until(lambda: api.watches == 2)
            await asyncio.sleep(0.05)
            assert api.lists == 1, "the watch went on; nothing was listed again"
            api.pod("b", "10.0.0.2")
            await until(lambda: len(seen.held) == 2)


@pytest.mark.parametrize("by_status", [True, False])
async def test_a_version_that_is_gone_is_listed_again_in_one_step(by_status: bool):
    async with FakeKubernetes() as api:
        api.gone_by_status = by_status
        api.pod("a", "10.0.0.1")
        api.pod("b", "10.0.0.2")
        source = source_of(api)
        async with following(source) as seen:
            await until(lambda: api.watches == 1)
            api.delete("pods", "a")
            await until(lambda: len(seen.held) == 1)
            api.pod("c", "10.0.0.3")
            await until(lambda: len(seen.held) == 2)
            api.compact()
            source._version = "1"  # as after a long sleep
            api.cut()
            await until(lambda: api.lists == 2)
            await until(lambda: api.watches >= 3)
            assert sorted(seen.held) == ["default/b", "default/c"]
            removed = [change for change in seen.changes if isinstance(change, Removed)]
            assert [change.id for change in removed] == ["default/a"], "nothing flapped"
            api.pod("d", "10.0.0.4")
            await until(lambda: len(seen.held) == 3)


async def test_long_lists_come_in_pages():
    async with FakeKubernetes() as api:
        for k in range(47):
            api.pod(f"p{k:02}", f"10.0.1.{k + 1}")
        async with following(source_of(api, list_limit=10)) as seen:
            await until(lambda: len(seen.held) == 47)
            assert api.lists == 5
            assert len(seen.batches) == 1


async def test_a_server_that_ends_every_watch_is_not_asked_in_a_circle():
    async with FakeKubernetes() as api:
        api.pod("a", "10.0.0.1")
        async with following(source_of(api, watch_s=0)):
            began = time.monotonic()
            await until(lambda: api.watches == 1)
            await asyncio.sleep(0.6)
            assert api.watches <= 1 + (time.monotonic() - began), "one in a second"


@pytest.mark.parametrize(
    ("ports", "port", "held"),
    [
        ([{"name": "http", "containerPort": 80}, {"name": "metrics", "containerPort": 90}], "", None),
        ([{"name": "http", "containerPort": 80}, {"name": "metrics", "containerPort": 90}], "metrics", 90),
        ([{"name": "http", "containerPort": 80}], "grpc", None),
        ([], "8123", 8123),
        ([], "", None),
    ],
)
async def test_the_port_is_chosen_or_the_doubt_is_named(ports: list[dict[str, Any]], port: str, held: int | None):
    said: list[dict[str, Any]] = []
    async with FakeKubernetes() as api:
        api.pod("a", "10.0.0.1", ports=ports)

        def tell(_level: str, event: str, **fields: Any) -> None:
            if event == "discovery_entry_ignored":
                said.append(fields)

        async with following(source_of(api, port=port, tell=tell)) as seen:
            await until(lambda: seen.batches)
            assert [spec.url for spec in seen.held.values()] == ([f"http://10.0.0.1:{held}"] if held else [])
            assert bool(said) == (held is None)
            if said:
                assert "port" in said[0]["why"]


@pytest.mark.parametrize(
    ("status", "words"), [(401, "not accepted"), (403, "give it a role"), (404, "404"), (500, "500"), (429, "429")]
)
async def test_refusals_are_said_in_words(status: int, words: str):
    async with FakeKubernetes() as api:
        api.refuse = (status, "because")
        source = source_of(api)
        async with following(source) as seen:
            await until(lambda: words in source.status().error)
            assert "because" in source.status().error
            assert seen.batches == []


async def test_in_cluster_credentials_are_read_again_at_each_connection(tmp_path: Path):
    made = Certificates(tmp_path)
    (tmp_path / "ca.crt").write_bytes(made.ca.read_bytes())
    (tmp_path / "token").write_text("first-token")
    (tmp_path / "namespace").write_text("default")
    async with FakeKubernetes(tls=made.server_context()) as api:
        api.token = "first-token"
        api.pod("a", "10.0.0.1")
        source = KubernetesDiscovery(
            lambda: in_cluster("127.0.0.1", str(api.port), tmp_path), selector="app=vllm", rng=Random(0), watch_s=5
        )
        async with following(source) as seen:
            await until(lambda: seen.held)
            api.token = "second-token"
            (tmp_path / "token").write_text("second-token")
            await api.stop()
            await api.start()
            api.pod("b", "10.0.0.2")
            await until(lambda: len(seen.held) == 2)


def test_outside_a_cluster_that_is_said():
    with pytest.raises(SourceError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster("", "")


# ---- kubeconfig --------------------------------------------------------------------------------
def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443", **cluster}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


async def test_client_certificates_inside_a_kubeconfig(tmp_path: Path):
    made = Certificates(tmp_path)
    async with FakeKubernetes(tls=made.server_context(ask_client=True)) as api:
        api.pod("a", "10.0.0.1")

        def text(path: Path) -> str:
            return base64.b64encode(path.read_bytes()).decode()

        path = kubeconfig(
            tmp_path,
            {"client-certificate-data": text(made.client_cert), "client-key-data": text(made.client_key)},
            **{"server": api.url, "certificate-authority-data": text(made.ca)},
        )
        source = KubernetesDiscovery(
            lambda: read_kubeconfig(path), selector="app=vllm", namespace="default", rng=Random(0), watch_s=5
        )
        async with following(source) as seen:
            await until(lambda: seen.held)


def test_files_are_relative_to_the_kubeconfig_and_tokens_are_taken(tmp_path: Path):
    path = kubeconfig(
        tmp_path, {"client-certificate": "c.pem", "client-key": "k.pem"}, **{"certificate-authority": "ca.pem"}
    )
    access = read_kubeconfig(path)
    assert access.tls == Tls(str(tmp_path / "ca.pem"), str(tmp_path / "c.pem"), str(tmp_path / "k.pem"))
    assert access.namespace == "team"
    assert read_kubeconfig(kubeconfig(tmp_path, {"token": "t0k"})).token == "t0k"
    assert read_kubeconfig(kubeconfig(tmp_path, {"tokenFile": "/t"})).token_file == "/t"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("[", "not YAML"),
        ("[]", "not a mapping"),
        ("{}", "current-context"),
        ("current-context: x", "contexts has no 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "clusters has no 'y'"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_named(tmp_path: Path, text: str | None, words: str):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SourceError, match="kubeconfig") as caught:
        read_kubeconfig(path)
    assert words in str(caught.value)


def test_programs_for_credentials_are_refused(tmp_path: Path):
    with pytest.raises(SourceError, match=r"users\[u\]\.exec runs a program"):
        read_kubeconfig(kubeconfig(tmp_path, {"exec": {"command": "aws"}}))
    with pytest.raises(SourceError, match="not base64"):
        read_kubeconfig(kubeconfig(tmp_path, {"client-key-data": "%%%"}))
    with pytest.raises(SourceError, match="not a URL"):
        read_kubeconfig(kubeconfig(tmp_path, {}, server="nowhere"))
