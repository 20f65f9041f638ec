"""Messages and prompts become token ids, or are refused by position."""

import threading
from typing import Any

import pytest

from headrace.core.errors import RequestError
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.prompts import (
    chat_prompt,
    completion_prompts,
    plain_message,
    split_prompts,
)
from tests.support.serving_fakes import ByteTokenizer, LineTemplate


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
    ids = await chat_prompt(body, template, ThreadNamingTokenizer())
    assert bytes(ids) == b"system: be brief\nuser: hi\n"
    assert template.calls[0]["tools"] == tools
    assert template.calls[0]["add_generation_prompt"] is False
    assert template.calls[0]["variables"] == {"enable_thinking": False}


async def test_tools_stay_out_of_the_prompt_when_none_may_be_called() -> None:
    template = LineTemplate()
    body = ChatBody(model="m", messages=[user("hi")], tools=[{}], tool_choice="none")
    await chat_prompt(body, template, ByteTokenizer())
    assert template.calls[0]["tools"] is None


@pytest.mark.parametrize("in_thread", [False, True])
async def test_long_texts_are_tokenized_off_the_event_loop(in_thread: bool) -> None:
    tokenizer = ThreadNamingTokenizer()
    chat = ChatBody(model="m", messages=[user("a")])
    await chat_prompt(chat, LineTemplate(), tokenizer, in_thread=in_thread)
    text = CompletionBody(model="m", prompt="a")
    await completion_prompts(text, tokenizer, vocab_size=300, in_thread=in_thread)
    assert (threading.get_ident() in tokenizer.threads) is not in_thread


async def test_what_cannot_fit_is_refused_without_tokenizing() -> None:
    tokenizer = ThreadNamingTokenizer()
    chat = ChatBody(model="m", messages=[user("a" * 20)])
    with pytest.raises(RequestError, match="27 bytes, which are at least 27 tokens.* is 26"):
        await chat_prompt(chat, LineTemplate(), tokenizer, longest=26)
    text = CompletionBody(model="m", prompt=["a", "b" * 27])
    with pytest.raises(RequestError, match="27 bytes") as caught:
        await completion_prompts(text, tokenizer, vocab_size=300, longest=26)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert await chat_prompt(chat, LineTemplate(), tokenizer, longest=27)


async def test_plain_prompts_get_the_tokenizers_own_specials_and_ids_pass_as_they_are() -> None:
    body = CompletionBody(model="m", prompt=["a", "b"])
    prompts = await completion_prompts(body, ThreadNamingTokenizer(), vocab_size=300)
    assert prompts == [[1, 97], [1, 98]]
    body = CompletionBody(model="m", prompt=[[5, 299], [0]])
    assert await completion_prompts(body, ThreadNamingTokenizer(), vocab_size=300) == [
        [5, 299],
        [0],
    ]


@pytest.mark.parametrize("bad", [300, -1], ids=str)
async def test_prompt_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    body = CompletionBody(model="m", prompt=[1, bad])
    with pytest.raises(RequestError, match=f"{bad} is not a token id") as caught:
        await completion_prompts(body, ByteTokenizer(), vocab_size=300)
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
