"""Routing on a device: the reference's routing, padding, rows alone, all to a few experts.

Shape letters: T = tokens   E = experts   K = experts per token
"""

import pytest
import torch
from torch import Tensor

from headrace.kernels.gate.family import ROUTE
from headrace.kernels.gate.routing import Routing
from tests.support.kernels_device import normal
from tests.support.kernels_errors import assert_near

DEVICE, DTYPE = "cuda", torch.bfloat16
NUM_EXPERTS, TOP_K = 128, 8
# 512 tokens make the 4096 pairs that a program looks at in one go.
TOKENS = (0, 1, 2, 17, 256, 511, 512, 513, 4096)
NAMES = [variant.name for variant in ROUTE.variants if variant.name != "reference"]


def logits_of(num_tokens: int, seed: int = 0) -> Tensor:
    return normal(num_tokens, NUM_EXPERTS, seed=seed).to(DEVICE, DTYPE)


def route(name: str, logits_TE: Tensor, num_rows: int | None = None) -> Routing:
    rows = None if num_rows is None else torch.tensor([num_rows], dtype=torch.int32, device=DEVICE)
    return ROUTE.variant(name).load()(logits_TE, top_k=TOP_K, renormalize=True, num_rows_1=rows)


def assert_same_pairs(routing: Routing, expected: Routing) -> None:
    assert torch.equal(routing.ids_TK, expected.ids_TK)
    assert torch.equal(routing.order_P, expected.order_P)
    assert torch.equal(routing.starts_E1, expected.starts_E1)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_the_references_though_bf16_logits_tie(name: str, num_tokens: int) -> None:
    logits_TE = logits_of(num_tokens)
    routing, expected = (route(each, logits_TE) for each in (name, "reference"))
    assert_same_pairs(routing, expected)
    # The weights are fp32, so that the plain path is fp32 too.
    scores_TE = torch.softmax(logits_TE.double(), -1)
    exact_TK = scores_TE.gather(1, expected.ids_TK.long())
    exact_TK = exact_TK / exact_TK.sum(-1, keepdim=True)
    assert_near(routing.weights_TK, expected.weights_TK, exact_TK)


@pytest.mark.parametrize("num_rows", [0, 1, 16, 17])
@pytest.mark.parametrize("name", NAMES)
def test_padding_has_no_expert_whatever_its_logits_hold(name: str, num_rows: int) -> None:
    logits_TE = logits_of(17)
    expected = route("reference", logits_TE, num_rows)
    logits_TE[num_rows:] = torch.nan
    routing = route(name, logits_TE, num_rows)
    assert_same_pairs(routing, expected)
    assert int(routing.starts_E1[-1]) == num_rows * TOP_K
    kept = slice(0, num_rows)
    torch.testing.assert_close(routing.weights_TK[kept], expected.weights_TK[kept])


@pytest.mark.parametrize("num_tokens", [1, 512, 513])
@pytest.mark.parametrize("name", NAMES)
def test_all_tokens_to_the_same_experts_stay_in_order(name: str, num_tokens: int) -> None:
    logits_TE = torch.zeros(num_tokens, NUM_EXPERTS, device=DEVICE, dtype=DTYPE)
    assert_same_pairs(route(name, logits_TE), route("reference", logits_TE))


@pytest.mark.parametrize("num_tokens", [16, 64, 256])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(name: str, num_tokens: int) -> None:
    logits_TE = logits_of(num_tokens)
    together = route(name, logits_TE)
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    moved = route(name, logits_TE[order])
    assert torch.equal(moved.ids_TK, together.ids_TK[order])
    assert torch.equal(moved.weights_TK, together.weights_TK[order])
    logits_TE[1:] = logits_of(num_tokens - 1, seed=9)
    replaced = route(name, logits_TE)
    assert torch.equal(replaced.ids_TK[0], together.ids_TK[0])
    assert torch.equal(replaced.weights_TK[0], together.weights_TK[0])
