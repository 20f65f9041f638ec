"""Chained kernels on a device compute the bits that the same kernels compute one after another."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headrace.kernels import chain
from headrace.kernels.gate.triton import route
from headrace.kernels.linear.triton_few_rows import few_rows_linear
from headrace.kernels.moe import triton_decode, triton_pair
from headrace.kernels.moe.triton_combine import combine
from headrace.kernels.norm.triton import add_rms_norm

LAYERS, HIDDEN, WIDTH, EXPERTS, TOP_K, EPS = 12, 512, 256, 32, 4, 1e-6


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)


class Stack:
    """Layers of everything but attention, in which each kernel needs the one before it."""

    def __init__(self, grouped_experts: Callable[..., Tensor]) -> None:
        self._experts = grouped_experts
        self._norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self._layers = [
            (
                normal(HIDDEN, HIDDEN, seed=4 * layer) * HIDDEN**-0.5,
                normal(EXPERTS, HIDDEN, seed=4 * layer + 1) * HIDDEN**-0.5,
                normal(EXPERTS, 2 * WIDTH, HIDDEN, seed=4 * layer + 2) * HIDDEN**-0.5,
                normal(EXPERTS, HIDDEN, WIDTH, seed=4 * layer + 3) * WIDTH**-0.5,
            )
            for layer in range(LAYERS)
        ]

    def run(self, x_TH: Tensor) -> Tensor:
        """Return the stream after all layers."""
        normed_TH = stream_TH = x_TH.clone()
        for out_HH, gate_EH, gate_up, down in self._layers:
            mixed_TH = few_rows_linear(normed_TH, out_HH)
            normed_TH, stream_TH = add_rms_norm(mixed_TH, stream_TH, self._norm, eps=EPS)
            logits_TE = few_rows_linear(normed_TH, gate_EH)
            routing = route(logits_TE, top_k=TOP_K, renormalize=True)
            parts_PH = self._experts(normed_TH, routing, gate_up, down)
            normed_TH, stream_TH = combine(parts_PH, routing, stream_TH, self._norm, eps=EPS)
        return stream_TH


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("module", [triton_pair, triton_decode])
def test_a_graph_of_chained_kernels_gives_the_bits_of_plain_ones(
    module: object, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(module.grouped_experts)  # type: ignore[attr-defined]
    x_TH = normal(num_tokens, HIDDEN, seed=99)
    with monkeypatch.context() as patch:
        patch.setattr(chain, "_can_chain", lambda device: False)
        plain_TH = stack.run(x_TH)
    stack.run(x_TH)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chained_TH = stack.run(x_TH)
    for _ in range(200):
        chained_TH.zero_()
        graph.replay()
        assert torch.equal(chained_TH, plain_TH)
