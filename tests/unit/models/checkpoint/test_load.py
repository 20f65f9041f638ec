"""Reading weights: every sharding's slices rebuild the whole, only a rank's bytes are read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headrace.core.errors import CheckpointError
from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.load import load_weights, open_checkpoint
from headrace.models.slices import ParameterSpec, weight_slices
from tests.support.checkpoints import (
    FORMS,
    Form,
    TinyModel,
    file_tensors,
    model_config,
    random_weights,
    write_checkpoint,
    write_tensors,
)

MODEL = TinyModel(num_layers=2, dense_layers=(1,))
SHARDINGS = [
    (Role.PREFILL, Sharding(tp=tp, ep=ep)) for tp in (1, 2, 4) for ep in (1, 2, 4) if ep <= tp
] + [(Role.DECODE, Sharding(dp=n, ep=n)) for n in (1, 2, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_checkpoint(path, MODEL, Form(num_files=2))
    return path


def specs_of(
    model: TinyModel, role: Role = Role.MONO, rank: int = 0, **sizes: int
) -> tuple[ParameterSpec, ...]:
    return weight_slices(model_config(model), Sharding(**sizes), role, rank=rank)


def take(whole: Tensor, spec: ParameterSpec) -> Tensor:
    for axis, runs in spec.slices:
        whole = torch.cat([whole.narrow(axis, a, b - a) for a, b in runs], dim=axis)
    return whole


@pytest.mark.parametrize(("role", "sharding"), SHARDINGS, ids=lambda value: str(value))
def test_slices_of_all_ranks_cover_the_whole(folder: Path, role: Role, sharding: Sharding) -> None:
    full = random_weights(MODEL)
    num_covering = {name: torch.zeros(values.shape) for name, values in full.items()}
    is_split = dict.fromkeys(full, False)
    for rank in range(sharding.num_ranks):
        specs = weight_slices(model_config(MODEL), sharding, role, rank=rank)
        weights = load_weights(folder, specs, dtype=torch.float32)
        assert weights.keys() == full.keys()
        for spec in specs:
            assert weights[spec.name].is_contiguous()
            assert torch.equal(weights[spec.name], take(full[spec.name], spec))
            _mark(num_covering[spec.name], spec)
            is_split[spec.name] |= spec.local_shape != spec.shape
    for name, counts in num_covering.items():
        num_copies = 1 if is_split[name] else sharding.num_ranks
        assert bool((counts == num_copies).all()), name


def _mark(counts: Tensor, spec: ParameterSpec) -> None:
    indices = [torch.arange(size) for size in spec.shape]
    for axis, runs in spec.slices:
        indices[axis] = torch.cat([torch.arange(a, b) for a, b in runs])
    grid = torch.meshgrid(*indices, indexing="ij")
    counts[grid] += 1


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_released_form_gives_the_same_weights(tmp_path: Path, form: Form, dtype: str) -> None:
    model = TinyModel(num_layers=1, num_experts=4, dtype=dtype)
    want = write_checkpoint(tmp_path, model, form)
    came = load_weights(tmp_path, specs_of(model), dtype=getattr(torch, dtype))
    assert came.keys() == want.keys()
    for name, values in want.items():
        assert torch.equal(came[name], values), name


def test_values_are_rounded_to_the_engines_dtype(folder: Path) -> None:
    full = random_weights(MODEL)
    for name, values in load_weights(folder, specs_of(MODEL), dtype=torch.bfloat16).items():
        assert torch.equal(values, full[name].to(torch.bfloat16))


def test_dense_model_loads(tmp_path: Path) -> None:
    model = TinyModel(architecture="qwen3", num_layers=1, attention_bias=True)
    want = write_checkpoint(tmp_path, model)
    for rank in range(2):
        specs = specs_of(model, Role.PREFILL, rank, tp=2)
        came = load_weights(tmp_path, specs, dtype=torch.float32)
        assert all(torch.equal(came[spec.name], take(want[spec.name], spec)) for spec in specs)


def test_progress_counts_exactly_the_ranks_own_bytes(folder: Path) -> None:
    specs = specs_of(MODEL, Role.PREFILL, 1, tp=4, ep=2)
    calls: list[tuple[int, int]] = []
    load_weights(
        folder, specs, dtype=torch.float32, on_progress=lambda *bytes_: calls.append(bytes_)
    )
    own = sum(4 * torch.Size(spec.local_shape).numel() for spec in specs)
    assert calls[0] == (0, own)
    assert calls[-1] == (own, own)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    whole = sum(4 * torch.Size(spec.shape).numel() for spec in specs)
    replicated = sum(4 * torch.Size(spec.shape).numel() for spec in specs if not spec.slices)
    assert own == replicated + (whole - replicated) // 4


def test_draft_layer_is_named_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = TinyModel(num_layers=1, num_experts=4)
    write_checkpoint(tmp_path, model, Form(mtp="separate"))
    with caplog.at_level(logging.INFO):
        load_weights(tmp_path, specs_of(model), dtype=torch.float32)
    (line,) = caplog.messages
    assert "skipping 3 tensors of the multi-token-prediction layer" in line
    assert "mtp.safetensors" in line


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weight_is_refused_by_name(tmp_path: Path, value: float) -> None:
    model = TinyModel(num_layers=1, num_experts=4)
    write_checkpoint(tmp_path, model)
    tensors = file_tensors(random_weights(model))
    name = "model.layers.0.mlp.experts.2.down_proj.weight"
    tensors[name][3, 5] = value
    write_tensors(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=f"{name}: 1 of 4096 values read are NaN"):
        load_weights(tmp_path, specs_of(model), dtype=torch.float32)


def test_non_finite_weight_of_another_rank_is_that_ranks_to_find(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1, num_experts=4)
    write_checkpoint(tmp_path, model)
    tensors = file_tensors(random_weights(model))
    tensors["model.layers.0.mlp.experts.2.down_proj.weight"][3, 5] = float("nan")
    write_tensors(tmp_path, tensors)
    first, second = (specs_of(model, Role.DECODE, rank, dp=2, ep=2) for rank in range(2))
    load_weights(tmp_path, first, dtype=torch.float32)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        load_weights(tmp_path, second, dtype=torch.float32)


def test_saved_tied_head_must_equal_the_embedding(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1, num_experts=4, tie_word_embeddings=True)
    write_checkpoint(tmp_path, model, Form(tied_head=True))
    assert "lm_head.weight" not in load_weights(tmp_path, specs_of(model), dtype=torch.float32)
    tensors = file_tensors(random_weights(model), Form(tied_head=True))
    tensors["lm_head.weight"][0, 0] += 1
    write_tensors(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from .*ties it"):
        load_weights(tmp_path, specs_of(model), dtype=torch.float32)


def test_headers_are_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1, num_experts=4)
    write_checkpoint(tmp_path, model)
    tensors = file_tensors(random_weights(model))
    tensors["model.embed_tokens.weight"].fill_(float("nan"))
    del tensors["model.norm.weight"]
    write_tensors(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is in none of the files"):
        load_weights(tmp_path, specs_of(model), dtype=torch.float32)


def test_large_tensors_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyModel(num_layers=1, num_experts=4)
    want = write_checkpoint(tmp_path, model, Form(experts="fused"))
    monkeypatch.setattr("headrace.models.checkpoint.load._PART_ELEMENTS", 1000)
    checkpoint = open_checkpoint(tmp_path)
    for spec in specs_of(model):
        parts: list[int] = []
        came = checkpoint.read(spec, dtype=torch.float32, on_bytes=parts.append)
        assert torch.equal(came, want[spec.name])
        assert sum(parts) == checkpoint.num_bytes(spec) == came.nbytes
    assert max(parts) <= 4 * 1000 + 4 * 64
