"""The device decoder computes what the CPU decoder does, whichever way the tokens come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout
from headrace.engine.backend import Row
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.load import load_device
from headrace.models.checkpoint.folder import read_config
from tests.support.checkpoints import TinyModel, write_checkpoint

PROMPT = [(index * 37) % 250 for index in range(40)]


@pytest.fixture(scope="module", params=["experts", "a dense layer"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    dense = (1,) if request.param == "a dense layer" else ()
    write_checkpoint(path, TinyModel(num_layers=2, dense_layers=dense))
    return path


def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def open_backend(folder: Path) -> DeviceBackend:
    engine = EngineConfig(dtype="float32", exact=False)
    backend = load_device(folder, read_config(folder), engine, max_tokens=64)
    backend.allocate(
        CacheLayout(layers=backend.schemas, first_head=0, num_heads=4, num_blocks=8, block_size=16)
    )
    return backend


def run(backend: DeviceBackend, start: int, stop: int, *, wants_logits: bool = True):
    row = Row(
        token_ids=PROMPT[start:stop], start=start, block_ids=[5, 2, 7], wants_logits=wants_logits
    )
    return backend.run([row])


def test_logits_are_the_reference_librarys_however_the_prompt_is_cut(folder: Path) -> None:
    expected = reference_logits(folder, PROMPT)[-1]
    for cuts in ([0, 40], [0, 1, 17, 40], [0, 16, 32, 39, 40]):
        backend = open_backend(folder)
        for start, stop in zip(cuts, cuts[1:], strict=False):
            logits = run(backend, start, stop)
        assert (logits[0] - expected).abs().max() < 1e-4


def test_a_chunk_without_logits_writes_the_same_history(folder: Path) -> None:
    backend = open_backend(folder)
    assert run(backend, 0, 39, wants_logits=False).shape[0] == 0
    assert (run(backend, 39, 40)[0] - reference_logits(folder, PROMPT)[-1]).abs().max() < 1e-4


def test_decode_steps_continue_a_prefill(folder: Path) -> None:
    backend = open_backend(folder)
    run(backend, 0, 30, wants_logits=False)
    step = backend.make_decode_step(max_rows=3, max_tokens=64)
    expected = reference_logits(folder, PROMPT)
    for position in range(30, 34):
        step.set_rows(
            sources=[-1],
            token_ids=[PROMPT[position]],
            positions=[position],
            tables=np.array([[5, 2, 7, 0]], dtype=np.int32),
        )
        step.run(1)
        assert (step.logits(1)[0] - expected[position]).abs().max() < 1e-4


def test_padding_rows_write_nothing_and_disturb_nobody(folder: Path) -> None:
    backend = open_backend(folder)
    run(backend, 0, 30, wants_logits=False)
    before = [pool.clone() for pool in backend._pools]
    step = backend.make_decode_step(max_rows=4, max_tokens=64)
    tables = np.array([[5, 2, 7, 0]] * 3, dtype=np.int32)
    step.set_rows(sources=[-1] * 3, token_ids=[9] * 3, positions=[3, 4, 5], tables=tables)
    step.set_rows(sources=[-1], token_ids=[PROMPT[30]], positions=[30], tables=tables[:1])
    step.run(3)  # runs at size 4: three rows of padding
    slot = 30 % 16
    for old, new in zip(before, backend._pools, strict=True):
        changed = (old != new).any(-1).any(0).any(0)
        assert changed.nonzero().tolist() == [[2, slot]]
    assert (step.logits(3)[0] - reference_logits(folder, PROMPT)[30]).abs().max() < 1e-4


def test_no_rows_give_no_logits(folder: Path) -> None:
    assert open_backend(folder).run([]).shape == (0, read_config(folder).vocab_size)


def test_the_schema_is_the_configs(folder: Path) -> None:
    assert open_backend(folder).schemas == read_config(folder).cache_schema("float32")
    assert torch.float32 is open_backend(folder).decoder.weights.norm_H.dtype
