"""Answers on a real socket: framing, failures before and inside a stream, clients that leave."""

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from headrace.core.messages import Output, Submit
from headrace.core.requests import FinishReason
from tests.support.serving_fakes import MODEL, events, make_stack, one_then_nothing, say, served


def failing(submit: Submit) -> Iterator[Output]:
    yield Output(
        request_id=submit.request_id,
        choice=0,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error="prefill0.1: the transfer made no progress",
    )


def failing_late(submit: Submit) -> Iterator[Output]:
    yield from one_then_nothing(submit)
    yield from failing(submit)


async def test_a_usage_chunk_comes_last_with_no_choices_then_done() -> None:
    """H31, first part."""
    stack = make_stack()
    answer = await stack.chat(stream=True, stream_options={"include_usage": True})
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    *others, last = map(json.loads, chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 6
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in others)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_without_asking_no_chunk_speaks_of_usage() -> None:
    answer = await make_stack().chat(stream=True)
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert all("usage" not in json.loads(chunk) for chunk in chunks)


async def test_streamed_and_whole_answers_say_the_same() -> None:
    stack = make_stack(lambda submit: say(submit, "Once upon"))
    whole = (await stack.chat(n=3)).json()
    chunks = [json.loads(one) for one in events((await stack.chat(n=3, stream=True)).text)[:-1]]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == "Once upon"
        assert mine[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert choice["message"]["content"] == "Once upon"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_a_failure_before_the_first_token_is_an_http_error(is_stream: bool) -> None:
    stack = make_stack(failing)
    answer = await stack.chat(stream=is_stream)
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["message"] == "prefill0.1: the transfer made no progress"
    assert (error["type"], error["code"]) == ("server_error", "engine_error")
    assert stack.front.metrics.finished == {"error": 1}


async def test_a_failure_inside_a_stream_is_an_error_event() -> None:
    answer = await make_stack(failing_late).chat(stream=True)
    *_, error, done = events(answer.text)
    assert json.loads(error)["error"]["code"] == "engine_error"
    assert done == "[DONE]"


async def test_a_failed_choice_aborts_its_siblings() -> None:
    stack = make_stack(failing)
    assert (await stack.chat(n=2)).status_code == 500
    assert stack.engine.aborts == [stack.engine.submits[0].request_id]
    assert stack.front.dispatcher.num_calls == 0


async def test_a_dead_rank_is_unavailability_not_a_fault_of_the_request() -> None:
    stack = make_stack(one_then_nothing)
    task = asyncio.create_task(stack.chat())
    await stack.engine.until(lambda: bool(stack.engine.submits))
    stack.front.dispatcher.fail_all("decode rank died")
    answer = await asyncio.wait_for(task, 10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_aborts_its_request(is_stream: bool) -> None:
    """H31, second part: nothing of a deserted call keeps running."""
    async with served(one_then_nothing) as stack:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": is_stream,
            "max_tokens": 400,
        }
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
            request = asyncio.create_task(_read_one(client, body))
            await stack.engine.until(lambda: bool(stack.engine.submits))
            request.cancel()
            await asyncio.wait([request])
        await stack.engine.until(lambda: bool(stack.engine.aborts))
        assert stack.engine.aborts == [stack.engine.submits[0].request_id]
        assert stack.front.dispatcher.num_calls == 0
        assert stack.front.metrics.finished == {"abort": 1}
        # The place that it took is free again: the next request lands there.
        await stack.client.get("/health")
        assert stack.registry.place(num_sequences=1).rank == 0


async def _read_one(client: httpx.AsyncClient, body: dict[str, object]) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            await asyncio.Event().wait()


async def test_sixty_four_streams_at_once_each_get_their_own_text() -> None:
    def script(submit: Submit) -> Iterator[Output]:
        return say(submit, bytes(submit.prompt_ids).decode() * 5)

    async with served(script) as stack:
        prompts = [f"stream {i}." for i in range(64)]
        answers = await asyncio.gather(
            *(stack.complete(prompt, stream=True, max_tokens=100) for prompt in prompts)
        )
        for prompt, answer in zip(prompts, answers, strict=True):
            chunks = [json.loads(one) for one in events(answer.text)[:-1]]
            assert "".join(c["choices"][0]["text"] for c in chunks) == prompt * 5
        assert stack.front.dispatcher.num_calls == 0
        assert {submit.reply_to for submit in stack.engine.submits} == {"ipc://edge"}
