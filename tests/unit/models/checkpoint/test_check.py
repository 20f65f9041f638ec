"""The report of ``load --check``; the reference library reads and writes the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.core.errors import CheckpointError
from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.check import check_checkpoint
from headrace.models.checkpoint.load import load_weights
from headrace.models.slices import weight_slices
from tests.support.checkpoints import (
    FORMS,
    IM_END,
    Form,
    TinyModel,
    config_json,
    file_tensors,
    model_config,
    random_weights,
    write_checkpoint,
    write_tensors,
)

MODEL = TinyModel(num_layers=2, num_experts=4, dense_layers=(0,), dtype="bfloat16")


def test_report_counts_what_the_folder_holds(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path, MODEL, Form(num_files=2, mtp="separate"), tokenizer=True)
    report = check_checkpoint(tmp_path)
    assert report.num_parameters == sum(values.numel() for values in weights.values())
    assert report.num_bytes == 2 * report.num_parameters
    assert (report.num_files, report.num_mtp, report.num_ignored) == (2, 3, 0)
    assert report.dtypes == {"BF16": report.num_tensors}
    idle = sum(v.numel() // 2 for name, v in weights.items() if ".experts." in name)
    assert report.num_active_parameters == report.num_parameters - idle
    assert report.kv_bytes_per_token == 2 * 2 * 4 * 16 * 2
    assert report.eos_token_ids == (258, 256)
    assert not report.is_deep


def test_report_reads_as_text(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MODEL, Form(num_files=2, mtp="inside", rotary_tables=True))
    lines = check_checkpoint(tmp_path, deep=True).format().splitlines()
    text = {line[:12].strip(): line[14:] for line in lines[:-1]}
    assert text["architecture"] == "qwen3_moe"
    assert text["layers"] == "2, 1 of them dense"
    assert text["experts"] == "4, top 2 of width 64"
    assert text["vocabulary"] == f"288 tokens, ends at [{IM_END}]"
    assert text["KV cache"] == "512 bytes per token"
    assert text["skipped"] == "3 tensors of the multi-token-prediction layer, 1 rotary tables"
    assert text["values"] == "all finite"
    assert lines[-1] == "OK: every tensor used once, every parameter filled once"


def test_dense_model_is_reported_without_experts(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TinyModel(architecture="qwen3", num_layers=1))
    report = check_checkpoint(tmp_path)
    assert report.num_active_parameters == report.num_parameters
    assert "none (dense)" in report.format()
    assert "skipped" not in report.format()


def test_only_a_deep_check_reads_values(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MODEL)
    tensors = file_tensors(random_weights(MODEL))
    tensors["model.layers.1.mlp.experts.3.up_proj.weight"][0, 0] = float("inf")
    write_tensors(tmp_path, tensors)
    check_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"experts\.3\.up_proj\.weight: 1 of 4096 values"):
        check_checkpoint(tmp_path, deep=True)


def test_deep_check_compares_a_saved_tied_head(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1, num_experts=4, tie_word_embeddings=True)
    write_checkpoint(tmp_path, model, Form(tied_head=True))
    assert "a copy of the tied head" in check_checkpoint(tmp_path, deep=True).format()
    tensors = file_tensors(random_weights(model), Form(tied_head=True))
    tensors["lm_head.weight"][-1, -1] += 1
    write_tensors(tmp_path, tensors)
    with pytest.raises(CheckpointError, match="differs"):
        check_checkpoint(tmp_path, deep=True)


def test_deep_check_reports_progress_to_the_end(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MODEL)
    calls: list[tuple[int, int]] = []
    report = check_checkpoint(tmp_path, deep=True, on_progress=lambda *bytes_: calls.append(bytes_))
    assert calls[-1] == (report.num_bytes, report.num_bytes)


@pytest.mark.parametrize("architecture", ["qwen3_moe", "qwen3"])
def test_what_the_reference_library_saves_loads(tmp_path: Path, architecture: str) -> None:
    model = TinyModel(architecture=architecture, num_layers=2, num_experts=4)
    data = config_json(model)
    config = AutoConfig.for_model(data.pop("model_type"), **data)
    reference = AutoModelForCausalLM.from_config(config)
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert check_checkpoint(tmp_path, deep=True).num_files > 1
    specs = weight_slices(model_config(model), Sharding(), Role.MONO, rank=0)
    came = load_weights(tmp_path, specs, dtype=torch.float32)
    want = reference.state_dict()
    assert came.keys() == want.keys()
    assert all(torch.equal(came[name], want[name]) for name in want)


# The reference library strips a vision model's prefix for vision models only.
READ_BY_REFERENCE = {name: form for name, form in FORMS.items() if name != "vision-prefix"}


@pytest.mark.parametrize("form", READ_BY_REFERENCE.values(), ids=READ_BY_REFERENCE.keys())
def test_the_reference_library_loads_what_the_builder_writes(tmp_path: Path, form: Form) -> None:
    model = TinyModel(num_layers=1, num_experts=4)
    want = write_checkpoint(tmp_path, model, form)
    reference, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    came = reference.state_dict()
    assert all(torch.equal(came[name], values) for name, values in want.items())
