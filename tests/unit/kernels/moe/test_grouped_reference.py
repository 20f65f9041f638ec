"""The plain grouped experts are one MLP a pair."""

import torch
import torch.nn.functional as F

from headrace.kernels.moe.grouped_reference import grouped_experts
from tests.support.kernels_device import experts, normal, one_expert, real_pairs, routing_of


def test_every_pair_gets_its_experts_mlp_of_its_token() -> None:
    routing, (gate_up, down) = routing_of(6, 5, 2, num_rows=5), experts(5, 24, 16)
    x = normal(6, 24)
    out = grouped_experts(x, routing, gate_up, down)
    for pair in real_pairs(routing).nonzero().flatten().tolist():
        expert = int(routing.ids_TK.flatten()[pair])
        gate, up = (gate_up[expert] @ x[pair // 2]).chunk(2)
        torch.testing.assert_close(out[pair], down[expert] @ (F.silu(gate) * up))


def test_no_tokens_give_no_rows() -> None:
    assert grouped_experts(normal(0, 24), routing_of(0, 5, 2), *experts(5, 24, 16)).shape == (0, 24)


def test_garbage_in_padding_reaches_no_real_row() -> None:
    routing, weights = routing_of(6, 5, 2, num_rows=4), experts(5, 24, 16)
    x = normal(6, 24)
    clean = grouped_experts(x, routing, *weights)
    x[4:] = torch.nan
    kept = real_pairs(routing)
    assert torch.equal(grouped_experts(x, routing, *weights)[kept], clean[kept])


def test_all_tokens_may_go_to_one_expert() -> None:
    x, (gate_up, down) = normal(5, 24), experts(3, 24, 16)
    gate, up = (x @ gate_up[1].t()).chunk(2, dim=-1)
    out = grouped_experts(x, one_expert(5, 3), gate_up, down)
    torch.testing.assert_close(out, (F.silu(gate) * up) @ down[1].t())
