"""Chunks side by side are what they are alone."""

import pytest
import torch

from headrace.engine.backend import Row
from headrace.engine.device.backend import DeviceBackend


def _row(first: int, start: int, stop: int, blocks: list[int]) -> Row:
    tokens = [(first + 11 * index) % 250 for index in range(start, stop)]
    return Row(token_ids=tokens, start=start, block_ids=blocks, wants_logits=True)


def test_sequences_of_a_step_do_not_meet(backend: DeviceBackend) -> None:
    one, two = _row(3, 0, 20, [1, 2]), _row(90, 0, 7, [4])
    alone = torch.cat([backend.run([one]), backend.run([two])])
    torch.testing.assert_close(backend.run([one, two]), alone, rtol=1e-5, atol=1e-5)


def test_layers_are_reported_in_order_once_their_kv_is_enqueued(backend: DeviceBackend) -> None:
    layers: list[int] = []
    backend.run([_row(3, 0, 5, [1])], on_layer=layers.append)
    assert layers == [0, 1]


@pytest.mark.parametrize("stop", [15, 16, 17, 32])
def test_chunks_end_anywhere_in_a_block(backend: DeviceBackend, stop: int) -> None:
    whole = backend.run([_row(3, 0, stop, [1, 2])])
    backend.run([_row(3, 0, stop - 4, [5, 6])])
    part = backend.run([_row(3, stop - 4, stop, [5, 6])])
    torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-5)
