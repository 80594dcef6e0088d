"""Certificates for tests, made by the openssl command: a CA, a server on 127.0.0.1, a client."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from tests.programs import program


class Certificates:
    def __init__(self, folder: Path) -> None:
        program("openssl")
        self.folder = folder
        self.ca = folder / "ca.pem"
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        self._run(f"req -x509 {key} -days 2 -keyout ca.key -out ca.pem -subj /CN=test-ca")
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:registry.test\n")
        signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext"
        for name in ("server", "client"):
            self._run(f"req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}")
            self._run(f"x509 -req -in {name}.csr {signed} -out {name}.pem")
        self.client_cert, self.client_key = folder / "client.pem", folder / "client.key"

    def _run(self, line: str) -> None:
        subprocess.run(["openssl", *line.split()], cwd=self.folder, check=True, capture_output=True)

    def server_context(self, *, ask_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        if ask_client:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
