import pytest
import torch

from headrace.kernels.gate import gate_topk
from tests.support.kernels_checks import DTYPES, assert_bits_equal, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("renormalize", [True, False])
def test_the_highest_scores_are_chosen(dtype: torch.dtype, renormalize: bool) -> None:
    logits = random(50, 16, dtype=dtype)
    weights, ids = gate_topk(logits, top_k=4, renormalize=renormalize)
    scores = torch.softmax(logits.double(), dim=-1)
    best = scores.topk(4, dim=-1).values
    expected = best / best.sum(-1, keepdim=True) if renormalize else best
    assert weights.dtype == dtype
    torch.testing.assert_close(scores.gather(1, ids), best)
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(weights.double(), expected, rtol=tolerance, atol=0)


def test_ties_go_to_the_lower_expert() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    _, ids = gate_topk(logits, top_k=2, renormalize=True)
    assert ids.tolist() == [[1, 2], [0, 1]]


def test_many_tied_logits_are_still_ordered() -> None:
    logits = torch.zeros(3, 128, dtype=torch.bfloat16)
    logits[:, ::2] = 1.0
    _, ids = gate_topk(logits, top_k=8, renormalize=True)
    assert ids.tolist() == [list(range(0, 16, 2))] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    logits = random(77, 60, dtype=dtype)
    weights, ids = gate_topk(logits, top_k=6, renormalize=True)
    for start, stop in [(0, 1), (5, 9), (40, 77)]:
        part_weights, part_ids = gate_topk(logits[start:stop], top_k=6, renormalize=True)
        assert_bits_equal(part_weights, weights[start:stop])
        assert torch.equal(part_ids, ids[start:stop])


def test_all_experts_and_no_rows_are_allowed() -> None:
    weights, ids = gate_topk(random(2, 4), top_k=4, renormalize=False)
    assert ids.sort(dim=1).values.tolist() == [[0, 1, 2, 3]] * 2
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    assert gate_topk(torch.zeros(0, 4), top_k=2, renormalize=True)[1].shape == (0, 2)
