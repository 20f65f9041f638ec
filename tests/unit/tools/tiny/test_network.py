"""The trainer's network is the mixture-of-experts model that it claims to be."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from tests.support.tiny_trainer import SIZES, networks, tokens
from tools.tiny.network import Mtp, RMSNorm, Target, rope_tables, rotate


def test_the_norm_divides_by_the_root_mean_square_and_scales() -> None:
    norm = RMSNorm(2, 0.0)
    torch.nn.init.constant_(norm.weight, 2.0)
    expected = torch.tensor([6.0, 8.0]) / math.sqrt(12.5)
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), expected)


def test_the_norm_is_computed_in_float32_and_returns_the_type_of_its_input() -> None:
    x = torch.full((1, 4), 1e-4, dtype=torch.float16)  # its square is 0 in float16
    out = RMSNorm(4, 1e-12)(x)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), torch.ones(1, 4), atol=1e-3, rtol=0)


def test_a_rotated_product_depends_on_the_distance_only() -> None:
    q, k = torch.randn(2, 1, SIZES.head_dim, generator=torch.Generator().manual_seed(0))
    rope = rope_tables(SIZES, 10, torch.device("cpu"))
    q_TD, k_TD = rotate(q.expand(10, -1), rope), rotate(k.expand(10, -1), rope)
    products = q_TD @ k_TD.T
    for distance in (0, 1, 5):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(products[0, 0], (q @ k.T)[0, 0])
    assert not torch.isclose(products[1, 0], products[0, 1])


def test_the_first_pair_turns_by_one_radian_a_position() -> None:
    cos, sin = rope_tables(SIZES, 4, torch.device("cpu"))
    half = SIZES.head_dim // 2
    torch.testing.assert_close(cos[:, 0], torch.arange(4.0).cos())
    torch.testing.assert_close(sin[:, half], torch.arange(4.0).sin())
    slowest = SIZES.rope_theta ** (-(half - 1) / half)
    torch.testing.assert_close(sin[:, -1], (torch.arange(4.0) * slowest).sin())


@torch.inference_mode()
def test_the_mixture_is_the_sum_of_the_selected_experts() -> None:
    experts = networks()[0].layers[0].mlp
    x_TC = torch.randn(5, SIZES.hidden_size, generator=torch.Generator().manual_seed(3))
    mixed_BTC, _ = experts(x_TC[None])
    for x_C, mixed_C in zip(x_TC, mixed_BTC[0], strict=True):
        top, index = experts.gate(x_C).softmax(-1).topk(SIZES.experts_per_token)
        expected_C = torch.zeros_like(x_C)
        for weight, expert in zip(top / top.sum(), index.tolist(), strict=True):
            gate, up = experts.gate_proj_EIC[expert] @ x_C, experts.up_proj_EIC[expert] @ x_C
            expected_C += weight * (experts.down_proj_ECI[expert] @ (F.silu(gate) * up))
        torch.testing.assert_close(mixed_C, expected_C, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_the_balance_is_one_for_even_use_and_grows_when_few_experts_get_all() -> None:
    experts = networks()[0].layers[0].mlp
    x_BTC = torch.ones(1, 3, SIZES.hidden_size)
    torch.nn.init.zeros_(experts.gate.weight)
    assert experts(x_BTC)[1].item() == pytest.approx(1.0)
    experts.gate.weight[5] = 10.0
    worst = SIZES.num_experts / SIZES.experts_per_token
    assert experts(x_BTC)[1].item() == pytest.approx(worst)


@torch.inference_mode()
def test_no_token_sees_a_later_one() -> None:
    target, mtp = networks()
    ids = tokens(2, 9)
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 1) % SIZES.vocab_size
    before, after = target(ids)[0], target(changed)[0]
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])
    drafts = [
        mtp(target.embed_tokens(row[:, 1:]), hidden[:, :-1])[0]
        for row, hidden in ((ids, before), (changed, after))
    ]
    # Draft t is made from tokens up to t + 1.
    torch.testing.assert_close(drafts[0][:, :5], drafts[1][:, :5])
    assert not torch.allclose(drafts[0][:, 5:], drafts[1][:, 5:])


@torch.inference_mode()
def test_the_output_head_is_the_embedding_table() -> None:
    target, _ = networks()
    hidden, _ = target(tokens(1, 3))
    assert not any("head" in name for name, _ in target.named_parameters())
    torch.testing.assert_close(target.logits(hidden), hidden @ target.embed_tokens.weight.T)


@torch.inference_mode()
def test_the_mtp_layer_uses_both_of_its_inputs() -> None:
    _, mtp = networks()
    a, b = torch.randn(2, 1, 4, SIZES.hidden_size, generator=torch.Generator().manual_seed(1))
    assert mtp(a, b)[0].shape == a.shape
    assert not torch.allclose(mtp(a, b)[0], mtp(a, a)[0])
    assert not torch.allclose(mtp(a, b)[0], mtp(b, b)[0])


def test_one_seed_gives_one_initialisation() -> None:
    states = []
    for seed in (7, 7, 8):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            states.append([*Target(SIZES).parameters(), *Mtp(SIZES).parameters()])
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[1], strict=True))
    assert not torch.equal(states[0][0], states[2][0])


def test_what_a_layer_adds_starts_smaller_in_a_deeper_network() -> None:
    for layers in (2, 8):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            target = Target(dataclasses.replace(SIZES, num_layers=layers))
        attention, experts = target.layers[0].self_attn, target.layers[0].mlp
        for weight in (attention.o_proj.weight, experts.down_proj_ECI):
            expected = 0.5 * (weight.shape[-1] * 2 * layers) ** -0.5
            assert weight.std().item() == pytest.approx(expected, rel=0.1)
        assert attention.q_proj.weight.std().item() == pytest.approx(0.5 * 32**-0.5, rel=0.1)
