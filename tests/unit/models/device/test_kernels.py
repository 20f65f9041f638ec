"""The kernels of a model are chosen for its sizes and the rows of a step."""

from headrace.kernels.catalogue import Site
from headrace.models.device.kernels import (
    FAMILIES,
    bind_kernels,
    choose_kernels,
    model_sizes,
    why_no_graph,
)
from tests.support.checkpoints import TinyModel, model_config

SIZES = model_sizes(model_config(TinyModel()), block_size=16)
H200 = Site(
    device="cuda",
    capability=(9, 0),
    dtype="bfloat16",
    libraries=frozenset({"triton"}),
    sizes={**SIZES, "head_dim": 128},
)


def test_a_cpu_gets_references_throughout_and_no_graph() -> None:
    site = Site(sizes=SIZES)
    choices = choose_kernels(site, num_tokens=1)
    assert {choice.variant.name for choice in choices.values()} == {"reference"}
    assert why_no_graph(site, num_tokens=1) == "the device is cpu"
    assert callable(bind_kernels(site, num_tokens=1).combine)


def test_few_rows_and_many_get_other_experts() -> None:
    few, many = (choose_kernels(H200, num_tokens=n)["grouped_experts"] for n in (8, 4096))
    assert (few.variant.name, many.variant.name) == ("decode_triton", "prefill_triton")
    assert choose_kernels(H200, num_tokens=1)["gate_linear"].variant.name == "few_rows_triton"
    assert choose_kernels(H200, num_tokens=64)["gate_linear"].variant.name == "reference"


def test_a_step_of_kernels_can_be_recorded_and_a_reference_among_them_is_named() -> None:
    assert why_no_graph(H200, num_tokens=64) is None
    odd = Site(
        device="cuda",
        capability=(9, 0),
        dtype="bfloat16",
        libraries=frozenset({"triton"}),
        sizes={**SIZES, "head_dim": 96},
    )
    assert "decode_attention: reference" in str(why_no_graph(odd, num_tokens=64))


def test_every_field_has_a_family() -> None:
    assert set(choose_kernels(H200, num_tokens=1)) == set(FAMILIES)
