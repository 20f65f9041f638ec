"""Draws are random, never zero throughout, and the same for a seed."""

import torch

from headrace.bench.device.draws import Draws


def test_a_seed_decides_every_draw():
    for name, arguments in (("normal", (3, 5)), ("permutation", (9,))):
        one, two, other = (getattr(Draws("cpu", seed=seed), name)(*arguments) for seed in (1, 1, 2))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)


def test_normal_numbers_have_the_scale_that_was_asked_for():
    drawn = Draws("cpu", seed=0).normal(4000, scale=3.0, dtype=torch.float32)
    assert abs(drawn.std() - 3.0) < 0.2
    assert (drawn != 0).all()


def test_a_permutation_holds_every_number_once():
    assert sorted(Draws("cpu", seed=0).permutation(17).tolist()) == list(range(17))


def test_integers_stay_below_their_bound():
    drawn = Draws("cpu", seed=0).integers(500, high=7)
    assert drawn.dtype == torch.int32
    assert set(drawn.tolist()) == set(range(7))
