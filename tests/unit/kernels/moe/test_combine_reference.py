"""The plain combine is a weighted sum, an addition and a norm."""

import torch

from headrace.kernels.moe.combine_reference import combine
from headrace.kernels.norm import rms_norm
from tests.support.kernels_device import normal, routing_of


def test_the_stream_gains_the_weighted_sum_and_is_normed() -> None:
    routing, out, residual = routing_of(4, 5, 2), normal(8, 24), normal(4, 24, seed=1)
    weight = normal(24, seed=2)
    normed, stream = combine(out, routing, residual, weight, eps=1e-6)
    expected = residual + (out.view(4, 2, 24) * routing.weights_TK[:, :, None]).sum(1)
    torch.testing.assert_close(stream, expected)
    assert torch.equal(normed, rms_norm(stream, weight, eps=1e-6))


def test_padding_keeps_its_stream_whatever_its_pairs_hold() -> None:
    routing, out, residual = routing_of(4, 5, 2, num_rows=3), normal(8, 24), normal(4, 24, seed=1)
    out[6:] = torch.nan
    _, stream = combine(out, routing, residual, torch.ones(24), eps=1e-6)
    assert torch.equal(stream[3], residual[3])
    assert stream.isfinite().all()
