"""Scripts are played as written, and KV shows which token stood where."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.core.errors import CheckpointError
from headrace.core.layouts import CacheLayout, KvSchema
from headrace.engine.backend import Row
from headrace.engine.replay import ReplayBackend, Script, load_scripts

LAYOUT = CacheLayout(
    layers=(KvSchema(num_kv_heads=2, head_dim=4, dtype="float32"),) * 2,
    first_head=0,
    num_heads=2,
    num_blocks=4,
    block_size=16,
)


def make(*scripts: Script) -> ReplayBackend:
    backend = ReplayBackend(
        scripts, vocab_size=300, eos_token_id=258, schemas=LAYOUT.layers, heads=range(2)
    )
    backend.attach(memoryview(bytearray(LAYOUT.num_bytes)), num_blocks=4, block_size=16)
    return backend


def decode(backend: ReplayBackend, prompt: list[int], index: int, ordinal: int = 0) -> int:
    """Return the token after ``index`` output tokens."""
    row = Row(
        token_ids=[7],
        start=len(prompt) - 1 + index,
        block_ids=[2, 0],
        wants_logits=True,
        num_prompt_tokens=len(prompt),
        ordinal=ordinal,
    )
    logits = backend.run([row])
    assert logits.shape == (1, 300)
    return int(logits.argmax())


def fill(backend: ReplayBackend, prompt: list[int]) -> None:
    row = Row(token_ids=prompt, start=0, block_ids=[2, 0], wants_logits=False)
    assert backend.run([row]).shape == (0, 300)


def test_requests_play_the_lines_in_turn_and_end_with_eos() -> None:
    backend = make(Script(tokens=[10, 11]), Script(tokens=[20]))
    assert [decode(backend, [1, 2], index) for index in range(3)] == [10, 11, 258]
    assert [decode(backend, [1, 2], index, ordinal=1) for index in range(2)] == [20, 258]
    assert decode(backend, [1, 2], 0, ordinal=2) == 10


def test_a_line_can_wait_for_its_prompt() -> None:
    backend = make(Script(tokens=[10]), Script(tokens=[99], match=[5, 6]))
    fill(backend, [5, 6, 8])
    assert decode(backend, [5, 6, 8, 7], 0) == 99
    fill(backend, [5, 7, 8])
    assert decode(backend, [5, 7, 8, 7], 0) == 10


def test_every_position_of_every_head_and_layer_holds_its_token() -> None:
    backend = make(Script(tokens=[1]))
    fill(backend, list(range(100, 120)))
    for cache in backend._caches:
        kv = cache[:, :, [2, 0]].flatten(2, 3)[:, :, :20]
        assert torch.equal(kv, torch.arange(100.0, 120.0)[None, None, :, None].expand_as(kv))


def test_blocks_are_copied_in_every_layer() -> None:
    backend = make(Script(tokens=[1]))
    fill(backend, list(range(100, 120)))
    backend.copy_block(2, 3)
    assert all(torch.equal(cache[:, :, 3], cache[:, :, 2]) for cache in backend._caches)
    assert backend.kv_digests([2], 16) == backend.kv_digests([3], 16)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no script"),
        ('{"tokens": "x"}\n', r":1: expected .*tokens"),
        ('{"tokens": [1]}\n{"tokns": [1]}\n', r":2: expected"),
        ('{"tokens": [299]}\n{"tokens": [5, 300]}\n', r":2: token 300: expected ids from 0 to 299"),
    ],
)
def test_bad_files_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "replay.jsonl"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=message):
        load_scripts(path, vocab_size=300)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such replay file"):
        load_scripts(tmp_path / "absent", vocab_size=300)


def test_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    path.write_text('{"tokens": [1]}\n\n{"tokens": [2], "match": [3]}\n')
    assert load_scripts(path, vocab_size=300) == [Script(tokens=[1]), Script(tokens=[2], match=[3])]
