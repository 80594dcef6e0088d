"""How to reach a Kubernetes API server: from inside a pod by its service account, from outside by a kubeconfig file."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from exaserve.discovery.feed import SourceError
from exaserve.discovery.http import Tls

__all__ = ["SERVICE_ACCOUNT", "ApiAccess", "in_cluster", "read_kubeconfig"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is and how to be let in.

    Attributes:
        token_file: read again at each connection, since service account tokens are rotated.
        token: a fixed one from a kubeconfig.
        ca_data / cert_data / key_data: PEM texts that a kubeconfig carries itself.
        namespace: of the pod or the context, "" if unknown.
    """

    server: str
    tls: Tls
    token_file: str = ""
    token: str = ""
    user: str = ""
    password: str = ""
    ca_data: bytes = b""
    cert_data: bytes = b""
    key_data: bytes = b""
    namespace: str = ""

    def context(self) -> ssl.SSLContext | None:
        """For TLS; None for plain HTTP. Texts are written to files, the only form that ssl loads a key from."""
        if not self.server.startswith("https://"):
            return None
        with tempfile.TemporaryDirectory(prefix="exaserve-") as folder:

            def placed(name: str, data: bytes, otherwise: str) -> str:
                if not data:
                    return otherwise
                path = Path(folder) / name
                path.touch(mode=0o600)
                path.write_bytes(data)
                return str(path)

            return Tls(
                ca_file=placed("ca.pem", self.ca_data, self.tls.ca_file),
                cert_file=placed("cert.pem", self.cert_data, self.tls.cert_file),
                key_file=placed("key.pem", self.key_data, self.tls.key_file),
                insecure=self.tls.insecure,
            ).context()


def in_cluster(host: str, port: str, folder: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """By the pod's service account.

    Args:
        host / port: ``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT``.
    """
    if not host:
        raise SourceError("not inside a cluster (KUBERNETES_SERVICE_HOST is not set); give a kubeconfig file")
    try:
        namespace = (folder / "namespace").read_text("utf-8").strip()
    except OSError:
        namespace = ""
    shown = f"[{host}]" if ":" in host else host
    return ApiAccess(
        f"https://{shown}:{port or '443'}",
        Tls(ca_file=str(folder / "ca.crt")),
        token_file=str(folder / "token"),
        namespace=namespace,
    )


def read_kubeconfig(path: Path, context: str = "") -> ApiAccess:
    """By a kubeconfig file; ``context`` "" is its current one.

    Raises:
        SourceError: names the field that is missing, wrong or of a kind that is not supported (``exec``).
    """
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise SourceError(f"kubeconfig {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        raise SourceError(f"kubeconfig {path}: is not YAML") from None
    if not isinstance(config, dict):
        raise SourceError(f"kubeconfig {path}: is not a mapping")
    name = context or config.get("current-context") or ""
    if not name:
        raise SourceError(f"kubeconfig {path}: current-context is not set; name a context")
    chosen = _named(config, "contexts", name, "context", path)
    cluster = _named(config, "clusters", str(chosen.get("cluster", "")), "cluster", path)
    user = _named(config, "users", str(chosen["user"]), "user", path) if chosen.get("user") else {}
    for kind in ("exec", "auth-provider"):
        if kind in user:
            raise SourceError(
                f"kubeconfig {path}: users[{chosen['user']}].{kind} runs a program to get credentials, which is not"
                " supported; use a service account's token or a client certificate"
            )
    server = str(cluster.get("server", ""))
    if not server.startswith(("https://", "http://")):
        raise SourceError(f"kubeconfig {path}: clusters[{chosen.get('cluster')}].server is not a URL")

    def file_of(where: dict[str, Any], key: str) -> str:
        named = where.get(key)
        return str(path.parent / str(named)) if named else ""  # relative to the kubeconfig, as kubectl takes it

    return ApiAccess(
        server.rstrip("/"),
        Tls(
            ca_file=file_of(cluster, "certificate-authority"),
            cert_file=file_of(user, "client-certificate"),
            key_file=file_of(user, "client-key"),
            server_name=str(cluster.get("tls-server-name", "")),
            insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        ),
        token_file="" if user.get("token") else file_of(user, "tokenFile"),
        token=str(user.get("token", "")),
        user=str(user.get("username", "")),
        password=str(user.get("password", "")),
        ca_data=_decoded(cluster, "certificate-authority-data", path),
        cert_data=_decoded(user, "client-certificate-data", path),
        key_data=_decoded(user, "client-key-data", path),
        namespace=str(chosen.get("namespace", "")),
    )


def _named(config: dict[str, Any], group: str, name: str, kind: str, path: Path) -> dict[str, Any]:
    listed = config.get(group)
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict) and each.get("name") == name and isinstance(each.get(kind), dict):
            found: dict[str, Any] = each[kind]
            return found
    raise SourceError(f"kubeconfig {path}: {group} has no {name!r}")


def _decoded(where: dict[str, Any], key: str, path: Path) -> bytes:
    try:
        return base64.b64decode(str(where.get(key, "")), validate=True)
    except binascii.Error:
        raise SourceError(f"kubeconfig {path}: {key} is not base64") from None
