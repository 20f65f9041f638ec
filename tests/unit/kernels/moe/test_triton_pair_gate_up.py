"""The first kernel for single pairs: a pair reads its own token, and padding writes nothing."""

import torch

from headrace.kernels.moe.triton_pair_gate_up import pair_gate_up_kernel
from tests.support.kernels_device import experts, normal


def test_padding_is_left_as_it_was() -> None:
    gate_up, _ = experts(4, 32, 16)
    x, act = normal(2, 32), torch.full((4, 16), 7.0)
    ids = torch.tensor([2, -1, 0, 3], dtype=torch.int32)
    pair_gate_up_kernel[(4, 4)](
        x, gate_up, act, ids, H=32, I=16, TOP_K=2, BLOCK_I=4, BLOCK_H=32, CHAINED=False
    )
    assert (act[1] == 7.0).all()
    for pair, expert in ((0, 2), (2, 0), (3, 3)):
        gate, up = (gate_up[expert] @ x[pair // 2]).chunk(2)
        torch.testing.assert_close(act[pair], torch.nn.functional.silu(gate) * up)
