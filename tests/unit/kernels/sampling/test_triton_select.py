"""Rows end at the selection unless their list is too short or too long."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels.sampling import DeviceSampled
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton import (
    launch_gather,
    launch_merge,
    launch_scan,
    launch_select,
)
from tests.support.kernels_sampling import TINY, Case

OPTIONS = (
    {"top_k": 5, "top_p": 0.7},  # few candidates
    {"top_k": 30, "top_p": 0.7},  # many
    {"top_k": 30, "min_p": 0.5},
    {"top_p": 0.99, "temperature": 5.0},  # a list too short
    {"min_p": 1e-6},  # too long
)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_with_a_complete_list_are_done(seed: int) -> None:
    case = Case.of(OPTIONS, first_seed=seed)
    logits_BV, batch = case.logits(seed).mul(4).round().div(4), case.on_device()
    out = DeviceSampled.empty(len(OPTIONS), device="cpu")
    launch_scan(logits_BV, batch)
    launch_merge(logits_BV, batch, out)
    launch_gather(logits_BV, batch)
    found = batch.workspace.row_ints_B[:, ws.NUM_FOUND].tolist()
    assert found[0] <= TINY.small < found[1]
    launch_select(logits_BV, batch, out)
    states = batch.workspace.row_ints_B[: len(OPTIONS), ws.STATE].tolist()
    assert states == [ws.DONE] * 3 + [ws.WHOLE_ROW] * 2
    assert out.token_ids_B[:3].tolist() == case.tokens_on_cpu(logits_BV)[:3].tolist()
    assert batch.positions_B[: len(OPTIONS)].tolist() == [5, 6, 7, 7, 8]


def test_the_order_of_the_list_does_not_matter() -> None:
    case = Case.of(OPTIONS[:3])
    tokens = []
    for is_flipped in (False, True):
        batch = case.on_device()
        out = DeviceSampled.empty(3, device="cpu")
        launch_scan(case.logits(), batch)
        launch_merge(case.logits(), batch, out)
        launch_gather(case.logits(), batch)
        work = batch.workspace
        for row, n in enumerate(work.row_ints_B[:3, ws.NUM_FOUND].tolist() if is_flipped else ()):
            work.found_ids_BN[row, :n] = work.found_ids_BN[row, :n].flip(0)
            work.found_x_BN[row, :n] = work.found_x_BN[row, :n].flip(0)
        launch_select(case.logits(), batch, out)
        tokens.append(out.token_ids_B)
    assert torch.equal(*tokens)
