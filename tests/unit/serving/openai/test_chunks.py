"""Events are valid JSON in OpenAI's shape, whatever the text holds."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.messages import Output, TokenLogprob
from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.chunks import ChunkWriter, event
from headrace.serving.openai.options import AnswerOptions
from headrace.serving.openai.usage import Usage
from tests.support.serving_fakes import ByteTokenizer, events


def options(**fields: Any) -> AnswerOptions:
    base = {"is_chat": True, "answer_id": "id-1", "created_s": 5, "model": 'm"', "prompt_tokens": 3}
    return AnswerOptions(**{**base, **fields})


def output(
    text: str = "", *, choice: int = 0, ids: list[int] | None = None, **fields: Any
) -> Output:
    return Output(
        request_id="r", choice=choice, token_ids=[65] if ids is None else ids, text=text, **fields
    )


def parse(data: bytes) -> list[Any]:
    return [json.loads(block) for block in events(data.decode())]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_out_as_it_went_in(text: str) -> None:
    for is_chat in (True, False):
        writer = ChunkWriter(options(is_chat=is_chat), ByteTokenizer())
        *_, chunk = parse(writer.write(0, output(text)))
        choice = chunk["choices"][0]
        assert (choice["delta"]["content"] if is_chat else choice["text"]) == text
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("id-1", 5, 'm"')


def test_a_choice_of_a_chat_opens_with_the_role_once_and_closes_with_the_reason() -> None:
    writer = ChunkWriter(options(), ByteTokenizer())
    first, second = parse(writer.write(1, output("a")))
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {
            "index": 1,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert second["choices"][0]["delta"] == {"content": "a"}
    text, end = parse(writer.write(1, output("b", finish_reason=FinishReason.LENGTH)))
    assert text["choices"][0]["finish_reason"] is None
    assert end["choices"] == [
        {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "length"}
    ]
    assert "usage" not in end


def test_a_token_without_visible_text_makes_no_event() -> None:
    writer = ChunkWriter(options(), ByteTokenizer())
    writer.write(0, output("a"))
    assert writer.write(0, output("")) == b""


def test_echo_comes_before_the_first_output_of_each_choice() -> None:
    writer = ChunkWriter(options(is_chat=False, echo=["one", "two"]), ByteTokenizer())
    chunks = parse(writer.write(1, output("a")) + writer.write(0, output("b")))
    pairs = [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks]
    assert pairs == [(1, "two"), (1, "a"), (0, "one"), (0, "b")]
    assert {c["object"] for c in chunks} == {"text_completion"}


def test_the_usage_event_has_no_choices_and_the_others_null_usage() -> None:
    writer = ChunkWriter(options(include_usage=True), ByteTokenizer())
    chunks = parse(writer.write(0, output("a", finish_reason=FinishReason.STOP)))
    assert all(chunk["usage"] is None for chunk in chunks)
    (last,) = parse(writer.usage(Usage(3, choices_per_prompt=1)))
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 3
    assert last.keys() == chunks[0].keys()


def test_logprobs_come_with_their_tokens_even_when_the_text_is_held_back() -> None:
    writer = ChunkWriter(options(has_logprobs=True, return_token_ids=True), ByteTokenizer())
    held = output("", ids=[0xF0], logprobs=[TokenLogprob(0xF0, -1.0, [])])
    _, chunk = parse(writer.write(0, held))
    choice = chunk["choices"][0]
    assert choice["delta"] == {"content": ""}
    assert choice["token_ids"] == [0xF0]
    assert choice["logprobs"]["content"][0]["bytes"] == [0xF0]


def test_text_offsets_run_on_over_the_events_of_a_choice() -> None:
    writer = ChunkWriter(options(is_chat=False, has_logprobs=True), ByteTokenizer())
    offsets = []
    for letter in "abc":
        logprobs = [TokenLogprob(ord(letter), -1.0, [])]
        (chunk,) = parse(writer.write(0, output(letter, logprobs=logprobs)))
        offsets += chunk["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 1, 2]


def test_the_ledger_comes_with_the_end_when_asked_for() -> None:
    writer = ChunkWriter(options(return_ledger=True), ByteTokenizer())
    ledger = Ledger(transferred_tokens=7)
    *_, end = parse(writer.write(0, output("a", finish_reason=FinishReason.STOP, ledger=ledger)))
    assert end["choices"][0]["ledger"]["transferred_tokens"] == 7


def test_an_event_is_one_line() -> None:
    assert event({"a": "b\nc"}) == b'data: {"a":"b\\nc"}\n\n'
