"""One layer of the reference library equals that layer inside the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from headrace.core.errors import CheckpointError
from headrace.models.checkpoint.folder import read_weight_files
from headrace.models.checkpoint.headers import TensorHeader
from headrace.models.reference_library import (
    head_logits,
    open_reference,
    read_rows,
    read_tensor,
)
from tests.support.checkpoints import Form, TinyModel, write_checkpoint

MODEL = TinyModel(num_layers=3, num_experts=4, dense_layers=(1,))


@pytest.fixture
def headers(tmp_path: Path) -> dict[str, TensorHeader]:
    write_checkpoint(tmp_path, MODEL, Form(num_files=2))
    return {tensor.name: tensor for tensor in read_weight_files(tmp_path).tensors}


def of_layer(headers: dict[str, TensorHeader], layer: int) -> list[TensorHeader]:
    return [header for name, header in headers.items() if f".layers.{layer}." in name]


def test_layers_run_alone_make_the_whole_model(
    tmp_path: Path, headers: dict[str, TensorHeader]
) -> None:
    token_ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.inference_mode():
        want = whole(token_ids).logits[0]
    reference = open_reference(tmp_path, final_norm=headers["model.norm.weight"])
    embedding = headers["model.embed_tokens.weight"]
    x_TH = torch.cat([read_rows(embedding, slice(t, t + 1)) for t in token_ids[0].tolist()])
    for layer in range(3):
        x_TH = reference.run_layer(x_TH, of_layer(headers, layer), is_moe=layer != 1)
    normed_TH = reference.norm(x_TH)
    halves = [head_logits(normed_TH, headers["lm_head.weight"], rows) for rows in HALVES]
    assert torch.allclose(torch.cat(halves, dim=1), want, rtol=0, atol=1e-6)


HALVES = (slice(0, 144), slice(144, 288))


def test_progress_bars_are_left_as_they_were(
    tmp_path: Path, headers: dict[str, TensorHeader]
) -> None:
    reference = open_reference(tmp_path, final_norm=headers["model.norm.weight"])
    was_enabled = logging.is_progress_bar_enabled()
    reference.norm(torch.ones(1, 64))
    assert logging.is_progress_bar_enabled() is was_enabled


def test_tensor_that_the_library_misses_is_named(
    tmp_path: Path, headers: dict[str, TensorHeader]
) -> None:
    reference = open_reference(tmp_path, final_norm=headers["model.norm.weight"])
    some = [h for h in of_layer(headers, 0) if "q_norm" not in h.name]
    with pytest.raises(CheckpointError, match=r"missing_keys in a layer: .*q_norm"):
        reference.run_layer(torch.ones(2, 64), some, is_moe=True)


def test_tensors_are_read_as_fp32(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path, TinyModel(num_layers=1, num_experts=4, dtype="bfloat16"))
    headers = {tensor.name: tensor for tensor in read_weight_files(tmp_path).tensors}
    name = "lm_head.weight"
    assert torch.equal(read_tensor(headers[name]), weights[name].float())
    assert torch.equal(read_rows(headers[name], slice(3, 9)), weights[name][3:9].float())
