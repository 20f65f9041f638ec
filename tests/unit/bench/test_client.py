"""The client counts each token once however the answer is cut, and names what went wrong."""

import asyncio
import json

import pytest

from headrace.bench.client import LoadClient, closed_loop, open_loop
from headrace.bench.workload import LoadRequest
from headrace.core.errors import ConfigError
from tests.support.bench_server import END, EVENT, HEAD, CannedServer, answer, canned

REQUEST = LoadRequest(at_s=0.0, prompt_ids=[1, 2, 3], max_tokens=5)


def ask(server: CannedServer, count: int = 1, **loop):
    async def run(url: str):
        client = LoadClient(url, model="canned", api_key="secret")
        requests = [client.encode(REQUEST)] * count
        try:
            return await closed_loop(client, requests, concurrency=loop.get("concurrency", 1))
        finally:
            client.close()

    with canned(server) as url:
        return asyncio.run(run(url))


def test_tokens_are_counted_and_connections_are_kept():
    server = CannedServer(answer(5))
    outcomes = ask(server, 6, concurrency=2)
    assert [one.num_tokens for one in outcomes] == [5] * 6
    assert all(one.error == "" and len(one.gaps_s) == 4 for one in outcomes)
    assert all(0 < one.ttft_s <= one.took_s for one in outcomes)
    assert len(server.requests) == 6
    body = json.loads(server.requests[0])
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ([1, 2, 3], 5, True)


@pytest.mark.parametrize("size", [1, 3, 7, 11, 1000])
def test_an_event_cut_anywhere_is_one_event(size):
    whole = HEAD + EVENT * 4 + END
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    (outcome,) = ask(CannedServer(parts))
    assert (outcome.num_tokens, outcome.error) == (4, "")


@pytest.mark.parametrize("size", [9, 64, 1000])
def test_events_that_are_no_tokens_are_taken_off_again(size):
    reason = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens": 4}}\n\n'
    whole = HEAD + EVENT * 4 + reason + usage + END
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    (outcome,) = ask(CannedServer(parts))
    assert (outcome.error, outcome.num_tokens, len(outcome.gaps_s)) == ("", 4, 3)


def test_a_refusal_and_an_error_in_the_stream_are_told_in_the_servers_words():
    refusal = b'HTTP/1.1 503 Busy\r\n\r\n{"error":{"message":"try again"}}'
    (outcome,) = ask(CannedServer([refusal]))
    assert outcome.error.startswith("try again")
    assert outcome.num_tokens == 0
    broken = [HEAD, EVENT, b'data: {"error":{"message":"the rank died"}}\n\n']
    (outcome,) = ask(CannedServer(broken))
    assert outcome.error.startswith("the rank died")
    assert outcome.num_tokens == 1


def test_a_server_that_hangs_up_is_an_error_and_the_next_request_gets_a_new_connection():
    outcomes = ask(CannedServer([HEAD, EVENT], hangs_up=True), 2)
    assert [one.error for one in outcomes] == ["the server hung up"] * 2


def test_nobody_there_is_an_error_of_each_request():
    async def run():
        client = LoadClient("http://127.0.0.1:9", model="m")
        return await open_loop(client, [(0.0, client.encode(REQUEST))] * 2)

    assert [one.error for one in asyncio.run(run())] == ["nobody answers"] * 2


def test_an_open_loop_sends_in_time_order():
    server = CannedServer(answer(2))

    async def run(url: str):
        client = LoadClient(url, model="m")
        encoded = client.encode(REQUEST)
        try:
            return await open_loop(client, [(0.0, encoded), (0.05, encoded)])
        finally:
            client.close()

    with canned(server) as url:
        first, second = asyncio.run(run(url))
    assert second.sent_s >= first.sent_s
    assert (first.num_tokens, second.num_tokens) == (2, 2)


@pytest.mark.parametrize("url", ["https://a:1", "http://a", "a:1", ""])
def test_an_address_of_another_form_is_refused(url):
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        LoadClient(url, model="m")
