"""The second kernel for few tokens: results land at their pairs, and nowhere else."""

import torch

from headrace.kernels.moe.triton_decode_down import down_decode_kernel
from tests.support.kernels_device import experts, normal, routing_of


def test_rows_of_padding_pairs_are_left_as_they_were() -> None:
    routing, (_, down) = routing_of(3, 4, 2, num_rows=2), experts(4, 32, 16)
    act, out = normal(6, 16), torch.full((6, 32), 7.0)
    down_decode_kernel[(1, 4)](
        act, down, out, routing.ids_TK, routing.order_P, routing.starts_E1,
        H=32, I=16, BY_PAIR=False, BLOCK_M=32, BLOCK_N=16, BLOCK_I=16, NUM_STAGES=2,
        PRECISION="ieee", CHAINED=False,
    )  # fmt: skip
    assert (out[4:] == 7.0).all()
    for place, pair in enumerate(routing.order_P[:4].tolist()):
        expert = int(routing.ids_TK.flatten()[pair])
        torch.testing.assert_close(out[pair], down[expert] @ act[place])
