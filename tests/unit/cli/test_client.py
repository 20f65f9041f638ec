"""The client: text as it comes, and one clear error for everything that can go wrong."""

import socket

import msgspec
import pytest

from headrace.cli.client import ChatSettings, chat_client
from headrace.core.errors import ConfigError, ReplicaError, RequestError
from headrace.core.requests import Ledger
from tests.support.cli_http import scripted_server

HELLO = [{"role": "user", "content": "hello"}]
SETTINGS = ChatSettings(model="m", fields={"seed": 3})


def events(*bodies: object) -> bytes:
    lines = [b"data: " + msgspec.json.encode(body) + b"\n\n" for body in bodies]
    return b"".join(lines) + b"data: [DONE]\n\n"


def delta(text: str | None, **choice: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **choice}]}


async def answer(url: str, pieces: list[str] | None = None, **options: str):
    on_text = (pieces if pieces is not None else []).append
    async with chat_client(url, **options) as client:
        return await client.stream(HELLO, SETTINGS, on_text=on_text)


async def test_text_is_handed_on_piece_by_piece_and_the_end_carries_the_ledger():
    body = events(
        delta(""),
        delta("Hé"),
        delta(" you", finish_reason=None),
        delta(None, finish_reason="length", ledger=msgspec.to_builtins(Ledger(output_tokens=2))),
        {"choices": [], "usage": {"prompt_tokens": 1}},
    )
    pieces: list[str] = []
    async with scripted_server(body) as server:
        got = await answer(server.url + "/v1/", pieces, api_key="k")
        path, headers, sent = server.asked[0]
    assert pieces == ["Hé", " you"]
    assert (got.text, got.finish_reason) == ("Hé you", "length")
    assert got.ledger == Ledger(output_tokens=2)
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer k"
    assert sent == {"seed": 3, "model": "m", "messages": HELLO, "stream": True}


async def test_the_served_model_is_asked_for():
    async with scripted_server(b'{"data": [{"id": "one"}]}') as server:
        async with chat_client(server.url) as client:
            assert await client.model_name() == "one"
        server.body = b'{"data": []}'
        async with chat_client(server.url) as client:
            with pytest.raises(ConfigError, match="serves no model"):
                await client.model_name()


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error": {"message": "too long"}}', RequestError, "the server refused: too long"),
        (503, b'{"error": {"message": "full"}}', ReplicaError, "could not answer: full"),
        (404, b"<html>", ReplicaError, "answered with status 404: is it a headrace server"),
        (200, b"data: {oops\n\n", ReplicaError, "sent what no headrace server sends"),
        (200, events(delta("half")), ReplicaError, "closed the connection before the answer"),
        (200, events({"error": {"message": "died"}}), ReplicaError, "the answer broke off: died"),
    ],
    ids=["refused", "overloaded", "not-ours", "no-json", "cut", "broken-off"],
)
async def test_what_goes_wrong_is_one_clear_error(status, body, kind, message):
    async with scripted_server(body, status=status) as server:
        with pytest.raises(kind, match=message):
            await answer(server.url)


async def test_an_address_where_nobody_answers_says_how_to_start_a_server():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="nobody answers.*'headrace serve'"):
        await answer(f"http://127.0.0.1:{port}")


async def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(ConfigError, match="expected an address such as http://"):
        await answer("localhost:8000")
