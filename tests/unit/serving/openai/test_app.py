"""The API as its clients see it, the official one among them."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from headrace.core.messages import Output, Outputs, Submit
from headrace.core.requests import FinishReason
from tests.support.serving_fakes import (
    CONTEXT_TOKENS,
    MAX_SEQUENCES,
    MODEL,
    VOCAB_SIZE,
    ManualClock,
    Stack,
    beat_all,
    events,
    make_stack,
    one_then_nothing,
    ready,
    say,
    served,
    topology,
)

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="key", max_retries=0)


# -- the official client ------------------------------------------------------------------------


async def test_the_official_client_chats_and_lists_models() -> None:
    async with served(api_keys=("key",)) as stack, client_of(stack) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello!"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "headrace"


async def test_the_official_client_streams() -> None:
    async with served() as stack, client_of(stack) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=5,
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        text = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(text) == "Hello!"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        logprobs = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
        assert [one.content[0].token for one in logprobs if one.content] == list("Hello!")


async def test_the_official_client_completes() -> None:
    async with served() as stack, client_of(stack) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=["a", "b"], n=2, echo=True, max_tokens=3
        )
        assert [choice.text for choice in answer.choices] == ["aHel", "aHel", "bHel", "bHel"]
        assert {choice.finish_reason for choice in answer.choices} == {"length"}
        stream = await client.completions.create(model=MODEL, prompt=[104, 105], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello!"


async def test_the_official_client_raises_its_own_errors() -> None:
    async with served() as stack, client_of(stack) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="other", messages=MESSAGES)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, top_p=2.0)
        assert bad.value.param == "top_p"


async def test_an_error_inside_a_stream_reaches_the_official_client() -> None:
    def script(submit: Submit) -> Iterator[Output]:
        yield from one_then_nothing(submit)
        yield Output(
            request_id=submit.request_id,
            choice=0,
            token_ids=[],
            finish_reason=FinishReason.ERROR,
            error="rank 1 is lost",
        )

    async with served(script) as stack, client_of(stack) as client:
        stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="rank 1 is lost"):
            _ = [chunk async for chunk in stream]


# -- promises named by their cases --------------------------------------------------------------


async def test_two_concurrent_calls_of_one_request_id_both_answer() -> None:
    """H9."""
    async with served() as stack:
        headers = {"X-Request-Id": "same"}
        body = {"model": MODEL, "messages": MESSAGES}
        answers = await asyncio.gather(
            *(
                stack.client.post("/v1/chat/completions", json=body, headers=headers)
                for _ in range(2)
            )
        )
        texts = [one.json()["choices"][0]["message"]["content"] for one in answers]
        assert texts == ["Hello!", "Hello!"]
        assert [one.headers["x-request-id"] for one in answers] == ["same", "same"]
        inside = [submit.request_id for submit in stack.engine.submits]
        assert len(set(inside)) == 2
        assert not any("same" in name for name in inside)
        assert (await stack.client.get("/health")).status_code == 200


async def test_alternatives_carry_raw_bytes_and_are_never_empty() -> None:
    """H26."""
    answer = await make_stack().chat(logprobs=True, top_logprobs=5)
    for entry in answer.json()["choices"][0]["logprobs"]["content"]:
        assert entry["bytes"] == list(entry["token"].encode())
        top = entry["top_logprobs"]
        assert [one["bytes"] for one in top] == [entry["bytes"], [0xF0], [0x9F], [0], [0xC3]]
        assert all(one["token"] for one in top)


OUTSIDE: list[tuple[str, Any]] = [
    ("stop_token_ids", [VOCAB_SIZE + 5]),
    ("logit_bias", {str(VOCAB_SIZE + 5): 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"x": 1}),
]


@pytest.mark.parametrize(
    ("name", "value"), OUTSIDE, ids=[f"{name}-{i}" for i, (name, _) in enumerate(OUTSIDE)]
)
async def test_ids_outside_the_vocabulary_are_refused_and_disturb_no_one(
    name: str, value: Any
) -> None:
    """H30."""
    gate = asyncio.Event()
    stack = make_stack(lambda submit: say(submit, "undisturbed"))
    stack.engine.deliver, deliver = lambda _: None, stack.engine.deliver

    async def play() -> None:
        await gate.wait()
        for output in say(stack.engine.submits[0], "undisturbed"):
            deliver(Outputs(rank=0, outputs=[output]))

    other = asyncio.create_task(stack.chat(stream=True))
    await stack.engine.until(lambda: bool(stack.engine.submits))
    player = asyncio.create_task(play())
    answer = await stack.chat(**{name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert len(stack.engine.submits) == 1
    gate.set()
    await player
    chunks = [json.loads(one) for one in events((await other).text)[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "undisturbed"


# -- refusals -----------------------------------------------------------------------------------


async def test_a_bad_request_costs_nothing() -> None:
    stack = make_stack()
    answers = [
        await stack.client.post("/v1/chat/completions", content=b"{"),
        await stack.client.post("/v1/completions", content=b"[]"),
        await stack.chat(temprature=1),
        await stack.chat(messages=[]),
        await stack.chat(n=200),
        await stack.chat("refuse me"),
        await stack.complete([]),
        await stack.complete([[1], []]),
        await stack.complete(["a"] * 200),
        await stack.complete("a", echo=True, logprobs=1),
    ]
    assert [answer.status_code for answer in answers] == [400] * len(answers)
    for answer in answers:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
    assert stack.engine.submits == []
    assert stack.front.dispatcher.num_calls == 0


async def test_a_prompt_over_the_limit_is_refused_before_it_is_sent() -> None:
    stack = make_stack()
    answer = await stack.complete("a" * CONTEXT_TOKENS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    assert (await stack.complete("a" * (CONTEXT_TOKENS - 1))).status_code == 200
    stack.registry.on_message(ready("prefill0", 0, max_tokens=40))
    assert (await stack.complete("a" * 41)).status_code == 400
    assert len(stack.engine.submits) == 1


@pytest.mark.parametrize("size", [10, 1000], ids=["short", "long"])
async def test_long_bodies_are_tokenized_off_the_event_loop(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, threads = make_stack(executor_bytes=500), set()
    encode = stack.front.tokenizer.encode

    def noting(text: str, **options: Any) -> list[int]:
        threads.add(threading.get_ident())
        return encode(text[:10], **options)

    monkeypatch.setattr(stack.front.tokenizer, "encode", noting)
    monkeypatch.setattr(stack.front.tokenizer, "fewest_tokens", lambda _: 0)
    for asked in (stack.chat("a" * size), stack.complete("a" * size)):
        assert (await asked).status_code == 200
    assert (threading.get_ident() in threads) is (size == 10)


@pytest.mark.parametrize("limit", [0, 8], ids=["context", "prefiller"])
async def test_what_cannot_fit_by_its_bytes_is_refused_without_tokenizing(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack()
    if limit:
        stack.registry.on_message(ready("prefill0", 0, max_tokens=limit))
    monkeypatch.setattr(stack.front.tokenizer, "encode", lambda *_, **__: pytest.fail("tokenized"))
    for asked in (stack.chat("a" * 512), stack.complete("a" * 512)):
        answer = await asked
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "bytes, which are at least" in answer.json()["error"]["message"]
    assert stack.engine.submits == []


async def test_a_body_over_the_limit_is_refused() -> None:
    stack = make_stack(max_body_mib=1)
    answer = await stack.complete("a" * (1 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


async def test_an_unknown_model_is_not_found() -> None:
    stack = make_stack()
    answers = [
        await stack.client.get("/v1/models/other"),
        await stack.chat(model="other"),
        await stack.complete(model="other"),
    ]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            404,
            "model_not_found",
            "model",
        )


async def test_unknown_urls_and_methods_have_the_same_shape() -> None:
    stack = make_stack()
    lost = await stack.client.get("/v2/chat")
    assert (lost.status_code, lost.json()["error"]["message"]) == (404, "unknown URL: GET /v2/chat")
    assert (await stack.client.get("/v1/chat/completions")).status_code == 405


async def test_a_fault_of_ours_is_a_plain_500_and_the_server_goes_on() -> None:
    def crash(submit: Submit) -> Iterator[Output]:
        raise ZeroDivisionError

    stack = make_stack()
    send = stack.engine.send
    stack.engine.send = lambda *_: crash(None)  # type: ignore[method-assign,assignment,arg-type]
    answer = await stack.chat()
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "internal error")
    stack.engine.send = send  # type: ignore[method-assign]
    assert (await stack.chat()).status_code == 200


# -- what reaches the engine --------------------------------------------------------------------


async def test_parameters_and_prompt_reach_the_engine() -> None:
    stack = make_stack()
    await stack.chat("hi", max_completion_tokens=3, seed=5, n=2, stop=["X"], ignore_eos=True)
    (submit,) = stack.engine.submits
    assert bytes(submit.prompt_ids) == b"user: hi\n"
    assert (submit.params.max_tokens, submit.params.seed, submit.num_choices) == (3, 5, 2)
    assert (submit.params.stop, submit.params.ignore_eos) == (("X",), True)
    assert submit.prefill_replica == "prefill0"


async def test_a_request_without_a_seed_gets_one_of_its_own() -> None:
    stack = make_stack()
    for _ in range(2):
        await stack.chat()
    first, second = (submit.params.seed for submit in stack.engine.submits)
    assert first != second


async def test_extensions_come_back_with_each_choice() -> None:
    stack = make_stack(lambda submit: say(submit, "ab", transferred_tokens=4))
    choice = (await stack.chat(return_ledger=True, return_token_ids=True)).json()["choices"][0]
    assert choice["token_ids"] == [97, 98]
    assert choice["ledger"]["transferred_tokens"] == 4


async def test_cached_and_reasoning_tokens_are_in_the_usage() -> None:
    stack = make_stack(lambda submit: say(submit, "ab", cached_tokens=4, reasoning_tokens=1))
    usage = (await stack.chat()).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 1}


# -- state --------------------------------------------------------------------------------------


async def test_health_is_life_and_ready_is_progress() -> None:
    clock = ManualClock()
    stack = make_stack(clock=clock)
    assert (await stack.client.get("/ready")).json() == {"status": "ready"}
    clock.time_s += 4
    answer = await stack.client.get("/ready")
    assert answer.status_code == 503
    assert "prefill0.1 has been silent for 4.0 s" in answer.json()["error"]["message"]
    assert (await stack.client.get("/health")).status_code == 200
    beat_all(stack.registry, topology())
    assert (await stack.client.get("/ready")).status_code == 200


async def test_an_overloaded_server_says_when_to_come_back() -> None:
    stack = make_stack(one_then_nothing, max_requests=1)
    first = asyncio.create_task(stack.chat())
    await stack.engine.until(lambda: bool(stack.engine.submits))
    answer: httpx.Response = await stack.chat()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    stack.front.dispatcher.fail_all("done")
    assert (await first).status_code == 503


async def test_more_choices_than_a_decode_rank_holds_are_refused_at_the_edge() -> None:
    stack = make_stack()
    refused = await stack.chat(n=MAX_SEQUENCES + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n"
    assert (await stack.chat(n=MAX_SEQUENCES)).status_code == 200


async def test_every_refused_request_has_a_code() -> None:
    stack = make_stack()
    for refused in (await stack.chat(messages=[]), await stack.complete([])):
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "invalid_value"
