"""The HTTP front over real rank processes that only repeat what they are told."""

import asyncio
import socket

import aiohttp
import pytest

from headrace.cli.client import ChatSettings, chat_client
from headrace.cli.server import running_server
from headrace.core.errors import ConfigError, ReplicaError
from tests.support.cli_model import ANSWERING, model_source, split_deployment


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_a_chat_goes_over_http_to_a_decode_rank_and_back(tmp_path):
    source = model_source(tmp_path / "small")
    async with running_server(split_deployment(), source, supervision=ANSWERING) as server:
        assert server.model_name == "small"
        pieces: list[str] = []
        async with chat_client(server.url) as client:
            name = await client.model_name()
            settings = ChatSettings(model=name, fields={"return_ledger": True})
            answer = await client.stream(say("good morning"), settings, on_text=pieces.append)
    assert answer.text == "".join(pieces) == "good morning"
    assert answer.finish_reason == "stop"
    assert answer.ledger is not None
    assert answer.ledger.prefill_replica == "prefill0"


async def test_a_ready_server_is_ready_by_its_own_account(tmp_path):
    async with (
        running_server(split_deployment(), model_source(tmp_path), supervision=ANSWERING) as server,
        aiohttp.ClientSession(server.url) as session,
    ):
        for path in ("/health", "/ready"):
            async with session.get(path) as response:
                assert response.status == 200, path


async def test_a_busy_port_is_refused_before_any_rank_is_started(tmp_path):
    events: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = split_deployment()
        config = type(config)(
            prefill=config.prefill, decode=config.decode, serving=type(config.serving)(port=port)
        )
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with running_server(
                config, model_source(tmp_path), on_event=events.append, supervision=ANSWERING
            ):
                pass
    assert events == []


async def test_a_death_past_the_restarts_ends_the_server_and_the_stream_with_its_name(
    tmp_path,
):
    source = model_source(tmp_path)
    async with (
        running_server(split_deployment(), source, supervision=ANSWERING) as server,
        chat_client(server.url) as client,
    ):
        settings = ChatSettings(model=server.model_name)
        asking = asyncio.create_task(
            client.stream(say("die! now"), settings, on_text=lambda _: None)
        )
        with pytest.raises(ReplicaError, match=r"decode0\.0 was ended by SIGKILL"):
            await server.serve()
        await server.stop()
        # The rank dies on sight of the prompt: before or after the stream's first event.
        with pytest.raises(ReplicaError, match=r"decode0\.0 was ended by SIGKILL"):
            await asking


async def test_stopping_ends_open_streams_and_closes_the_port(tmp_path):
    source = model_source(tmp_path)
    is_talking = asyncio.Event()
    async with (
        running_server(split_deployment(), source, supervision=ANSWERING) as server,
        chat_client(server.url) as client,
    ):
        settings = ChatSettings(model=server.model_name)
        asking = asyncio.create_task(
            client.stream(say("wait! here"), settings, on_text=lambda _: is_talking.set())
        )
        await is_talking.wait()
        await server.stop()
        with pytest.raises(ReplicaError, match="the server is stopping"):
            await asking
        with pytest.raises(ConfigError, match="nobody answers"):
            await client.model_name()
