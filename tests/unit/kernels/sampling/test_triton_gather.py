"""Candidates are all tokens that reach the threshold, and no others."""

from __future__ import annotations

import torch

from headrace.kernels.sampling import DeviceSampled
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton import launch_gather, launch_merge, launch_scan
from tests.support.kernels_sampling import TINY, Case


def test_all_that_reach_the_threshold_are_listed() -> None:
    case = Case.of(({"top_k": 9}, {}, {"top_k": 12, "logit_bias": {700: 50.0}}, {"min_p": 1e-6}))
    logits_BV, batch = case.logits(), case.on_device()
    out = DeviceSampled.empty(4, device="cpu")
    launch_scan(logits_BV, batch)
    launch_merge(logits_BV, batch, out)
    launch_gather(logits_BV, batch)
    logits_BV[2, 700] += 50.0
    work = batch.workspace
    numbers = work.row_ints_B[:4, ws.NUM_FOUND].tolist()
    for row in (0, 2):
        threshold = work.row_ints_B[row, ws.CUT_KEY].view(torch.float32)
        expected = (logits_BV[row] >= threshold).nonzero()[:, 0].tolist()
        ids_N = work.found_ids_BN[row, : numbers[row]]
        assert sorted(ids_N.tolist()) == expected
        assert torch.equal(work.found_x_BN[row, : numbers[row]], logits_BV[row, ids_N.long()])
    assert numbers[1] == 0
    assert numbers[3] > TINY.capacity  # counted, and no row but its own was written
    assert not work.found_ids_BN[1].any()
    assert not work.found_ids_BN[4].any()
