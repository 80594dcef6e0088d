"""A server with known delays and a log of what it truly did; a thread per connection, timed by the kernel.

The first token comes 500 ms after the request was read, the others 20 ms apart, but for one that comes after a stall of
1 s. ``--serial`` serves one request at a time. Prints its port; on the end of standard input, its log as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import sys
import threading
import time

FIRST_S, GAP_S, STALL_S, TOKENS, STALL_AT = 0.5, 0.02, 1.0, 12, 6
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-exaserve-replica: r1\r\n\r\n"
)


def event(payload: str) -> bytes:
    data = f"data: {payload}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


ROLE = event('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
TOKEN = event('{"choices":[{"index":0,"delta":{"content":"x"}}]}')
LAST = (
    event('{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}')
    + event('{"choices":[],"usage":{"prompt_tokens":327,"completion_tokens":12}}')
    + event("[DONE]")
    + b"0\r\n\r\n"
)


def until(instant: float) -> None:
    """Sleeps most of the time and spins the rest, to some ten microseconds."""
    wait = instant - time.monotonic() - 0.0005
    if wait > 0.0:
        time.sleep(wait)
    while time.monotonic() < instant:
        pass


class Server:
    def __init__(self, serial: bool, tokens: int) -> None:
        self.lock = threading.Lock() if serial else contextlib.nullcontext()
        self.tokens = tokens
        self.log: list[dict[str, object]] = []

    def serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        with connection, contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in data:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    data += piece
                head, _, body = data.partition(b"\r\n\r\n")
                size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
                while len(body) < size:
                    body += connection.recv(65536)
                data = body[size:]
                self.answer(connection, time.monotonic())

    def answer(self, connection: socket.socket, read: float) -> None:
        with self.lock:
            connection.sendall(HEAD + ROLE)
            at = time.monotonic() + FIRST_S
            written = []
            for i in range(self.tokens):
                until(at)
                connection.sendall(TOKEN)
                written.append(time.monotonic())
                at += STALL_S if i + 1 == STALL_AT else GAP_S
            connection.sendall(LAST)
            self.log.append({"read": read, "tokens": written, "end": time.monotonic()})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serial", action="store_true")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    server = Server(options.serial, options.tokens)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=server.serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()
    print(json.dumps(server.log), flush=True)


if __name__ == "__main__":
    main()
