"""Bodies are refused by name: what is wrong, where, and what was probably meant."""

import pytest
from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.parse import parse_body, read_body

CASES = [
    (b"{", None, "invalid_json", "not valid JSON"),
    (b"\xff", None, "invalid_json", "not valid JSON"),
    (b"[" * 100_000, None, "invalid_json", "nested too deeply"),
    (b"[]", None, "invalid_json", "must be a JSON object, not list"),
    (b'{"model":"m"}', "messages", "missing_required_parameter", "messages"),
    (b'{"model":"m","messages":[3]}', "messages[0]", "invalid_type", "`object`, got `int`"),
    (b'{"model":"m","messages":[],"max_tokens":"3"}', "max_tokens", "invalid_type", "got `str`"),
    (
        b'{"model":"m","messages":[],"temprature":1}',
        "temprature",
        "unknown_parameter",
        "'temperatu",
    ),
    (b'{"model":"m","messages":[],"stop":["a",2]}', "stop[1]", "invalid_type", "got `int`"),
    (
        b'{"model":"m","messages":[],"logit_bias":{"1":"a"}}',
        "logit_bias",
        "invalid_type",
        "`float`",
    ),
    (
        b'{"model":"m","messages":[],"stream_options":{"include_usage":3}}',
        "stream_options.include_usage",
        "invalid_type",
        "got `int`",
    ),
    (
        b'{"model":"m","messages":[],"response_format":{}}',
        "response_format.type",
        "missing_required_parameter",
        "response_format.type",
    ),
]


@pytest.mark.parametrize(
    ("data", "param", "code", "words"), CASES, ids=[f"case{i}" for i in range(len(CASES))]
)
def test_a_bad_body_is_refused_by_field(
    data: bytes, param: str | None, code: str, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_body(data, ChatBody)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert words in str(caught.value)


def test_null_means_left_out_and_harmless_fields_are_taken() -> None:
    body = parse_body(
        b'{"model":"m","messages":[],"stop":null,"max_tokens":null,"user":"u","store":false,'
        b'"metadata":{"a":"b"},"service_tier":"auto","prediction":{},"reasoning_effort":"low"}',
        ChatBody,
    )
    assert (body.stop, body.max_tokens) == (None, None)


@pytest.mark.parametrize(
    "prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]], ids=["text", "texts", "ids", "lists"]
)
def test_all_four_forms_of_prompt_are_read(prompt: object) -> None:
    text = str(prompt).replace("'", '"') if not isinstance(prompt, str) else f'"{prompt}"'
    body = parse_body(f'{{"model":"m","prompt":{text}}}'.encode(), CompletionBody)
    assert body.prompt == prompt


def _request(parts: list[bytes], headers: dict[str, str] | None = None) -> Request:
    messages = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    pairs = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    return Request({"type": "http", "headers": pairs}, receive)  # type: ignore[arg-type]


async def test_a_body_within_the_limit_is_read_whole() -> None:
    assert await read_body(_request([b"ab", b"cd"]), max_bytes=4) == b"abcd"


async def test_a_body_over_the_limit_is_refused_when_announced() -> None:
    with pytest.raises(RequestError, match="larger than 4 bytes") as caught:
        await read_body(_request([], {"content-length": "5"}), max_bytes=4)
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


async def test_a_body_over_the_limit_is_refused_when_it_comes_unannounced() -> None:
    with pytest.raises(RequestError, match="larger than 4 bytes"):
        await read_body(_request([b"abc", b"de", b"never read"]), max_bytes=4)


async def test_a_client_that_leaves_inside_its_body_is_no_crash() -> None:
    request = _request([b"ab"])
    request._receive = _request([])._receive
    with pytest.raises(RequestError, match="client left"):
        await read_body(request, max_bytes=4)
