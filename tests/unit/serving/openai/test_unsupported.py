"""What cannot be honoured is refused, never ignored."""

from typing import Any

import pytest

from headrace.core.errors import RequestError
from headrace.serving.openai.bodies import ChatBody, CompletionBody, ResponseFormat, StreamOptions
from headrace.serving.openai.unsupported import refuse_unsupported

CHAT: list[tuple[str, Any]] = [
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("response_format", ResponseFormat(type="json_object")),
    ("modalities", ["text", "audio"]),
    ("stream_options", StreamOptions(include_usage=True)),
]
TEXT: list[tuple[str, Any]] = [("best_of", 2), ("suffix", "x")]


@pytest.mark.parametrize(("name", "value"), CHAT, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CHAT)])
def test_chat_fields_without_effect_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        refuse_unsupported(ChatBody(model="m", messages=[], **{name: value}))
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize(("name", "value"), TEXT, ids=[name for name, _ in TEXT])
def test_completion_fields_without_effect_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        refuse_unsupported(CompletionBody(model="m", prompt="a", **{name: value}))
    assert caught.value.param == name


def test_echo_with_logprobs_is_a_clear_refusal() -> None:
    with pytest.raises(RequestError, match="echo") as caught:
        refuse_unsupported(CompletionBody(model="m", prompt="a", echo=True, logprobs=1))
    assert (caught.value.status, caught.value.param) == (400, "logprobs")


def test_values_that_ask_for_nothing_special_pass() -> None:
    refuse_unsupported(
        ChatBody(
            model="m",
            messages=[],
            tool_choice="auto",
            response_format=ResponseFormat(type="text"),
            modalities=["text"],
            stream=True,
            stream_options=StreamOptions(),
        )
    )
    refuse_unsupported(CompletionBody(model="m", prompt="a", n=2, best_of=2, suffix=""))
