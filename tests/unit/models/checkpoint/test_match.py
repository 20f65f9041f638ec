"""Tensors against parameters: each used once, each filled once, or one line that says why not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import CheckpointError
from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.headers import TensorHeader
from headrace.models.checkpoint.match import Matched, match
from headrace.models.slices import weight_slices
from tests.support.checkpoints import FORMS, Form, TinyModel, file_tensors, model_config
from tests.support.checkpoints import random_weights as random_weights_of

MODEL = TinyModel(num_layers=2, num_experts=4, dense_layers=(1,))
Headers = dict[str, TensorHeader]
Change = Callable[[Headers], None]


def header(name: str, shape: tuple[int, ...], dtype: str = "F32") -> TensorHeader:
    return TensorHeader(
        name=name, dtype=dtype, shape=shape, path=Path("m.safetensors"), offset=0, num_bytes=0
    )


def headers_of(model: TinyModel, form: Form) -> Headers:
    tensors = file_tensors(random_weights_of(model), form)
    return {name: header(name, tuple(values.shape)) for name, values in tensors.items()}


def match_of(model: TinyModel, headers: Headers) -> Matched:
    specs = weight_slices(model_config(model), Sharding(), Role.MONO, rank=0)
    return match(headers.values(), specs)


def refuse(change: Change, pattern: str, *, form: Form, model: TinyModel = MODEL) -> None:
    headers = headers_of(model, form)
    change(headers)
    with pytest.raises(CheckpointError, match=pattern) as caught:
        match_of(model, headers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("architecture", ["qwen3_moe", "qwen3"])
def test_every_released_form_fills_every_parameter(form: Form, architecture: str) -> None:
    model = TinyModel(architecture=architecture, num_layers=2, num_experts=4)
    headers = headers_of(model, form)
    matched = match_of(model, headers)
    used = [source.header.name for parts in matched.sources.values() for source in parts]
    aside = [tensor.name for tensor in (*matched.ignored, *matched.mtp)]
    assert sorted(used + aside) == sorted(headers)
    specs = weight_slices(model_config(model), Sharding(), Role.MONO, rank=0)
    assert {spec.name for spec in specs} == matched.sources.keys()


def test_tied_head_saved_as_well_is_set_aside() -> None:
    model = TinyModel(num_layers=1, num_experts=4, tie_word_embeddings=True)
    matched = match_of(model, headers_of(model, Form(tied_head=True)))
    assert matched.tied_head is not None
    assert match_of(model, headers_of(model, Form())).tied_head is None


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        (
            "model.layers.0.mlp.experts.3.up_proj.weight",
            r"experts\.3\.up_proj\.weight \(or the fused .*gate_up_proj\) is in none of the "
            r"files: expected 4 experts by config\.json",
        ),
        (
            "model.layers.1.mlp.down_proj.weight",
            r"is in none of the files: expected shape \[64, 128\] by config\.json; a file",
        ),
        ("lm_head.weight", r"lm_head\.weight is in none .*\(tie_word_embeddings is false\)"),
    ],
)
def test_missing_tensor_is_named(name: str, pattern: str) -> None:
    refuse(lambda headers: headers.pop(name) and None, pattern, form=Form())


def test_missing_fused_tensor_is_named() -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    refuse(
        lambda headers: headers.pop(name) and None,
        re.escape(f"(or the fused {name}) is in none of the files"),
        form=Form(experts="fused"),
    )


def put(name: str, shape: tuple[int, ...], dtype: str = "F32") -> Change:
    def change(headers: Headers) -> None:
        headers[name] = header(name, shape, dtype)

    return change


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (
            put("model.layers.0.self_attn.sinks", (8,)),
            r"m\.safetensors: model\.layers\.0\.self_attn\.sinks: no parameter of this model",
        ),
        (put("model.layers.2.input_layernorm.weight", (64,)), "no parameter of this model"),
        (
            put("model.layers.0.self_attn.q_proj.weight", (64, 64)),
            r"q_proj\.weight: expected shape \[128, 64\] by config\.json, came \[64, 64\]",
        ),
        (
            put("model.layers.0.mlp.experts.0.gate_proj.weight", (64, 32)),
            r"expected shape \[64, 64\] by config\.json, came \[64, 32\]",
        ),
        (
            put("model.layers.0.mlp.experts.4.gate_proj.weight", (64, 64)),
            r"experts\.4\.gate_proj\.weight: config\.json has 4 experts \(0 to 3\)",
        ),
        (
            put("model.norm.weight", (64,), "F64"),
            r"model\.norm\.weight: expected BF16, F16, F32, came F64: convert",
        ),
        (
            put("model.layers.0.self_attn.q_proj.weight", (128, 64), "F8_E4M3"),
            r"q_proj\.weight \(F8_E4M3\) belongs to a quantized checkpoint \(FP8\)",
        ),
        (
            put("model.layers.0.self_attn.q_proj.weight_scale_inv", (1, 1)),
            r"belongs to a quantized checkpoint \(block FP8\), which is not here yet: use the",
        ),
        (
            put("model.language_model.norm.weight", (64,)),
            r"model\.language_model\.norm\.weight fills model\.norm\.weight, which "
            r"model\.norm\.weight in m\.safetensors fills already",
        ),
        (
            put("model.layers.0.mlp.experts.down_proj", (4, 64, 64)),
            r"experts\.down_proj fills .*experts\.0\.down_proj\.weight in .* fills already",
        ),
    ],
)
def test_tensor_that_does_not_fit_is_refused(change: Change, pattern: str) -> None:
    refuse(change, pattern, form=Form())


def test_per_expert_tensor_beside_fused_ones_is_refused() -> None:
    refuse(
        put("model.layers.0.mlp.experts.1.up_proj.weight", (64, 64)),
        r"experts\.1\.up_proj\.weight fills .*gate_up_proj, which .* fills already",
        form=Form(experts="fused"),
    )


def test_tied_head_of_another_shape_is_refused() -> None:
    model = TinyModel(num_layers=1, num_experts=4, tie_word_embeddings=True)
    refuse(put("lm_head.weight", (4, 64)), "expected shape", form=Form(), model=model)
