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


def test_a_chunk_writes_its_own_slots_and_reads_no_others(backend: DeviceBackend) -> None:
    expected = backend.run([_row(3, 0, 20, [1, 2])])
    for pool in backend._pools:
        pool.fill_(torch.nan)
    logits = backend.run([_row(3, 0, 20, [6, 3])])
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    for pool in backend._pools:
        written_NS = pool.isfinite().all(-1).all(0).all(0)
        assert written_NS.sum() == 20
        assert written_NS[6].all()
        assert written_NS[3, :4].all()


def test_a_sequence_does_not_depend_on_who_stands_beside_it(backend: DeviceBackend) -> None:
    rows = [_row(first, 0, 9, [first]) for first in (1, 2, 3)]
    together = backend.run(rows)
    neighbours = [rows[0], _row(5, 0, 9, [5]), _row(6, 0, 9, [6])]
    # The plain experts multiply as many rows as an expert has, which may round in another way.
    torch.testing.assert_close(backend.run(neighbours)[0], together[0], rtol=1e-5, atol=1e-5)


def test_only_rows_that_want_logits_get_them_in_their_order(backend: DeviceBackend) -> None:
    rows = [_row(3, 0, 5, [1]), _row(4, 0, 1, [2]), _row(5, 0, 16, [4])]
    every = backend.run(rows)
    rows[1] = Row(token_ids=rows[1].token_ids, start=0, block_ids=[2], wants_logits=False)
    torch.testing.assert_close(backend.run(rows), every[[0, 2]], rtol=1e-5, atol=1e-5)
