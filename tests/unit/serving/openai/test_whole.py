"""Outputs gathered into one object per choice."""

from typing import Any

from headrace.core.messages import Output, TokenLogprob
from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.options import AnswerOptions
from headrace.serving.openai.usage import Usage
from headrace.serving.openai.whole import WholeAnswer
from tests.support.serving_fakes import ByteTokenizer


def gather(**fields: Any) -> dict[str, Any]:
    base = {"is_chat": True, "answer_id": "id", "created_s": 5, "model": "m", "prompt_tokens": 3}
    answer = WholeAnswer(AnswerOptions(**{**base, **fields}), ByteTokenizer())
    for index in (1, 0):
        for letter, reason in (("a", None), ("b", FinishReason.STOP)):
            answer.add(
                index,
                Output(
                    request_id="r",
                    choice=index,
                    token_ids=[ord(letter)],
                    text=letter * (index + 1),
                    logprobs=[TokenLogprob(ord(letter), -1.0, [])],
                    finish_reason=reason,
                    ledger=Ledger(output_tokens=2) if reason else None,
                ),
            )
    return answer.body(Usage(3, choices_per_prompt=2))


def test_a_chat_answer_has_its_choices_in_order() -> None:
    body = gather()
    assert (body["object"], body["id"], body["created"]) == ("chat.completion", "id", 5)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][1] == {
        "index": 1,
        "message": {"role": "assistant", "content": "aabb", "refusal": None},
        "logprobs": None,
        "finish_reason": FinishReason.STOP,
    }
    assert body["usage"]["prompt_tokens"] == 3


def test_a_text_answer_begins_with_the_echo() -> None:
    body = gather(is_chat=False, echo=["X", "Y"])
    assert body["object"] == "text_completion"
    assert [choice["text"] for choice in body["choices"]] == ["Xab", "Yaabb"]


def test_extensions_are_there_when_asked_for() -> None:
    choice = gather(return_token_ids=True, return_ledger=True, has_logprobs=True)["choices"][0]
    assert choice["token_ids"] == [97, 98]
    assert choice["ledger"].output_tokens == 2
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a", "b"]
    text = gather(is_chat=False, has_logprobs=True)["choices"][0]
    assert text["logprobs"]["tokens"] == ["a", "b"]
