"""A stand-in for an engine: ``engine.py HOST PORT`` and what it is to do wrong, or to ask for."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("host")
parser.add_argument("port", type=int)
parser.add_argument("--words", default="")
parser.add_argument("--exit", type=int)
parser.add_argument("--crash-file", default="", help="the engine ends when it is there, and takes it away")
parser.add_argument("--freeze-file", default="")
parser.add_argument("--daemon", default="")
parser.add_argument("--api-key", default="")
parser.add_argument("--die-file", default="", help="when it is there, the engine says what vLLM says and answers 500")
parser.add_argument("--models-file", default="", help="names it lists, one on a line")
options = parser.parse_args()
if options.words:
    print(options.words, flush=True)
if options.exit is not None:
    sys.exit(options.exit)
if options.daemon and os.fork() == 0:
    # A child that leaves its session, ignores SIGTERM and is nobody's child any more.
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(options.daemon, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(300)
    os._exit(0)


def crashes() -> None:
    while not os.path.exists(options.crash_file):
        time.sleep(0.02)
    os.unlink(options.crash_file)
    os._exit(3)


if options.crash_file:
    threading.Thread(target=crashes, daemon=True).start()


def core_dies() -> None:
    while not os.path.exists(options.die_file):
        time.sleep(0.02)
    print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", flush=True)
    print("nanobind: leaked 4 instances!", flush=True)


if options.die_file:
    threading.Thread(target=core_dies, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body: bytes) -> None:
        while options.freeze_file and os.path.exists(options.freeze_file):
            time.sleep(0.05)
        known = not options.api_key or self.headers["authorization"] == f"Bearer {options.api_key}"
        body = body if known else b'{"error": "Unauthorized"}'
        dead = options.die_file and os.path.exists(options.die_file)
        self.send_response(500 if dead else 200 if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if options.models_file and self.path == "/v1/models":
            with open(options.models_file) as file:
                listed = [{"id": name, "max_model_len": 2048} for name in file.read().split()]
            self.answer(json.dumps({"data": listed}).encode())
            return
        self.answer(
            b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
            b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0\n"
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(json.dumps({"choices": [{"text": "."}], "env": os.environ.get("MARK", "")}).encode())

    def log_message(self, *args: object) -> None: ...


ThreadingHTTPServer.request_queue_size = 64
ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
