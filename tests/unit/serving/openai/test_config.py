"""What the operator sets is checked once, and the checkpoint's sampling values are read."""

import pytest

from headrace.core.errors import CheckpointError, ConfigError
from headrace.serving.openai.config import SamplingDefaults, ServingConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 70000}, "port=70000"),
        ({"api_keys": ("a", "")}, "an empty key would let everybody in"),
        ({"max_requests": 0}, "max_requests=0"),
        ({"max_body_mib": 0}, "max_body_mib=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"deadline_s": 0.0}, "deadline_s=0.0"),
        ({"shutdown_s": float("nan")}, "shutdown_s=nan"),
    ],
    ids=["port", "key", "requests", "body", "retries", "deadline", "shutdown"],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServingConfig(**values)  # type: ignore[arg-type]


def test_the_checkpoint_decides_what_a_request_leaves_out() -> None:
    released = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "eos_token_id": [151645, 151643],
    }
    defaults = SamplingDefaults.from_generation_config(released)
    assert defaults == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)


def test_a_greedy_checkpoint_is_sampled_greedily() -> None:
    assert SamplingDefaults.from_generation_config({"do_sample": False}).temperature == 0.0
    assert SamplingDefaults.from_generation_config({}) == SamplingDefaults()


@pytest.mark.parametrize("value", ["0.6", True, [1]], ids=str)
def test_a_sampling_value_that_is_no_number_is_named(value: object) -> None:
    with pytest.raises(CheckpointError, match="temperature"):
        SamplingDefaults.from_generation_config({"temperature": value})


@pytest.mark.parametrize(
    "data",
    [{"temperature": -3}, {"top_p": 7}, {"top_p": 0}, {"min_p": -0.5}, {"repetition_penalty": 0}],
)
def test_defaults_that_no_request_could_ask_for_are_refused(data: dict[str, float]) -> None:
    with pytest.raises(CheckpointError, match=f"{next(iter(data))}.* cannot be"):
        SamplingDefaults.from_generation_config(data)
