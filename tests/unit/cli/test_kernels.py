"""``headrace kernels explain`` says what would run, and why nothing better does."""

import pytest
import torch
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.core.errors import ConfigError
from headrace.kernels.families import DEVICE_FAMILIES


def test_every_family_is_named_with_its_choice_and_refusals() -> None:
    result = CliRunner().invoke(app, ["kernels", "explain", "--device", "cpu", "--rows", "1,64"])
    assert result.exit_code == 0, result.output
    assert result.output.count("grouped_experts: reference") == 2
    assert "not decode_triton: needs a CUDA device, this is cpu" in result.output


def test_no_family_is_left_out_of_the_explanation() -> None:
    result = CliRunner().invoke(app, ["kernels", "explain", "--device", "cpu", "--rows", "1"])
    places = [line.strip() for line in result.output.splitlines() if line.endswith(": reference")]
    for family in DEVICE_FAMILIES:
        assert any(family.name in place for place in places), family.name
    narrow = [place for place in places if place.endswith("(narrow_linear): reference")]
    assert [place.split()[0] for place in narrow] == ["qkv_linear", "out_linear", "gate_linear"]
    assert places[-1] == "device_sample: reference"
    assert len(places) == len(set(places)) == len(DEVICE_FAMILIES) + 2


def test_an_unknown_device_is_refused() -> None:
    result = CliRunner().invoke(app, ["kernels", "explain", "--device", "tpu"])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_a_device_that_is_not_there_is_refused() -> None:
    result = CliRunner().invoke(app, ["kernels", "explain", "--device", "cuda"])
    assert "is_available" in str(result.exception)
