"""The plain torch path is the reference library's, whatever shares a batch with a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.folder import read_config
from headrace.models.checkpoint.load import load_weights
from headrace.models.config import ModelConfig
from headrace.models.slices import weight_slices
from headrace.models.teacher import Lesson, teacher_logits
from tests.support.checkpoints import TinyModel, write_checkpoint

TOKENS = [(index * 37) % 250 for index in range(23)]
OTHERS = [(index * 11) % 250 for index in range(9)]


@pytest.fixture(scope="module", params=["experts", "a dense layer"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    dense = (1,) if request.param == "a dense layer" else ()
    write_checkpoint(path, TinyModel(num_layers=2, dense_layers=dense))
    return path


def read(folder: Path) -> tuple[dict[str, Tensor], ModelConfig]:
    config = read_config(folder)
    specs = weight_slices(config, Sharding(), Role.MONO, rank=0)
    return load_weights(folder, specs, dtype=torch.float32), config


def test_logits_are_the_reference_librarys(folder: Path) -> None:
    tensors, config = read(folder)
    lesson = Lesson(token_ids=TOKENS, first=5)
    (logits_LV,) = teacher_logits(tensors, config, [lesson], dtype=torch.float64)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected_TV = model(torch.tensor([TOKENS])).logits[0]
    assert logits_LV.dtype is torch.float64
    assert (logits_LV - expected_TV[5:]).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sequences_of_a_batch_do_not_meet(folder: Path, dtype: torch.dtype) -> None:
    tensors, config = read(folder)
    lessons = [Lesson(token_ids=OTHERS, first=8), Lesson(token_ids=TOKENS, first=0)]
    together = teacher_logits(tensors, config, lessons, dtype=dtype)
    for lesson, logits_LV in zip(lessons, together, strict=True):
        (alone_LV,) = teacher_logits(tensors, config, [lesson], dtype=dtype)
        assert (logits_LV - alone_LV).abs().max() < 1e-5


def test_a_narrow_dtype_is_further_off(folder: Path) -> None:
    tensors, config = read(folder)
    lesson = [Lesson(token_ids=TOKENS, first=0)]
    exact, fp32, bf16 = (
        teacher_logits(tensors, config, lesson, dtype=dtype)[0]
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    )
    assert 0 < (fp32 - exact).abs().max() < (bf16 - exact).abs().max()


def test_what_a_cache_rounds_is_seen_in_logits(folder: Path) -> None:
    tensors, config = read(folder)
    lesson = [Lesson(token_ids=TOKENS, first=0)]
    exact, kept = (
        teacher_logits(tensors, config, lesson, dtype=torch.float64, kv_dtype=kv_dtype)[0]
        for kv_dtype in (None, torch.float8_e4m3fn)
    )
    assert 1e-4 < (kept - exact).abs().max() < exact.abs().max()
