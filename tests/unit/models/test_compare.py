"""Layer-by-layer comparison: equal where all is well, and the wrong stage named where not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headrace.core.errors import ConfigError
from headrace.models.checkpoint.load import Checkpoint
from headrace.models.checkpoint.match import EMBEDDING
from headrace.models.compare import CompareReport, Gap, compare_with_transformers
from headrace.models.slices import ParameterSpec
from tests.support.checkpoints import FORMS, TinyModel, write_checkpoint

PROMPT = [5, 100, 7, 7, 31, 200, 64, 5, 1, 90, 17, 3, 250, 8, 44, 12, 99]

MODELS = {
    "moe": (TinyModel(num_layers=2, num_experts=4), "sharded"),
    "moe-bf16-yarn": (
        TinyModel(
            num_layers=2,
            num_experts=4,
            dense_layers=(1,),
            dtype="bfloat16",
            yarn_factor=4.0,
            norm_topk_prob=False,
        ),
        "new-keys",
    ),
    "moe-prefix": (TinyModel(num_layers=1, num_experts=4, attention_bias=True), "vision-prefix"),
    "dense-tied": (
        TinyModel(architecture="qwen3", num_layers=2, tie_word_embeddings=True),
        "released",
    ),
}


@pytest.mark.parametrize(("model", "form"), MODELS.values(), ids=MODELS.keys())
def test_released_forms_compute_what_the_reference_library_computes(
    tmp_path: Path, model: TinyModel, form: str
) -> None:
    write_checkpoint(tmp_path, model, FORMS[form])
    seen: list[Gap] = []
    report = compare_with_transformers(tmp_path, PROMPT, on_stage=seen.append)
    stages = ["embedding", *(f"layer {i}" for i in range(model.num_layers)), "head"]
    assert [gap.stage for gap in report.gaps] == stages
    assert tuple(seen) == report.gaps
    assert report.is_equal
    assert max(gap.max_rel for gap in report.gaps) < 1e-5
    assert report.max_logit_gap < 1e-4
    assert report.num_top1_equal == report.num_tokens == len(PROMPT)
    assert report.format().endswith("EQUAL in every stage")


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("model.layers.1.self_attn.v_proj.weight", "layer 1"),
        ("model.layers.0.mlp.experts.down_proj", "layer 0"),
        (EMBEDDING, "embedding"),
        ("model.norm.weight", "head"),
        ("lm_head.weight", "head"),
    ],
)
def test_a_misread_parameter_is_found_in_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stage: str
) -> None:
    write_checkpoint(tmp_path, TinyModel(num_layers=2, num_experts=4))
    read = Checkpoint.read

    def misread(self: Checkpoint, spec: ParameterSpec, *, dtype: torch.dtype) -> Tensor:
        values = read(self, spec, dtype=dtype)
        return values * 1.1 if spec.name == name else values

    monkeypatch.setattr(Checkpoint, "read", misread)
    report = compare_with_transformers(tmp_path, PROMPT)
    assert [gap.stage for gap in report.gaps if not gap.is_equal] == [stage]
    assert report.format().endswith(f"DIFFERENT from {stage} on")


def test_nan_counts_as_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, TinyModel(num_layers=1, num_experts=4))
    read = Checkpoint.read

    def misread(self: Checkpoint, spec: ParameterSpec, *, dtype: torch.dtype) -> Tensor:
        values = read(self, spec, dtype=dtype)
        return values * float("nan") if spec.name == "model.norm.weight" else values

    monkeypatch.setattr(Checkpoint, "read", misread)
    report = compare_with_transformers(tmp_path, PROMPT)
    assert report.gaps[-1].num_off == len(PROMPT)
    assert not report.is_equal


def test_few_tokens_at_a_gate_tie_are_told_apart() -> None:
    tie = Gap(stage="layer 3", max_abs=0.5, max_rel=0.2, num_off=1, num_allowed=1)
    wrong = Gap(stage="layer 4", max_abs=0.5, max_rel=0.2, num_off=2, num_allowed=1)
    assert tie.format().endswith("equal but for 1 tokens at a tie of the gate")
    assert wrong.format().endswith("DIFFERENT in 2 tokens")
    report = CompareReport(gaps=(tie, wrong), num_tokens=9, max_logit_gap=1.0, num_top1_equal=8)
    assert not report.is_equal
    assert "DIFFERENT from layer 4 on" in report.format()


@pytest.mark.parametrize("prompt", [[], [288], [-1]])
def test_prompt_outside_the_vocabulary_is_refused(tmp_path: Path, prompt: list[int]) -> None:
    write_checkpoint(tmp_path, TinyModel(num_layers=1, num_experts=4))
    with pytest.raises(ConfigError, match="expected at least one, all under 288"):
        compare_with_transformers(tmp_path, prompt)


def test_missing_library_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, TinyModel(num_layers=1, num_experts=4))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="not installed; pip install 'transformers>=5'"):
        compare_with_transformers(tmp_path, PROMPT)
