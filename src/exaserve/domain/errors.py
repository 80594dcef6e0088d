"""Every error that ExaServe raises on purpose, in one tree.

::

    ExaServeError                     fault      status  retry elsewhere
    ├── ConfigError                   operator   -       no      (exit code 2)
    ├── ClientError                   client     400     no
    │   ├── BadFraming                client     400     no      (connection closes)
    │   ├── InvalidBody               client     400     no
    │   ├── Unauthorized              client     401     no
    │   ├── Forbidden                 client     403     no
    │   ├── RateLimited               client     429     no
    │   ├── QuotaExhausted            client     429     no
    │   ├── ModelNotFound             client     404     no
    │   ├── ResponseNotFound          client     404     no
    │   ├── RouteNotFound             client     404     no
    │   ├── MethodNotAllowed          client     405     no
    │   ├── SlowClient                client     408     no      (connection closes)
    │   ├── BodyTooLarge              client     413     no      (connection closes)
    │   ├── UnsupportedEncoding       client     415     no
    │   └── HeadersTooLarge           client     431     no      (connection closes)
    ├── CapacityError                 gateway    503     no
    │   ├── QueueFull                 gateway    429     no
    │   ├── QueueTimeout              gateway    503     no
    │   ├── NoReplicaReady            gateway    503     no
    │   ├── ReceivingTooMuch          gateway    503     no      (connection closes)
    │   ├── DeadlineExceeded          gateway    504     no
    │   └── ShuttingDown              gateway    503     no
    └── ReplicaError                  replica    502     yes
        ├── ConnectFailed             replica    502     yes
        ├── ConnectionLost            replica    502     yes
        ├── InvalidResponse           replica    502     yes
        └── ReplicaTimeout            replica    504     yes

``retryable`` says that the same request may be sent to *another* replica while the client has not seen a byte.
"""

from __future__ import annotations

from typing import ClassVar, Literal

__all__ = [
    "BadFraming",
    "BodyTooLarge",
    "CapacityError",
    "ClientError",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "ExaServeError",
    "Fault",
    "Forbidden",
    "HeadersTooLarge",
    "InvalidBody",
    "InvalidResponse",
    "MethodNotAllowed",
    "ModelNotFound",
    "NoReplicaReady",
    "QueueFull",
    "QueueTimeout",
    "QuotaExhausted",
    "RateLimited",
    "ReceivingTooMuch",
    "ReplicaError",
    "ReplicaTimeout",
    "ResponseNotFound",
    "RouteNotFound",
    "ShuttingDown",
    "SlowClient",
    "Unauthorized",
    "UnsupportedEncoding",
]

Fault = Literal["client", "operator", "gateway", "replica"]


class ExaServeError(Exception):
    """Root of the tree.

    Args:
        message: what is wrong and how to repair it, in one or two sentences, for the person at fault.
        param: the offending field, as OpenAI's ``error.param`` (None where no single field is at fault).
        retry_after_s: when a retry may succeed, whole seconds, for ``Retry-After``.
    """

    fault: ClassVar[Fault] = "gateway"
    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    retryable: ClassVar[bool] = False
    should_retry: ClassVar[bool | None] = None
    """What clients are told of retrying, where they would guess wrong by the status."""
    retry_after_ms: int = 0
    """``retry_after_s`` more finely, for clients that read it; 0 where that is enough."""
    closes: ClassVar[bool] = False
    """True where the client's connection cannot be reused after this error."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class ConfigError(ExaServeError):
    """The operator's file or flags are wrong. ``param`` is the full path of the field, such as ``replicas[3].url``."""

    fault = "operator"
    code = "config_error"
    type = "config_error"


class ClientError(ExaServeError):
    fault = "client"
    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class BadFraming(ClientError):
    code = "bad_framing"
    closes = True


class InvalidBody(ClientError):
    code = "invalid_body"


class Unauthorized(ClientError):
    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class Forbidden(ClientError):
    status = 403
    code = "not_allowed"
    type = "permission_error"


class RateLimited(ClientError):
    """More than may be used now; later it can be."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"


class QuotaExhausted(ClientError):
    """What may be used in this day or month is used up: asking again soon does not help."""

    status = 429
    should_retry = False
    code = "insufficient_quota"
    type = "insufficient_quota"


class ModelNotFound(ClientError):
    status = 404
    code = "model_not_found"
    type = "not_found_error"


class ResponseNotFound(ClientError):
    """A stored response that is not there for who asks."""

    status = 404
    code = "response_not_found"
    type = "not_found_error"


class RouteNotFound(ClientError):
    status = 404
    code = "route_not_found"
    type = "not_found_error"


class MethodNotAllowed(ClientError):
    status = 405
    code = "method_not_allowed"


class SlowClient(ClientError):
    status = 408
    code = "request_timeout"
    closes = True


class BodyTooLarge(ClientError):
    status = 413
    code = "body_too_large"
    closes = True


class UnsupportedEncoding(ClientError):
    status = 415
    code = "unsupported_encoding"


class HeadersTooLarge(ClientError):
    status = 431
    code = "headers_too_large"
    closes = True


class CapacityError(ExaServeError):
    status = 503
    code = "overloaded"
    type = "overloaded_error"


class QueueFull(CapacityError):
    status = 429
    code = "queue_full"
    type = "rate_limit_error"


class QueueTimeout(CapacityError):
    code = "queue_timeout"


class NoReplicaReady(CapacityError):
    code = "no_replica_ready"


class ReceivingTooMuch(CapacityError):
    code = "receiving_too_much"
    closes = True


class DeadlineExceeded(CapacityError):
    """The request's own time is up, wherever it was: that says nothing about the replica."""

    status = 504
    code = "deadline_exceeded"


class ShuttingDown(CapacityError):
    code = "shutting_down"


class ReplicaError(ExaServeError):
    fault = "replica"
    status = 502
    code = "replica_error"
    retryable = True


class ConnectFailed(ReplicaError):
    code = "replica_unreachable"


class ConnectionLost(ReplicaError):
    code = "replica_connection_lost"


class InvalidResponse(ReplicaError):
    code = "replica_invalid_response"


class ReplicaTimeout(ReplicaError):
    status = 504
    code = "replica_timeout"
