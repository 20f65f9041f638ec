"""Which rows end at the merge, and the thresholds of the others."""

from __future__ import annotations

import torch

from headrace.kernels.sampling import DeviceSampled
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.device_batch import DeviceSamplingBatch
from headrace.kernels.sampling.triton import launch_merge, launch_scan
from tests.support.kernels_sampling import Case


def merged(case: Case, logits_BV: torch.Tensor) -> tuple[DeviceSamplingBatch, DeviceSampled]:
    batch = case.on_device()
    out = DeviceSampled.empty(len(case.params), device="cpu")
    launch_scan(logits_BV, batch)
    launch_merge(logits_BV, batch, out)
    return batch, out


def thresholds(batch: DeviceSamplingBatch) -> torch.Tensor:
    keys = batch.workspace.row_ints_B[:, ws.CUT_KEY]
    return torch.where(keys < 0, keys ^ 0x7FFFFFFF, keys).view(torch.float32)


def test_greedy_plain_and_unhealthy_rows_are_done() -> None:
    case = Case.of(({"temperature": 0.0}, {}, {"top_k": 4}, {"min_p": 0.2}))
    logits_BV = case.logits()
    logits_BV[2, 5] = float("nan")
    batch, out = merged(case, logits_BV)
    assert batch.workspace.row_ints_B[:4, ws.STATE].tolist() == [ws.DONE] * 3 + [ws.SELECT]
    assert out.token_ids_B[:3].tolist() == [*case.tokens_on_cpu(logits_BV)[:2].tolist(), 0]
    assert out.ok_B.tolist() == [True, True, False, True]


def test_threshold_of_top_k_is_its_kth_sub_block_maximum() -> None:
    case = Case.of(({"top_k": 1}, {"top_k": 7}, {"top_k": 63}))
    batch, _ = merged(case, case.logits())
    for row, k in enumerate((1, 7, 63)):
        maxima_U = batch.workspace.sub_max_BU[row].sort(descending=True).values
        assert thresholds(batch)[row] == maxima_U[k - 1]


def test_more_than_the_sub_blocks_are_left_to_the_search() -> None:
    case = Case.of(({"top_k": 64},))  # 63 sub-blocks
    batch, _ = merged(case, case.logits())
    assert batch.workspace.row_ints_B[0, ws.STATE] == ws.WHOLE_ROW


def test_threshold_of_min_p_lies_just_under_its_edge() -> None:
    case = Case.of(({"min_p": 0.1, "temperature": 0.7},))
    batch, _ = merged(case, case.logits())
    edge = case.logits().max() + 0.7 * torch.log(torch.tensor(0.1))
    assert edge - 1e-5 < thresholds(batch)[0] <= edge


def test_threshold_of_top_p_covers_its_mass_or_says_that_it_may_not() -> None:
    case = Case.of(({"top_p": 0.3}, {"top_p": 0.95, "temperature": 4.0}))
    batch, _ = merged(case, case.logits())
    for row, temperature in enumerate((1.0, 4.0)):
        assert batch.workspace.row_ints_B[row, ws.MAY_BE_SHORT] == 1
        logits_V = case.logits()[row]
        mass = torch.softmax(logits_V / temperature, dim=0)[logits_V >= thresholds(batch)[row]]
        assert (float(mass.sum()) >= case.params[row].top_p) is (row == 0)
