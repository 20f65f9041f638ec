"""Every error in OpenAI's shape: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import RequestError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
# A client that is told to come back is told when.
_RETRY_AFTER_S = "1"


def error_body(
    message: str, *, status: int, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the body of an error answer as plain values.

    Example:
        >>> error_body("no such thing", status=404)["error"]["type"]
        'invalid_request_error'
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: RequestError, *, headers: Mapping[str, str] | None = None) -> Response:
    """Return the HTTP answer to a refused request."""
    # Every 400 has a code for machines, the commonest unless the refusal names another.
    code = error.code or ("invalid_value" if error.status == 400 else None)
    body = error_body(str(error), status=error.status, param=error.param, code=code)
    extra = dict(headers or {})
    if error.status == 503:
        extra["Retry-After"] = _RETRY_AFTER_S
    if error.status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return json_response(body, status=error.status, headers=extra)


def json_response(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return ``body`` as a JSON answer."""
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers=dict(headers or {}),
    )


async def on_request_error(_request: Request, error: Exception) -> Response:
    """Answer a ``RequestError`` raised by a route."""
    if not isinstance(error, RequestError):
        raise error
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses (unknown route, wrong method) in the same shape."""
    status = int(getattr(error, "status_code", 500))
    what = f"{request.method} {request.url.path}"
    messages = {404: f"unknown URL: {what}", 405: f"method not allowed: {what}"}
    message = messages.get(status, str(getattr(error, "detail", error)))
    refused = RequestError(message, status=status, code="unknown_url" if status == 404 else None)
    return error_response(refused, headers=getattr(error, "headers", None))


async def on_crash(_request: Request, _error: Exception) -> Response:
    """Answer a fault of ours without showing its inside; the server logs the traceback."""
    return json_response(error_body("internal error", status=500), status=500)
