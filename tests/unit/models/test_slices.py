from collections import defaultdict

import pytest
import torch

from headrace.core.sharding import Role, Sharding
from headrace.models.slices import ParameterSpec, weight_slices
from tests.support.models_builders import DENSE_JSON, MOE_JSON, tiny_config
from tests.support.models_transformers import reference_model

REPLICATED = ("norm", "embed_tokens", "lm_head", "gate.weight", "o_proj.bias")


def test_local_shape_counts_all_runs_of_an_axis() -> None:
    spec = ParameterSpec(name="x", shape=(8, 10, 3), slices=((0, ((2, 4),)), (1, ((0, 3), (5, 8)))))
    assert spec.local_shape == (2, 6, 3)
    assert ParameterSpec(name="y", shape=(5,)).local_shape == (5,)


@pytest.mark.parametrize("data", [{}, DENSE_JSON, {"attention_bias": True, "mlp_only_layers": [1]}])
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_are_the_reference_librarys(data: dict[str, object], tied: bool) -> None:
    data = MOE_JSON | data if "architectures" not in data else dict(data)
    data["tie_word_embeddings"] = tied
    specs = weight_slices(tiny_config(data), Sharding(), Role.MONO, rank=0)
    zeros = {spec.name: torch.zeros(spec.shape) for spec in specs}
    # Refuses missing, unexpected and misshapen tensors.
    reference_model(data, zeros)
    assert all(spec.local_shape == spec.shape for spec in specs)


@pytest.mark.parametrize(
    ("role", "sharding"),
    [
        (Role.PREFILL, Sharding(tp=4, ep=4)),
        (Role.PREFILL, Sharding(tp=4, ep=2)),
        (Role.PREFILL, Sharding(tp=2, ep=1)),
        (Role.DECODE, Sharding(dp=4, ep=4)),
    ],
    ids=str,
)
def test_every_element_of_a_split_parameter_is_held_once(role: Role, sharding: Sharding) -> None:
    config = tiny_config(attention_bias=True, mlp_only_layers=[1])
    counts: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(()))
    for rank in range(sharding.num_ranks):
        for spec in weight_slices(config, sharding, role, rank=rank):
            held = torch.ones(spec.shape)
            for axis, runs in spec.slices:
                keep = torch.zeros(spec.shape[axis])
                for start, stop in runs:
                    keep[start:stop] = 1
                held = held * keep.view(-1, *(1,) * (len(spec.shape) - axis - 1))
            counts[spec.name] = counts[spec.name] + held
    for name, count in counts.items():
        is_split = "experts" in name or (role is Role.PREFILL and not name_is_replicated(name))
        expected = 1 if is_split else sharding.num_ranks
        assert (count == expected).all(), name


def name_is_replicated(name: str) -> bool:
    return any(part in name for part in REPLICATED)
