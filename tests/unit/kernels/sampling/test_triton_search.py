"""The search of whole rows: every filter at once, ties at the edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton import device_sample
from headrace.kernels.sampling.workspace import SamplingKnobs
from tests.support.kernels_sampling import Case

# So small a list that every filtered row is searched.
SEARCHED = SamplingKnobs(chunk=512, sub_block=512, capacity=2, small=1, block=512)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3},
        {"top_k": 77, "top_p": 0.6},
        {"top_p": 0.9},
        {"top_p": 0.5, "min_p": 0.1, "temperature": 3.0},
        {"min_p": 0.01, "temperature": 2.0},
        {"top_k": 50, "repetition_penalty": 1.5, "logit_bias": {600: 9.0}},
    ],
)
def test_searched_rows_draw_what_the_cpu_draws(options: dict[str, Any], steps: int) -> None:
    case = Case.of([options] * 3, vocab_size=700, first_seed=steps)
    logits_BV = case.logits(steps)
    if steps:
        logits_BV = (logits_BV * steps).round() / steps  # equal logits wherever a filter may cut
    batch = case.on_device(knobs=SEARCHED)
    came = device_sample(logits_BV, batch)
    assert came.token_ids_B.tolist() == case.tokens_on_cpu(logits_BV).tolist()
    assert (batch.workspace.row_ints_B[:3, ws.STATE] == ws.WHOLE_ROW).any()


def test_of_equal_logits_the_lowest_ids_stay() -> None:
    case = Case.of([{"top_k": 5}] * 20, vocab_size=600)
    tokens_B = device_sample(torch.zeros(20, 600), case.on_device(knobs=SEARCHED)).token_ids_B
    assert set(tokens_B.tolist()) == {0, 1, 2, 3, 4}
