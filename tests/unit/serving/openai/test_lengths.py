"""A prompt fits, or is refused with what would; at once when its bytes alone are too many."""

import pytest

from headrace.core.errors import RequestError
from headrace.serving.fleet import Limits
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.config import ServedModel, ServingConfig
from headrace.serving.openai.lengths import check_text, longest_prompt, resolve_max_tokens
from tests.support.text_tokenizers import byte_tokenizer

CONFIG = ServingConfig()


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


@pytest.mark.parametrize(
    ("context", "prompt", "config", "longest"),
    [(100, 0, 0, 99), (100, 40, 0, 40), (100, 40, 30, 30), (0, 0, 0, 999), (5000, 0, 0, 999)],
)
def test_the_longest_prompt_is_what_every_limit_allows(
    context: int, prompt: int, config: int, longest: int
) -> None:
    assert longest == longest_prompt(
        ServedModel(name="m", vocab_size=9, max_model_tokens=1000),
        Limits(max_request_tokens=context, max_prompt_tokens=prompt),
        ServingConfig(max_prompt_tokens=config),
    )


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f469", "\ud800"], ids=ascii)
def test_only_a_text_that_cannot_fit_is_refused_by_its_bytes(letter: str) -> None:
    # The longest token of this tokenizer is <|endoftext|>, 13 bytes.
    tokenizer = byte_tokenizer()
    num_bytes = len(letter.encode(errors="replace"))
    fitting = letter * (13 * 10 // num_bytes)
    check_text(fitting, tokenizer, longest=10, param="prompt")
    with pytest.raises(RequestError, match="at least 11 tokens: the longest .* is 10") as caught:
        check_text(fitting + letter, tokenizer, longest=10, param="prompt")
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    check_text(fitting * 99, tokenizer, longest=0, param="prompt")
