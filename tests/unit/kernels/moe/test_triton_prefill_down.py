"""The second kernel for many tokens: results land at their pairs, and nowhere else."""

import torch

from headrace.kernels.moe.triton_prefill_down import down_prefill_kernel
from tests.support.kernels_device import experts, normal, routing_of


def test_rows_of_padding_pairs_are_left_as_they_were() -> None:
    routing, (_, down) = routing_of(9, 4, 2, num_rows=7), experts(4, 32, 16)
    act, out = normal(18, 16), torch.full((18, 32), 7.0)
    down_prefill_kernel[(5,)](
        act, down, out, routing.order_P, routing.starts_E1,
        E=4, E_PAD=4, H=32, I=16, BLOCK_M=16, BLOCK_N=32, BLOCK_I=16, NUM_STAGES=2,
        PRECISION="ieee",
    )  # fmt: skip
    assert (out[14:] == 7.0).all()
    for place, pair in enumerate(routing.order_P[:14].tolist()):
        expert = int(routing.ids_TK.flatten()[pair])
        torch.testing.assert_close(out[pair], down[expert] @ act[place])
