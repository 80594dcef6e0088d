"""What all parts of the admin API share: how they read bodies, answer, and say what is wrong."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from exaserve.domain.errors import ConfigError

__all__ = ["BODY_BYTES_MAX", "AdminError", "as_json", "client_of", "decoded", "read_body", "read_raw", "refused"]

BODY_BYTES_MAX = 1_048_576
_T = TypeVar("_T")


class AdminError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code},
        }


def refused(error: ConfigError) -> AdminError:
    """Of a wish that cannot be fulfilled."""
    return AdminError(400, f"{error.message}.", "invalid_value", error.param)


def as_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def client_of(request: Request) -> str:
    return request.client.host if request.client else ""


async def read_body(request: Request, kind: type[_T]) -> _T:
    return decoded(await read_raw(request), kind)


async def read_raw(request: Request) -> bytearray:
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > BODY_BYTES_MAX:
            raise AdminError(413, f"The body is above {BODY_BYTES_MAX} bytes.", "body_too_large")
    return raw


def decoded(raw: bytearray, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`").lstrip(".") or (message.split("`")[1] if " field `" in message else None)
        raise AdminError(400, f"{message}.", "invalid_body", field) from None
    except msgspec.DecodeError as error:
        raise AdminError(400, f"The body is not JSON: {error}.", "invalid_body") from None
