"""A token's experts, best first."""

import pytest
import torch

from headrace.kernels.gate.triton_topk import topk_kernel


def topk(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.full((len(logits), top_k), torch.nan)
    ids = torch.full((len(logits), top_k), -9, dtype=torch.int32)
    topk_kernel[(len(logits),)](
        logits, weights, ids, ids, logits.stride(0), E=logits.shape[1], E_PAD=8, K=top_k,
        RENORMALIZE=True, HAS_PADDING=False, CHAINED=False,
    )  # fmt: skip
    return weights, ids


def test_equal_logits_go_to_the_lower_id() -> None:
    weights, ids = topk(torch.tensor([[0.0, 2.0, 2.0, 2.0, 0.0, 0.0]]), 3)
    assert ids.tolist() == [[1, 2, 3]]
    torch.testing.assert_close(weights, torch.full((1, 3), 1 / 3))


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter computes with NaN
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_ids_stay_in_range_when_logits_are_not_finite(bad: float) -> None:
    _, ids = topk(torch.full((1, 6), bad), 3)
    assert ((ids >= 0) & (ids < 6)).all()
