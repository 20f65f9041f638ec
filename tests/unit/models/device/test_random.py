"""Random weights have every parameter of the shape, and no other."""

import torch

from headrace.core.sharding import Role, Sharding
from headrace.models.device.random import STANDARD_DEVIATION, random_tensors
from headrace.models.slices import weight_slices
from tests.support.checkpoints import TinyModel, model_config


def test_every_parameter_is_there_in_its_shape_and_norms_are_one() -> None:
    config = model_config(TinyModel())
    tensors = random_tensors(config, dtype=torch.float32, device="cpu")
    specs = weight_slices(config, Sharding(), Role.MONO, rank=0)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {s.name: s.shape for s in specs}
    assert (tensors["model.norm.weight"] == 1.0).all()
    spread = tensors["model.embed_tokens.weight"].std()
    assert abs(spread / STANDARD_DEVIATION - 1) < 0.05


def test_a_seed_gives_the_same_numbers() -> None:
    config = model_config(TinyModel())
    one, same, other = (
        random_tensors(config, dtype=torch.bfloat16, device="cpu", seed=seed) for seed in (1, 1, 2)
    )
    name = "model.layers.0.mlp.experts.down_proj"
    assert torch.equal(one[name], same[name])
    assert not torch.equal(one[name], other[name])


def test_dense_layers_get_their_own_parameters() -> None:
    config = model_config(TinyModel(num_layers=2, dense_layers=(1,)))
    tensors = random_tensors(config, dtype=torch.float32, device="cpu")
    names = {name for name in tensors if name.startswith("model.layers.1.mlp.")}
    assert names == {f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
