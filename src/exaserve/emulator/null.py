"""Null engines: they answer at once, with nothing computed, to measure everything around engines.

One process may hold thousands. Each has its own listening socket, connections and counters, and says of itself what a
vLLM replica says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from exaserve.emulator.http import Connection, HttpRequest, frame

__all__ = ["NullEngine"]

KV_TOKENS = 400_000
_EXPOSITION = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total 0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total {prompt}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total {generated}
"""


class NullEngine:
    """One engine from :meth:`open` to :meth:`close`.

    Attributes:
        requests / tokens: completions answered so far, and tokens they had.
    """

    body_bytes_max = 64 * 1024 * 1024

    def __init__(self, model: str, host: str, port: int) -> None:
        self.model = model
        self.host, self.port = host, port
        self.requests = 0
        self.tokens = 0
        self.running = 0
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listens. OSError where the address is taken."""
        self._server = await asyncio.get_running_loop().create_server(
            Connection.factory(self), self.host, self.port, reuse_address=True, backlog=64
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            with contextlib.suppress(RuntimeError):
                connection.transport.abort()

    # ---- responder ----------------------------------------------------------------------------------------------
    def connected(self, connection: Connection) -> None:
        self.connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        path = request.path.partition("?")[0]
        if request.method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._complete(connection, request, chat=path.endswith("chat/completions"))
        elif path == "/v1/models":
            model = {"id": self.model, "object": "model", "owned_by": "null", "max_model_len": 131_072}
            connection.respond(200, _json({"object": "list", "data": [model]}))
        elif path == "/metrics":
            text = _EXPOSITION.format(
                running=self.running, blocks=KV_TOKENS // 16, prompt=self.requests, generated=self.tokens
            )
            connection.respond(200, text.encode())
        elif path == "/health":
            connection.respond(200, b"{}")
        else:
            connection.respond(404, _json({"error": {"message": f"no {path}", "type": "NotFound", "code": 404}}))

    def _complete(self, connection: Connection, request: HttpRequest, *, chat: bool) -> None:
        self.requests += 1
        self.tokens += 1
        stream = b'"stream":true' in request.body.replace(b" ", b"")
        kind = "chat.completion" if chat else "text_completion"
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if stream:
            choice |= {"delta": {"role": "assistant", "content": "."}} if chat else {"text": "."}
        else:
            choice |= {"message": {"role": "assistant", "content": "."}} if chat else {"text": "."}
        body: dict[str, Any] = {
            "id": f"null-{self.requests}",
            "object": kind + (".chunk" if stream and chat else ""),
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
        }
        if stream:
            connection.begin_stream()
            events = b"data: " + _json(body) + b"\n\ndata: [DONE]\n\n"
            connection.write(frame(events) if connection.chunked else events)
            connection.end_stream()
            return
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        connection.respond(200, _json(body))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
