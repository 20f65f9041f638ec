"""Every error has OpenAI's shape."""

import json

import pytest
from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.serving.openai.errors import error_body, error_response, on_crash, on_request_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "server_error"),
    ],
    ids=str,
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    error = error_body("m", status=status, param="p", code="c")["error"]
    assert error == {"message": "m", "type": kind, "param": "p", "code": "c"}


def test_headers_say_what_to_do() -> None:
    busy = error_response(RequestError("m", status=503))
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert error_response(RequestError("m", status=401)).headers["www-authenticate"] == "Bearer"


async def test_a_crash_shows_nothing_of_our_inside() -> None:
    response = await on_crash(Request({"type": "http"}), ValueError("secret path"))
    assert response.status_code == 500
    assert json.loads(response.body)["error"]["message"] == "internal error"


async def test_only_refusals_are_answered_as_refusals() -> None:
    with pytest.raises(ValueError, match="not ours"):
        await on_request_error(Request({"type": "http"}), ValueError("not ours"))
