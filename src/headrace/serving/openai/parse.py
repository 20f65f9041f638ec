"""Bytes of a request body to a typed body, or a refusal that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from headrace.core.config import suggest
from headrace.core.errors import RequestError
from headrace.serving.openai.bodies import Sampling

Body = TypeVar("Body", bound=Sampling)

_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        RequestError: Status 413 as soon as more than ``max_bytes`` were announced or came; or
            the client left.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise _too_large(max_bytes)
            parts.append(part)
    except ClientDisconnect as error:
        # Nobody reads the answer, but it is no fault of ours to log either.
        raise RequestError("the client left before its body was whole") from error
    return b"".join(parts)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"the body is larger than {max_bytes} bytes, the server's limit",
        status=413,
        code="request_too_large",
    )


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """Decode JSON into ``kind``.

    Raises:
        RequestError: Not JSON, not an object, an unknown field (with the nearest known one), a
            missing one, or a wrong type; ``param`` names the field.
    """
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise RequestError(
            f"the body must be a JSON object, not {type(fields).__name__}", code="invalid_json"
        )
    _refuse_unknown(fields, list(kind.__struct_fields__))
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error


def _refuse_unknown(fields: dict[str, object], known: list[str]) -> None:
    for name in fields:
        if name not in known:
            raise RequestError(
                f"unknown field {name!r}: {suggest(name, known)}",
                param=name,
                code="unknown_parameter",
            )


def _invalid(message: str) -> RequestError:
    where = _PATH.search(message)
    path = where["path"].replace("[...]", "") if where else ""
    missing = _MISSING.search(message)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return RequestError(
            f"{path}: a required field is missing", param=path, code="missing_required_parameter"
        )
    # msgspec's own words: "Expected `int | null`, got `str`".
    plain = _PATH.sub("", message).replace("Expected", "expected")
    return RequestError(f"{path}: {plain}", param=path or None, code="invalid_type")
