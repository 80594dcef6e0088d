"""What reaches a replica is routed there to what the gateway decided on, and never to a route that manages an engine.

The engine side is real: uvicorn's two HTTP implementations and Starlette's router, which vLLM and SGLang serve with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as EngineRoute
from tests.gateway.dataplane import Bench, body, read_answers
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from exaserve.domain.errors import BadFraming, MethodNotAllowed, RouteNotFound
from exaserve.gateway.http.routes import Dialect, Kind, resolve

INFERENCE = [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/completions/render",
    "/v1/embeddings", "/v1/rerank", "/v1/reranking", "/v1/score", "/v1/classify", "/v1/pooling", "/v1/moderations",
    "/v1/tokenize", "/v1/detokenize", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech",
    "/v1/images/generations", "/v1/images/edits", "/v1/images/variations",
    "/tokenize", "/detokenize", "/classify", "/pooling", "/score", "/rerank", "/reranking", "/v2/rerank", "/v2/embed",
    "/v1/responses/{id}", "/v1/responses/{id}/cancel", "/v1/responses/{id}/input_items",
]  # fmt: skip
MANAGEMENT = [
    # vLLM
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache",
    "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/pause", "/resume", "/is_paused", "/abort_requests",
    "/init_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update", "/update_weights",
    "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size",
    "/start_profile", "/stop_profile", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply",
    "/fault_tolerance/status", "/server_info", "/tokenizer_info", "/invocations", "/inference/v1/generate",
    "/generative_scoring", "/ping", "/load", "/version", "/health", "/metrics", "/docs", "/openapi.json",
    # SGLang
    "/load_lora_adapter", "/unload_lora_adapter", "/flush_cache", "/shutdown", "/generate", "/generate_from_file",
    "/encode", "/set_internal_state", "/clear_hicache_storage_backend", "/freeze_gc", "/update_weights_from_disk",
    "/update_weights_from_tensor", "/update_weights_from_distributed", "/update_weights_from_ipc",
    "/init_weights_update_group", "/destroy_weights_update_group", "/init_weights_send_group_for_remote_instance",
    "/send_weights_to_remote_instance", "/get_weights_by_name", "/release_memory_occupation",
    "/resume_memory_occupation", "/slow_down", "/open_session", "/close_session", "/configure_logging",
    "/abort_request", "/pause_generation", "/continue_generation", "/start_expert_distribution_record",
    "/stop_expert_distribution_record", "/dump_expert_distribution_record", "/get_model_info", "/get_server_info",
    "/get_load", "/vertex_generate",
]  # fmt: skip
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]


class Wire:
    """The transport under uvicorn's protocol; what it answers is of no interest."""

    closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Engine:
    """Routes as engines have them, behind uvicorn."""

    def __init__(self, protocol: Any) -> None:
        self.seen: list[str] = []
        self.loop = asyncio.new_event_loop()

        def endpoint(path: str) -> Any:
            async def handle(request: Request) -> Response:
                self.seen.append(path)
                return Response("{}")

            return EngineRoute(path, handle, methods=METHODS)

        async def anything(request: Request) -> Response:
            self.seen.append("?")
            return Response(status_code=404)

        paths = [endpoint(path) for path in [*INFERENCE, *MANAGEMENT]]
        app = Starlette(routes=[*paths, EngineRoute("/{path:path}", anything, methods=METHODS)])
        self.config = Config(app, http=protocol, log_config=None, access_log=False)
        self.config.load()
        self.protocol = protocol

    def routed(self, data: bytes) -> list[str]:
        """Where the requests in ``data`` are routed."""
        asyncio.set_event_loop(self.loop)
        self.seen.clear()
        state = ServerState()
        protocol = self.protocol(config=self.config, server_state=state, app_state={}, _loop=self.loop)
        protocol.connection_made(Wire())
        protocol.data_received(data)
        while state.tasks:
            self.loop.run_until_complete(asyncio.gather(*state.tasks))
            self.loop.run_until_complete(asyncio.sleep(0))
        protocol.connection_lost(None)
        asyncio.set_event_loop(None)
        return list(self.seen)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    both = [Engine(HttpToolsProtocol), Engine(H11Protocol)]
    yield both
    for engine in both:
        engine.loop.close()


TRICKS = [
    "#", "#x", ";", ";a=b", "/", "//", "/.", "/..", "/../", "..;/", "%2e", "%2E%2e", "%2f", "%2F", "%252f", "%23",
    "%3f", "%00", "\x00", "%0d%0a", "\\", "%5c", "?", "?a=b", "&", "@", ":", "*", "\t", " ", "\x7f", "\xe9", "%c3%a9",
    "%", "+",
]  # fmt: skip
BASES = st.sampled_from([*INFERENCE, *MANAGEMENT, "/v1", "/v1/models", "/v1/responses/resp_1/cancel", ""]).map(
    lambda path: path.replace("{id}", "resp_1")
)


@st.composite
def targets(draw: st.DrawFn) -> str:
    path = draw(BASES)
    for _ in range(draw(st.integers(0, 3))):
        trick = draw(st.sampled_from(TRICKS))
        at = draw(st.integers(0, len(path)))
        path = path[:at] + trick + path[at:]
        if draw(st.booleans()):
            path += draw(BASES)
    form = draw(st.sampled_from(["", "", "", "http://h", "HTTP://h:1", "https://u@h", "//h", "/v1/..", "/v1"]))
    path = form + path
    return draw(st.sampled_from([path, path, path, path.upper(), path.swapcase()]))


@given(st.sampled_from(["POST", "POST", "POST", *METHODS]), targets())
@example("POST", "/v1/load_lora_adapter#x")
@example("POST", "/v1/chat/completions?#/../../sleep")
@example("POST", "/v1/chat/completions/")
@example("POST", "http://h/v1/chat/completions?x=/sleep")
@example("POST", "http://h?/v1/chat/completions")
@example("GET", "/v1/responses/../load_lora_adapter")
@example("DELETE", "/v1/responses/resp_1/")
def test_engines_route_what_is_passed_on_as_decided(engines: list[Engine], method: str, target: str) -> None:
    bench = Bench(replicas=1)
    client = bench.client()
    data = body()
    head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(data)}\r\n\r\n"
    client.protocol.data_received(head.encode("latin-1") + data)
    passed = bench.upstreams[0].take()
    if "#" in target:
        assert read_answers(client.take())[0].status == 400
    if passed:
        decided = resolve(method.encode(), target.encode("latin-1"))
        assert decided.kind in (Kind.JSON, Kind.RESOURCE)
        assert decided.name in INFERENCE
        for engine in engines:
            assert engine.routed(passed) == [decided.name], (target, passed)
    client.lose()


def test_every_inference_route_arrives_and_no_other(engines: list[Engine]) -> None:
    for path in [*INFERENCE, *MANAGEMENT]:
        arrived = []
        for method in METHODS:
            for tail in ("", "/", "?x=1", "/?x=1"):
                bench = Bench(replicas=1)
                data = body()
                target = path.replace("{id}", "resp_1") + tail
                head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(data)}\r\n\r\n"
                bench.client().protocol.data_received(head.encode() + data)
                arrived.append(bench.upstreams[0].take())
        passed = [data for data in arrived if data]
        assert bool(passed) == (path in INFERENCE), path
        for data in passed:
            assert [engine.routed(data) for engine in engines] == [[path], [path]]


def test_routes() -> None:
    assert resolve(b"POST", b"/v1/chat/completions?api-version=1").name == "/v1/chat/completions"
    assert resolve(b"POST", b"/v1/chat/completions/?a=b").passed == b"/v1/chat/completions?a=b", (
        "no redirect to an inner address"
    )
    assert resolve(b"POST", b"http://host:1/v1/completions").passed == b"/v1/completions"
    assert resolve(b"POST", b"/v1/messages/count_tokens").dialect is Dialect.ANTHROPIC
    assert resolve(b"POST", b"/tokenize").kind is Kind.JSON
    stored = resolve(b"DELETE", b"/v1/responses/resp_1")
    assert (stored.kind, stored.name, stored.resource) == (Kind.RESOURCE, "/v1/responses/{id}", "resp_1")
    assert resolve(b"POST", b"/v1/responses/resp_1/cancel").name == "/v1/responses/{id}/cancel"
    assert resolve(b"GET", b"/v1/models/org/name").resource == "org/name"


@pytest.mark.parametrize("method", [b"POST", b"GET", b"OPTIONS"])
def test_a_fragment_is_never_served(method: bytes) -> None:
    for target in (b"/v1/load_lora_adapter#x", b"/v1/chat/completions#", b"/v1/models#x", b"/health?a#b", b"#", b"*#"):
        with pytest.raises(BadFraming, match="fragment"):
            resolve(method, target)


def test_a_refusal_names_its_reason() -> None:
    for path, why in {
        b"/v1/files": "storage",
        b"/v1/batches/batch_1/cancel": "storage",
        b"/v1/realtime": "WebSocket",
        b"/v1/nope": "There is no /v1/nope",
        b"/v1/" + b"a" * 5000: "There is no",
    }.items():
        with pytest.raises(RouteNotFound, match=why):
            resolve(b"POST", path)
    with pytest.raises(MethodNotAllowed) as caught:
        resolve(b"PATCH", b"/v1/completions")
    assert caught.value.param == "POST, OPTIONS"
    with pytest.raises(MethodNotAllowed) as caught:
        resolve(b"POST", b"/v1/responses/resp_1")
    assert caught.value.param == "GET, HEAD, DELETE, OPTIONS"
