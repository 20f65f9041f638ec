"""The server is started and stopped by its owner, and fails with one line."""

import asyncio
import signal
import socket

import httpx
import pytest

from headrace.core.errors import ConfigError
from headrace.serving.openai.app import create_app
from headrace.serving.openai.config import ServingConfig
from headrace.serving.openai.server import HttpServer
from tests.support.serving_fakes import MODEL, make_stack, one_then_nothing, served


async def _app(scope: object, receive: object, send: object) -> None:
    raise AssertionError("not reached")


def test_a_busy_port_is_one_clear_line_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = HttpServer(_app, ServingConfig(port=port))
        with pytest.raises(ConfigError) as caught:
            server.open()
    assert f"cannot listen on 127.0.0.1:{port}" in str(caught.value)
    assert "choose another port" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_host_that_is_not_ours_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.9:0"):
        HttpServer(_app, ServingConfig(host="203.0.113.9", port=0)).open()


async def test_the_port_is_known_before_and_free_after() -> None:
    async with served() as stack:
        assert (await stack.client.get("/health")).json() == {"status": "ok"}
        port = int(stack.url.rsplit(":", 1)[1])
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.get(f"http://127.0.0.1:{port}/health")
    again = HttpServer(_app, ServingConfig(port=port))
    again.open()
    await again.stop()


async def test_signals_stay_with_the_owner_of_the_process() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with served():
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_stopping_ends_open_streams_with_an_error_event() -> None:
    body = {"model": MODEL, "prompt": "a", "stream": True}
    async with (
        asyncio.timeout(10),
        served(one_then_nothing) as stack,
        stack.client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert '"text":"A"' in await anext(lines)
        stack.front.dispatcher.fail_all("the server is stopping")
        rest = [line async for line in lines]
    assert any("the server is stopping" in line for line in rest)
    assert "data: [DONE]" in rest


async def test_a_stream_that_does_not_end_is_cut_and_its_request_aborted() -> None:
    stack = make_stack(one_then_nothing, shutdown_s=1)
    server = HttpServer(create_app(stack.front), stack.front.config)
    await server.start()
    async with asyncio.timeout(10), httpx.AsyncClient(trust_env=False) as client:
        body = {"model": MODEL, "prompt": "a", "stream": True}
        url = f"{server.url}/v1/completions"
        async with client.stream("POST", url, json=body) as answer:
            assert '"text":"A"' in await anext(answer.aiter_lines())
            await server.stop()
            assert stack.front.dispatcher.num_calls == 0
            assert stack.engine.aborts == [stack.engine.submits[0].request_id]


async def test_nothing_runs_on_after_the_stop() -> None:
    async with served() as stack:
        await stack.client.get("/health")
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stopping_twice_or_before_the_start_is_harmless() -> None:
    server = HttpServer(_app, ServingConfig(port=0))
    await server.stop()
    server.open()
    assert server.url == f"http://127.0.0.1:{server.port}"
    await server.stop()
    await server.stop()
