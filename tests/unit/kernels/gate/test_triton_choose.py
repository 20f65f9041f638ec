"""Places and weights of experts, by one integer key each."""

import pytest
import torch
import triton
import triton.language as tl

from headrace.kernels.gate.triton_choose import choose_experts


@triton.jit
def _choose(logits_ptr, places_ptr, weights_ptr, E: tl.constexpr, K: tl.constexpr):
    experts = tl.arange(0, 8)
    logits = tl.load(logits_ptr + experts)
    is_short: tl.constexpr = logits.dtype == tl.bfloat16
    places, weights = choose_experts(logits.to(tl.float32)[None, :], experts, E, K, True, is_short)
    tl.store(places_ptr + experts[None, :], places)
    tl.store(weights_ptr + experts[None, :], weights)


def choose(logits: list[float], dtype: torch.dtype, *, num_experts: int = 8) -> list[int]:
    places, weights = torch.zeros(8, dtype=torch.int32), torch.zeros(8)
    _choose[(1,)](torch.tensor(logits, dtype=dtype), places, weights, E=num_experts, K=3)
    return [places.tolist().index(place) for place in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_come_first_whatever_their_sign(dtype: torch.dtype) -> None:
    assert choose([-4.0, -1.0, -2.0, -3.0, -5.0, -6.0, -7.0, -8.0], dtype) == [1, 2, 3]
    assert choose([-1.0, 3.0, 0.5, -0.5, 2.0, 0.0, -9.0, 1e-3], dtype) == [1, 4, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_and_both_zeros_go_to_the_lower_id(dtype: torch.dtype) -> None:
    assert choose([-1.0, -0.0, 0.0, -0.0, 0.0, -1.0, -1.0, -1.0], dtype) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter computes with NaN
def test_a_nan_is_the_lowest_and_what_is_no_expert_is_not_looked_at() -> None:
    logits = [float("nan"), 1.0, -2.0, -1e30, 5.0, 5.0, 5.0, 5.0]
    assert choose(logits, torch.float32, num_experts=4) == [1, 2, 3]
