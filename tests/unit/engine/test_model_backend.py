"""Rows in, logits out, KV where the blocks say: the real model behind the backend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.comm.group import SingleGroup
from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout
from headrace.core.sharding import Role
from headrace.engine.backend import Row
from headrace.engine.load import load_backend
from headrace.engine.model_backend import ModelBackend
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.engine_specs import make_spec

PROMPT = [(index * 37) % 250 for index in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    write_checkpoint(path, TinyModel(num_layers=2), tokenizer=True)
    return path


def make(folder: Path, block_size: int = 16) -> ModelBackend:
    engine = EngineConfig(block_size=block_size)
    spec = make_spec(folder, folder, Role.MONO, engine=engine)
    progress: list[tuple[int, int]] = []
    loaded = load_backend(spec, SingleGroup(), lambda *step: progress.append(step))
    assert progress[0][0] == 0
    assert progress[-1][0] == progress[-1][1] > 0
    backend = loaded.backend
    assert isinstance(backend, ModelBackend)
    layout = CacheLayout(
        layers=backend.schemas, first_head=0, num_heads=4, num_blocks=8, block_size=block_size
    )
    backend.attach(memoryview(bytearray(layout.num_bytes)), num_blocks=8, block_size=block_size)
    return backend


def row(start: int, stop: int, blocks: list[int], *, wants_logits: bool = False) -> Row:
    return Row(
        token_ids=PROMPT[start:stop], start=start, block_ids=blocks, wants_logits=wants_logits
    )


def test_chunks_blocks_and_neighbours_do_not_change_a_bit(folder: Path) -> None:
    whole, pieces = make(folder, 16), make(folder, 32)
    whole.run([row(0, 39, [0, 1, 2])])
    expected = whole.run([row(39, 40, [0, 1, 2], wants_logits=True)])
    pieces.run([row(0, 7, [5, 3]), row(0, 20, [6, 1])])
    pieces.run([row(7, 39, [5, 3])])
    got = pieces.run([row(20, 30, [6, 1]), row(39, 40, [5, 3], wants_logits=True)])
    assert torch.equal(expected, got)
    assert whole.kv_digests([0, 1, 2], 40) == pieces.kv_digests([5, 3], 40)


def test_layers_are_reported_in_order_once_their_kv_is_written(folder: Path) -> None:
    backend = make(folder)
    digests = []
    backend.run(
        [row(0, 16, [4])],
        on_layer=lambda layer: digests.append((layer, backend.kv_digests([4], 16)[layer])),
    )
    assert digests == list(enumerate(backend.kv_digests([4], 16)))


def test_a_copied_block_continues_like_the_original(folder: Path) -> None:
    backend = make(folder)
    backend.run([row(0, 10, [0])])
    backend.copy_block(0, 7)
    logits = [backend.run([row(10, 11, [block], wants_logits=True)]) for block in (0, 7)]
    assert torch.equal(*logits)


def test_a_step_without_rows_yields_no_logits(folder: Path) -> None:
    backend = make(folder)
    assert backend.run([]).shape == (0, backend.vocab_size)


def test_a_step_of_few_tokens_gives_torch_its_threads_back(folder: Path) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        backend = make(folder)
        backend.run([row(0, 5, [3], wants_logits=True)])
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="blocks"):
            backend.run([row(0, 20, [3])])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
