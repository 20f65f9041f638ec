"""Messages and prompts become token ids, or are refused by position."""

import threading
from typing import Any

import pytest

from headrace.core.errors import RequestError
from headrace.serving.fleet import Limits
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.config import ServedModel, ServingConfig
from headrace.serving.openai.prompts import (
    chat_prompt,
    completion_prompts,
    plain_message,
    resolve_max_tokens,
    split_prompts,
)
from tests.support.serving_fakes import ByteTokenizer, LineTemplate

CONFIG = ServingConfig()


class ThreadNamingTokenizer(ByteTokenizer):
    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        self.threads.add(threading.get_ident())
        return [1] * add_special_tokens + super().encode(text)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def test_a_chat_is_rendered_with_all_the_template_was_promised() -> None:
    template = LineTemplate()
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = ChatBody(
        model="m",
        messages=[{"role": "developer", "content": "be brief"}, user("hi")],
        tools=tools,
        add_generation_prompt=False,
        chat_template_kwargs={"enable_thinking": False},
    )
    ids = await chat_prompt(body, template, ThreadNamingTokenizer(), config=CONFIG)
    assert bytes(ids) == b"system: be brief\nuser: hi\n"
    assert template.calls[0]["tools"] == tools
    assert template.calls[0]["add_generation_prompt"] is False
    assert template.calls[0]["variables"] == {"enable_thinking": False}


async def test_tools_stay_out_of_the_prompt_when_none_may_be_called() -> None:
    template = LineTemplate()
    body = ChatBody(model="m", messages=[user("hi")], tools=[{}], tool_choice="none")
    await chat_prompt(body, template, ByteTokenizer(), config=CONFIG)
    assert template.calls[0]["tools"] is None


@pytest.mark.parametrize(("size", "is_here"), [(10, True), (11, False)], ids=["short", "long"])
async def test_long_texts_are_tokenized_off_the_event_loop(size: int, is_here: bool) -> None:
    config = ServingConfig(executor_chars=10)
    tokenizer = ThreadNamingTokenizer()
    chat = ChatBody(model="m", messages=[user("a" * size)])
    await chat_prompt(chat, LineTemplate(), tokenizer, config=config)
    text = CompletionBody(model="m", prompt="a" * size)
    await completion_prompts(text, tokenizer, config=config, vocab_size=300)
    assert (tokenizer.threads == {threading.get_ident()}) is is_here


async def test_plain_prompts_get_the_tokenizers_own_specials_and_ids_pass_as_they_are() -> None:
    body = CompletionBody(model="m", prompt=["a", "b"])
    prompts = await completion_prompts(body, ThreadNamingTokenizer(), config=CONFIG, vocab_size=300)
    assert prompts == [[1, 97], [1, 98]]
    body = CompletionBody(model="m", prompt=[[5, 299], [0]])
    assert await completion_prompts(
        body, ThreadNamingTokenizer(), config=CONFIG, vocab_size=300
    ) == [[5, 299], [0]]


@pytest.mark.parametrize("bad", [300, -1], ids=str)
async def test_prompt_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    body = CompletionBody(model="m", prompt=[1, bad])
    with pytest.raises(RequestError, match=f"{bad} is not a token id") as caught:
        await completion_prompts(body, ByteTokenizer(), config=CONFIG, vocab_size=300)
    assert caught.value.param == "prompt"


def test_a_prompt_is_one_kind_of_thing() -> None:
    with pytest.raises(RequestError, match="mixes"):
        split_prompts([1, "a"])
    with pytest.raises(RequestError, match="empty"):
        split_prompts([])


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain_message(user(parts), 0)["content"] == "ab"


def test_the_arguments_of_earlier_calls_reach_the_template_as_objects() -> None:
    calls = [
        {"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "function": {"name": "g", "arguments": "{broken"}},
        {"id": "3", "function": {"name": "h", "arguments": "[1]"}},
    ]
    plain = plain_message({"role": "assistant", "content": None, "tool_calls": calls}, 0)
    arguments = [call["function"]["arguments"] for call in plain["tool_calls"]]
    assert arguments == [{"x": 1}, "{broken", "[1]"]
    assert calls[0]["function"]["arguments"] == '{"x": 1}'  # type: ignore[index]


BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "robot", "content": "a"}, "messages[3].role"),
    ({"content": "a"}, "messages[3].role"),
    ({"role": "user"}, "messages[3].content"),
    ({"role": "user", "content": 3}, "messages[3].content"),
    ({"role": "user", "content": [{"type": "image_url"}]}, "messages[3].content[0].type"),
    ({"role": "user", "content": ["a"]}, "messages[3].content[0].type"),
    ({"role": "assistant", "tool_calls": "f"}, "messages[3].tool_calls"),
    ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[3].tool_calls"),
]


@pytest.mark.parametrize(
    ("message", "param"), BAD_MESSAGES, ids=[f"case{i}" for i in range(len(BAD_MESSAGES))]
)
def test_a_bad_message_is_refused_by_position(message: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        plain_message(message, 3)
    assert caught.value.param == param


def test_an_assistant_may_have_said_nothing() -> None:
    assert plain_message({"role": "assistant", "content": None}, 0)["content"] == ""


def resolve(
    body: ChatBody | CompletionBody, tokens: int, *, context: int = 100, prompt: int = 0
) -> int:
    return resolve_max_tokens(
        body,
        tokens,
        model=ServedModel(name="m", vocab_size=9, max_model_tokens=1000),
        limits=Limits(max_request_tokens=context, max_prompt_tokens=prompt),
        config=CONFIG,
    )


def test_without_a_limit_chat_fills_the_context_and_completions_give_sixteen() -> None:
    chat, text = ChatBody(model="m", messages=[]), CompletionBody(model="m", prompt="a")
    assert resolve(chat, 30) == 70
    assert (resolve(text, 30), resolve(text, 95)) == (16, 5)
    assert resolve(chat, 30, context=0) == 970


@pytest.mark.parametrize("tokens", [100, 5000], ids=str)
def test_a_prompt_without_room_for_one_token_is_refused(tokens: int) -> None:
    with pytest.raises(RequestError, match=f"{tokens} tokens: the longest .* is 99") as caught:
        resolve(ChatBody(model="m", messages=[]), tokens)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert resolve(ChatBody(model="m", messages=[]), 99) == 1


def test_a_prompt_too_long_for_the_prefiller_alone_is_refused_too() -> None:
    body = CompletionBody(model="m", prompt="a")
    with pytest.raises(RequestError, match="the longest .* is 40") as caught:
        resolve(body, 41, prompt=40)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert resolve(body, 40, prompt=40) == 16


def test_output_that_cannot_fit_is_refused_with_what_would() -> None:
    body = ChatBody(model="m", messages=[], max_completion_tokens=71)
    with pytest.raises(RequestError, match="ask for at most 70") as caught:
        resolve(body, 30)
    assert caught.value.param == "max_completion_tokens"
    assert resolve(ChatBody(model="m", messages=[], max_tokens=70), 30) == 70


def test_no_tokens_at_all_is_no_prompt() -> None:
    with pytest.raises(RequestError, match="at least one token"):
        resolve(CompletionBody(model="m", prompt=""), 0)
