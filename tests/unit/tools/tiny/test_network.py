"""The network agrees with the reference library and keeps its promises."""

import torch

from tools.tiny.network import Mtp, Target, TinyConfig

SMALL = TinyConfig(vocab_size=64, hidden_size=32, num_layers=2, num_experts=8, expert_width=16)


def test_a_later_token_changes_nothing_before_it() -> None:
    torch.manual_seed(0)
    target = Target(SMALL)
    tokens = torch.randint(64, (1, 12))
    changed = tokens.clone()
    changed[0, 8] += 1 - 2 * (changed[0, 8] == 63)
    before, after = (target(t)[0][0, :8] for t in (tokens, changed))
    torch.testing.assert_close(before, after)


def test_routing_selects_k_experts_whose_weights_sum_to_one() -> None:
    torch.manual_seed(0)
    _, weight = Target(SMALL).layers[0].mlp.route(torch.randn(2, 5, 32))
    assert ((weight > 0).sum(-1) == SMALL.experts_per_token).all()
    torch.testing.assert_close(weight.sum(-1), torch.ones(2, 5))


def test_running_all_experts_equals_running_the_selected_ones() -> None:
    torch.manual_seed(0)
    experts = Target(SMALL).layers[0].mlp
    x = torch.randn(1, 3, 32)
    _, weight = experts.route(x)
    wanted = torch.zeros(3, 32)
    for position in range(3):
        for expert in weight[0, position].nonzero().flatten():
            gate = experts.gate_proj_EIC[expert] @ x[0, position]
            up = experts.up_proj_EIC[expert] @ x[0, position]
            down = experts.down_proj_ECI[expert] @ (torch.nn.functional.silu(gate) * up)
            wanted[position] += weight[0, position, expert] * down
    torch.testing.assert_close(experts(x)[0][0], wanted)


def test_the_mtp_layer_gives_one_state_a_position() -> None:
    mtp = Mtp(SMALL)
    states, _ = mtp(torch.randn(2, 5, 32), torch.randn(2, 5, 32))
    assert states.shape == (2, 5, 32)
    assert torch.isfinite(states).all()
