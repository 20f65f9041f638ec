"""What every request passes first and every answer last: API key, request id, count."""

from __future__ import annotations

import hmac
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.errors import RequestError
from headrace.serving.openai.config import ServingConfig
from headrace.serving.openai.errors import error_response
from headrace.serving.openai.metrics import ServingMetrics

_OPEN_PATHS = frozenset({"/health", "/ready"})
_ENDPOINTS = frozenset(
    {"/health", "/ready", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions"}
)
_MAX_ID_CHARS = 128


class Gate:
    """Wraps an application.

    Every route but ``/health`` and ``/ready`` needs a key when keys are configured. ``/metrics``
    needs one too, unless it was opened; with neither keys nor opening it is closed, since what a
    server is asked and how often is nobody else's business.

    A client's ``X-Request-Id`` comes back on its answer and is used for nothing else, so that
    equal ids never meet; without one the server makes one.
    """

    def __init__(self, app: ASGIApp, *, config: ServingConfig, metrics: ServingMetrics) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in config.api_keys)
        self._is_metrics_open = config.is_metrics_open
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path: str = scope["path"]
        request_id = _request_id(headers.get("x-request-id", ""))
        endpoint = path if path in _ENDPOINTS else "other"

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                self._metrics.note_answer(endpoint, message["status"])
            await send(message)

        refusal = self._refusal(path, headers.get("authorization", ""))
        if refusal is not None:
            # The body is not read: without closing, its bytes would be taken for a request.
            answer = error_response(refusal, headers={"Connection": "close"})
            await answer(scope, receive, send_marked)
            return
        await self._app(scope, receive, send_marked)

    def _refusal(self, path: str, authorization: str) -> RequestError | None:
        if path in _OPEN_PATHS or (path == "/metrics" and self._is_metrics_open):
            return None
        if not self._keys:
            if path != "/metrics":
                return None
            return RequestError(
                "/metrics is closed: open it in the serving configuration, or set an API key",
                status=403,
                code="metrics_closed",
            )
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not given:
            return RequestError(
                "no API key: send the header 'Authorization: Bearer KEY'",
                status=401,
                code="missing_api_key",
            )
        key = given.strip().encode()
        # A list, so that all keys are compared, each in constant time: timing tells nothing.
        matches = [hmac.compare_digest(key, known) for known in self._keys]
        if not any(matches):
            return RequestError("incorrect API key", status=401, code="invalid_api_key")
        return None


def _request_id(given: str) -> str:
    """Return the client's id where it may stand in a header, or a new one."""
    if given and len(given) <= _MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid4().hex
