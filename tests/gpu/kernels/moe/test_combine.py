"""Combine on a device, and a whole expert layer in one CUDA graph.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts   H = hidden
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headrace.kernels.gate.family import ROUTE
from headrace.kernels.moe.family import COMBINE, GROUPED_EXPERTS
from tests.support.kernels_errors import assert_near
from tests.support.kernels_moe import ExpertLayer, run_combine

LAYER = ExpertLayer(
    num_experts=128, top_k=8, hidden=2048, width=768, device="cuda", dtype=torch.bfloat16
)
EPS = 1e-6
NAMES = [variant.name for variant in COMBINE.variants if variant.name != "reference"]
EXPERTS = [variant.name for variant in GROUPED_EXPERTS.variants if variant.name != "reference"]


def pairs_of(num_tokens: int, *, seed: int = 0) -> Tensor:
    return LAYER.rows(num_tokens * LAYER.top_k, seed=seed)


@pytest.mark.parametrize("num_tokens", [0, 1, 17, 256, 1023, 1024, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_twice_those_of_torch(name: str, num_tokens: int) -> None:
    routing = LAYER.route(LAYER.logits(num_tokens))
    inputs = (pairs_of(num_tokens), routing, LAYER.rows(num_tokens, seed=1))
    weight_H = LAYER.rows(1, seed=2)[0]
    results = COMBINE.variant(name).load()(*inputs, weight_H, eps=EPS)
    plain = run_combine(*inputs, weight_H, LAYER.dtype)
    exact = run_combine(*inputs, weight_H, torch.float64)
    for each in zip(results, plain, exact, strict=True):
        assert_near(*each)


@pytest.mark.parametrize("num_rows", [0, 1, 16, 17])
@pytest.mark.parametrize("name", NAMES)
def test_padding_keeps_its_stream_whatever_its_pairs_hold(name: str, num_rows: int) -> None:
    routing = LAYER.route(LAYER.logits(17), num_rows=num_rows)
    out_PH, residual_TH = pairs_of(17), LAYER.rows(17, seed=1)
    out_PH[num_rows * LAYER.top_k :] = torch.nan
    routing.weights_TK[num_rows:] = torch.nan
    normed_TH, stream_TH = COMBINE.variant(name).load()(
        out_PH, routing, residual_TH, LAYER.rows(1, seed=2)[0], eps=EPS
    )
    assert torch.equal(stream_TH[num_rows:], residual_TH[num_rows:])
    assert stream_TH.isfinite().all()
    assert normed_TH.isfinite().all()


@pytest.mark.parametrize("num_tokens", [16, 256])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(name: str, num_tokens: int) -> None:
    combine, weight_H = COMBINE.variant(name).load(), LAYER.rows(1, seed=2)[0]
    logits_TE, residual_TH = LAYER.logits(num_tokens), LAYER.rows(num_tokens, seed=1)
    out_TKH = pairs_of(num_tokens).view(num_tokens, LAYER.top_k, LAYER.hidden)
    together = combine(
        out_TKH.flatten(0, 1), LAYER.route(logits_TE), residual_TH, weight_H, eps=EPS
    )
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(5))
    order = order.to(LAYER.device)
    moved = combine(
        out_TKH[order].flatten(0, 1),
        LAYER.route(logits_TE[order]),
        residual_TH[order],
        weight_H,
        eps=EPS,
    )
    for before, after in zip(together, moved, strict=True):
        assert torch.equal(after, before[order])


def layer_step(experts: str, num_tokens: int) -> tuple[dict[str, Tensor], Callable[[], list]]:
    """Return buffers at fixed addresses, and a step from them: route, experts, combine."""
    weights, weight_H = LAYER.weights(), LAYER.rows(1, seed=2)[0]
    buffers = {
        "logits": LAYER.logits(num_tokens),
        "x": LAYER.rows(num_tokens),
        "residual": LAYER.rows(num_tokens, seed=1),
        "num_rows": LAYER.count(num_tokens),
    }

    def step() -> list[Tensor]:
        routing = ROUTE.variant("triton").load()(
            buffers["logits"],
            top_k=LAYER.top_k,
            renormalize=True,
            num_rows_1=buffers["num_rows"],
        )
        out_PH = GROUPED_EXPERTS.variant(experts).load()(buffers["x"], routing, *weights)
        combine = COMBINE.variant("triton").load()
        return [routing.ids_TK, *combine(out_PH, routing, buffers["residual"], weight_H, eps=EPS)]

    return buffers, step


@pytest.mark.parametrize("num_tokens", [1, 8, 64, 256])
@pytest.mark.parametrize("experts", EXPERTS)
def test_one_graph_of_a_layer_serves_every_routing(experts: str, num_tokens: int) -> None:
    buffers, step = layer_step(experts, num_tokens)
    step()  # compiles, which a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(1, 9):
        num_rows = seed * num_tokens // 8
        buffers["logits"].copy_(LAYER.logits(num_tokens, seed=seed))
        buffers["x"].copy_(LAYER.rows(num_tokens, seed=seed))
        buffers["x"][num_rows:] = torch.nan
        buffers["num_rows"].fill_(num_rows)
        for each in captured[1:]:
            each.fill_(torch.nan)
        graph.replay()
        eager = step()
        for came, expected in zip(captured, eager, strict=True):
            assert torch.equal(came, expected)
        # Equal alone would also hold if every replay ran with the first routing's numbers.
        assert int((eager[0][:, 0] >= 0).sum()) == num_rows
        assert eager[1].isfinite().all()
