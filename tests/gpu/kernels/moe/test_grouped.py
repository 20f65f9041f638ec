"""Experts on a device, every variant: errors of torch at most twice, padding, rows alone.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
"""

import pytest
import torch
from torch import Tensor

from headrace.kernels.moe.family import GROUPED_EXPERTS, MAX_DECODE_TOKENS
from tests.support.kernels_device import real_pairs
from tests.support.kernels_errors import assert_near
from tests.support.kernels_moe import ExpertLayer, run_experts

LAYER = ExpertLayer(
    num_experts=128, top_k=8, hidden=2048, width=768, device="cuda", dtype=torch.bfloat16
)
# As many pairs as experts and one more row, a tile of tokens and one past it, other settings, the
# last size of the kernels for few tokens.
FEW = (0, 1, 2, 15, 16, 17, 128, 192, 193, MAX_DECODE_TOKENS)
MANY = (0, 1, 128, 129, MAX_DECODE_TOKENS + 1, 4096)
SIZES = {"decode_triton": FEW, "prefill_triton": MANY}
NAMES = [variant.name for variant in GROUPED_EXPERTS.variants if variant.name != "reference"]
CASES = [(name, num_tokens) for name in NAMES for num_tokens in SIZES.get(name, FEW)]

Weights = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return LAYER.weights()


@pytest.mark.parametrize(("name", "num_tokens"), CASES)
def test_errors_stay_within_twice_those_of_torch(
    name: str, num_tokens: int, weights: Weights
) -> None:
    x_TH, routing = LAYER.rows(num_tokens), LAYER.route(LAYER.logits(num_tokens))
    out_PH = GROUPED_EXPERTS.variant(name).load()(x_TH, routing, *weights)
    plain_PH = run_experts(x_TH, routing, weights, LAYER.dtype)
    assert_near(out_PH, plain_PH, run_experts(x_TH, routing, weights, torch.float64))


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 33, 128, 129, 300])
@pytest.mark.parametrize("name", NAMES)
def test_all_tokens_may_want_the_same_experts(name: str, num_tokens: int, weights: Weights) -> None:
    x_TH = LAYER.rows(num_tokens)
    routing = LAYER.route(LAYER.logits(1).expand(num_tokens, -1))
    out_PH = GROUPED_EXPERTS.variant(name).load()(x_TH, routing, *weights)
    plain_PH = run_experts(x_TH, routing, weights, LAYER.dtype)
    assert_near(out_PH, plain_PH, run_experts(x_TH, routing, weights, torch.float64))


@pytest.mark.parametrize("num_rows", [0, 1, 23, 24])
@pytest.mark.parametrize("name", NAMES)
def test_garbage_in_padding_reaches_no_real_row(name: str, num_rows: int, weights: Weights) -> None:
    x_TH, routing = LAYER.rows(24), LAYER.route(LAYER.logits(24), num_rows=num_rows)
    grouped_experts = GROUPED_EXPERTS.variant(name).load()
    clean_PH = grouped_experts(x_TH, routing, *weights)
    x_TH[num_rows:] = torch.nan
    out_PH = grouped_experts(x_TH, routing, *weights)
    kept_P = real_pairs(routing)
    assert torch.equal(out_PH[kept_P], clean_PH[kept_P])
    assert out_PH[kept_P].isfinite().all()


# One row alone takes another path by pair: 8 tokens make fewer pairs than experts, 16 as many.
@pytest.mark.parametrize("num_tokens", [8, 16, 64, 256])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(
    name: str, num_tokens: int, weights: Weights
) -> None:
    grouped_experts = GROUPED_EXPERTS.variant(name).load()
    x_TH, logits_TE = LAYER.rows(num_tokens), LAYER.logits(num_tokens)
    shape = (num_tokens, LAYER.top_k, LAYER.hidden)
    together = grouped_experts(x_TH, LAYER.route(logits_TE), *weights).view(shape)
    for seed in range(5):
        order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(seed))
        order = order.to(LAYER.device)
        moved = grouped_experts(x_TH[order], LAYER.route(logits_TE[order]), *weights).view(shape)
        assert torch.equal(moved, together[order])
    # New neighbours, who all want the experts of the first row.
    x_TH[1:] = LAYER.rows(num_tokens - 1, seed=9)
    logits_TE[1:] = logits_TE[0]
    crowded = grouped_experts(x_TH, LAYER.route(logits_TE), *weights).view(shape)
    assert torch.equal(crowded[0], together[0])
