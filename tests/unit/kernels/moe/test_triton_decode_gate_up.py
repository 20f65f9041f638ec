"""The first kernel for few tokens: what it must not touch."""

import torch

from headrace.kernels.moe.triton_decode_gate_up import gate_up_decode_kernel
from tests.support.kernels_device import experts, normal, routing_of


def test_places_of_padding_are_left_as_they_were() -> None:
    routing, (gate_up, _) = routing_of(3, 8, 2, num_rows=2), experts(8, 32, 16)
    act = torch.full((6, 16), 7.0)
    gate_up_decode_kernel[(1, 6)](
        normal(3, 32), gate_up, act, routing.ids_TK, routing.order_P, routing.starts_E1,
        H=32, I=16, TOP_K=2, BY_PAIR=True, BLOCK_I=16, BLOCK_N=16, BLOCK_H=16, NUM_STAGES=2,
        PRECISION="ieee", CHAINED=False,
    )  # fmt: skip
    assert (act[4:] == 7.0).all()
    assert (act[:4] != 7.0).all()
