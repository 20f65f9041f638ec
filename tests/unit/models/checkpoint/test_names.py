"""Names of files against canonical parameters."""

from __future__ import annotations

import pytest

from headrace.models.checkpoint.names import Kind, Part, place, quantization_of


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model.", ""])
def test_every_prefix_leads_to_the_same_parameter(prefix: str) -> None:
    for tail in ("layers.3.self_attn.q_proj.weight", "embed_tokens.weight", "norm.weight"):
        where = place(prefix + tail)
        assert (where.kind, where.parameter) == (Kind.PARAMETER, "model." + tail)
        assert where.part is Part.WHOLE


@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight"])
def test_head_keeps_its_name(name: str) -> None:
    assert place(name).parameter == "lm_head.weight"


@pytest.mark.parametrize(
    ("part", "fused"),
    [("gate", "gate_up_proj"), ("up", "gate_up_proj"), ("down", "down_proj")],
)
def test_an_experts_tensor_is_part_of_the_fused_parameter(part: str, fused: str) -> None:
    where = place(f"model.layers.1.mlp.experts.12.{part}_proj.weight")
    assert where.parameter == f"model.layers.1.mlp.experts.{fused}"
    assert (where.expert, where.part) == (12, Part(part))


def test_fused_experts_and_dense_mlp_are_whole_parameters() -> None:
    for name in ("model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.up_proj.weight"):
        assert place(name).parameter == name
        assert place(name).part is Part.WHOLE


def test_rotary_tables_and_draft_layers_are_set_aside() -> None:
    assert place("model.layers.0.self_attn.rotary_emb.inv_freq").kind is Kind.IGNORABLE
    assert place("mtp.layers.0.mlp.experts.0.up_proj.weight").kind is Kind.MTP
    assert place("model.mtp.norm.weight").kind is Kind.MTP


@pytest.mark.parametrize(
    ("name", "dtype", "scheme"),
    [
        ("x.weight", "F8_E4M3", "FP8"),
        ("x.weight_scale_inv", "F32", "block FP8"),
        ("x.qweight", "I32", "GPTQ or AWQ"),
        ("x.weight_packed", "U8", "4-bit"),
        ("x.experts.gate_up_proj_scales", "BF16", "MXFP4"),
        ("x.weight", "BF16", ""),
        ("model.layers.0.mlp.gate.weight", "F32", ""),
    ],
)
def test_quantized_tensors_betray_their_scheme(name: str, dtype: str, scheme: str) -> None:
    assert quantization_of(name, dtype) == scheme
