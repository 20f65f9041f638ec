"""What a chunk tells."""

from __future__ import annotations

import torch

from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton import launch_scan
from tests.support.kernels_sampling import TINY, Case

PLAIN, GREEDY, TOP_P = 0, 1, 2
OPTIONS = ({}, {"temperature": 0.0}, {"top_p": 0.9, "temperature": 0.5})


def test_each_chunk_tells_its_extremes_and_sums() -> None:
    case = Case.of(OPTIONS)
    logits_BV, batch = case.logits(), case.on_device()
    launch_scan(logits_BV, batch)
    floats_BC, ints_BC = batch.workspace.chunk_floats_BC, batch.workspace.chunk_ints_BC
    for chunk, part_BV in enumerate(logits_BV.split(TINY.chunk, dim=1)):
        best_B, place_B = part_BV.max(dim=1)
        assert torch.equal(floats_BC[ws.RAW_MAX, :3, chunk], best_B)
        assert torch.equal(floats_BC[ws.BEST, :3, chunk], best_B)
        ids_B = ints_BC[ws.BEST_ID, :3, chunk]
        assert ids_B.tolist() == (place_B + chunk * TINY.chunk).tolist()
        sums_B = (part_BV - best_B[:, None]).exp().sum(dim=1)
        torch.testing.assert_close(floats_BC[ws.RAW_SUM, :3, chunk], sums_B, rtol=1e-5, atol=0)
        mass = ((part_BV[TOP_P] - best_B[TOP_P]) * 2.0).exp().sum()
        torch.testing.assert_close(floats_BC[ws.MASS, TOP_P, chunk], mass, rtol=1e-5, atol=0)


def test_sub_block_maxima_stand_in_order() -> None:
    case = Case.of(OPTIONS)
    batch = case.on_device()
    launch_scan(case.logits(), batch)
    maxima = [part.max() for part in case.logits()[GREEDY].split(TINY.sub_block)]
    came_U = batch.workspace.sub_max_BU[GREEDY]
    assert torch.equal(came_U[: len(maxima)], torch.stack(maxima))
    assert (came_U[len(maxima) :] == float("-inf")).all()


def test_a_chunk_with_anything_infinite_has_an_infinite_sum() -> None:
    case = Case.of(OPTIONS)
    for value in (float("nan"), float("inf"), float("-inf")):
        logits_BV, batch = case.logits(), case.on_device()
        logits_BV[PLAIN, 999] = value
        launch_scan(logits_BV, batch)
        sums_BC = batch.workspace.chunk_floats_BC[ws.RAW_SUM, :3]
        assert torch.isfinite(sums_BC).tolist() == [[True] * 3 + [False], [True] * 4, [True] * 4]


def test_a_chunk_of_one_token_has_one_finalist_twice() -> None:
    case = Case.of(({},), vocab_size=257)
    batch = case.on_device()
    launch_scan(case.logits(), batch)
    ints_BC = batch.workspace.chunk_ints_BC
    assert ints_BC[ws.FIRST_ID, 0, 1] == ints_BC[ws.SECOND_ID, 0, 1] == 256
