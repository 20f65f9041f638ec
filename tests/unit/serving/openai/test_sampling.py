"""Every value is checked at the edge; what is left out comes from the checkpoint."""

from typing import Any

import pytest

from headrace.core.errors import RequestError
from headrace.core.requests import SamplingParams
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.config import SamplingDefaults, ServedModel
from headrace.serving.openai.sampling import asked_max_tokens, num_choices, sampling_params

MODEL = ServedModel(
    name="m",
    vocab_size=100,
    defaults=SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
)


def chat(**fields: Any) -> ChatBody:
    return ChatBody(model="m", messages=[], **fields)


def sample(body: ChatBody | CompletionBody) -> SamplingParams:
    return sampling_params(body, MODEL, max_tokens=5, fallback_seed=11)


def test_what_is_left_out_comes_from_the_checkpoint() -> None:
    assert sample(chat()) == SamplingParams(
        max_tokens=5, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, seed=11
    )


def test_what_is_sent_is_taken() -> None:
    params = sample(
        chat(
            temperature=0.0,
            top_p=0.5,
            top_k=-1,
            min_p=0.1,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            repetition_penalty=1.0,
            logit_bias={"7": -100, "99": 3.5},
            seed=-1,
            stop="END",
            include_stop_str_in_output=True,
            stop_token_ids=[0, 99],
            ignore_eos=True,
            logprobs=True,
            top_logprobs=20,
        )
    )
    assert params == SamplingParams(
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.0,
        logit_bias={7: -100.0, 99: 3.5},
        seed=(1 << 63) - 1,
        stop=("END",),
        include_stop=True,
        stop_token_ids=(0, 99),
        ignore_eos=True,
        logprobs=True,
        top_logprobs=20,
    )


def test_a_temperature_next_to_zero_is_greedy() -> None:
    assert sample(chat(temperature=1e-9)).temperature == 0.0


def test_a_top_k_beyond_the_vocabulary_keeps_all_of_it() -> None:
    assert sample(chat(top_k=10**12)).top_k == 100


BAD: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("top_p", 0.0),
    ("top_p", 1.5),
    ("min_p", -0.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3.0),
    ("repetition_penalty", 0.0),
    ("top_k", -2),
    ("seed", 1 << 63),
    ("stop", ["a"] * 17),
    ("stop", ["a", ""]),
    ("stop_token_ids", [100]),
    ("stop_token_ids", [-1]),
    ("logit_bias", {"100": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"": 1}),
    ("logit_bias", {"1" * 5000: 1}),
    ("logit_bias", {"\u0661": 1}),
    ("logit_bias", {"1": 101}),
    ("top_logprobs", 3),
    ("top_logprobs", 21),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        sample(chat(**{name: value}))
    assert (caught.value.status, caught.value.param) == (400, name)


def test_completions_ask_for_logprobs_by_number() -> None:
    body = CompletionBody(model="m", prompt="a", logprobs=0)
    assert (sample(body).logprobs, sample(body).top_logprobs) == (True, 0)
    assert sample(CompletionBody(model="m", prompt="a")).logprobs is False
    with pytest.raises(RequestError, match="logprobs=21"):
        sample(CompletionBody(model="m", prompt="a", logprobs=21))


def test_the_number_of_choices_is_bounded() -> None:
    assert num_choices(chat(), limit=4) == 1
    assert num_choices(chat(n=4), limit=4) == 4
    for n in (0, 5):
        with pytest.raises(RequestError, match="expected 1 to 4"):
            num_choices(chat(n=n), limit=4)


def test_either_name_of_the_output_limit_is_taken_but_not_two_values() -> None:
    assert asked_max_tokens(chat()) == ("max_tokens", None)
    assert asked_max_tokens(chat(max_tokens=3)) == ("max_tokens", 3)
    assert asked_max_tokens(chat(max_completion_tokens=4, max_tokens=4))[1] == 4
    with pytest.raises(RequestError, match="disagree"):
        asked_max_tokens(chat(max_completion_tokens=4, max_tokens=3))
    with pytest.raises(RequestError, match="max_completion_tokens=0"):
        asked_max_tokens(chat(max_completion_tokens=0))
