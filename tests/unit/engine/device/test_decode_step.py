"""Rows of a decode step change places, grow and stay themselves."""

import numpy as np
import pytest
import torch

from headrace.core.requests import SamplingParams
from headrace.engine.backend import Row
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.decode_step import DecodeStep, padded_sizes
from headrace.kernels.sampling.device_settings import DeviceRow


def greedy(step: DecodeStep, count: int, position: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=9)
    row = DeviceRow.of(params, seed=0, vocab_size=step.sampling.vocab_size)
    step.sampling.update([row] * count, positions=[position + 1] * count)


def play(backend: DeviceBackend, rows: list[int], swap_at: int | None) -> dict[int, list[int]]:
    """Decode rows that begin with their own number; swap two of them on the way."""
    step = backend.make_decode_step(max_rows=4, max_tokens=64)
    order, drawn = list(rows), {row: [] for row in rows}
    tables = np.array([[row, 7 - row, 0, 0] for row in order], dtype=np.int32)
    greedy(step, len(order), 0)
    step.set_rows(
        sources=[-1] * len(order), token_ids=order, positions=[0] * len(order), tables=tables
    )
    for turn in range(5):
        if turn == swap_at:
            order[0], order[1] = order[1], order[0]
            tables = np.array([[row, 7 - row, 0, 0] for row in order], dtype=np.int32)
            step.set_rows(
                sources=[1, 0, *range(2, len(order))],
                token_ids=[0] * len(order),
                positions=[turn] * len(order),
                tables=tables,
            )
        step.run(len(order))
        for place, row in enumerate(order):
            drawn[row].append(int(step.sampled.token_ids_B[place]))
    return drawn


def test_rows_that_change_places_take_their_tokens_along(backend: DeviceBackend) -> None:
    assert play(backend, [1, 2, 3], swap_at=2) == play(backend, [1, 2, 3], swap_at=None)


def test_a_row_draws_the_same_beside_others_and_alone(backend: DeviceBackend) -> None:
    together = play(backend, [1, 2, 3], swap_at=None)
    assert {row: play(backend, [row], swap_at=None)[row] for row in (1, 2, 3)} == together


@pytest.mark.parametrize("most", [1, 2, 3, 33, 128, 129, 256, 300])
def test_padded_sizes_reach_the_most_rows_and_grow(most: int) -> None:
    sizes = padded_sizes(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] >= most
    assert len(sizes) == 1 or sizes[-2] < most


def test_the_capacity_is_a_size_of_its_own(backend: DeviceBackend) -> None:
    step = backend.make_decode_step(max_rows=3, max_tokens=64)
    assert step.sizes == (1, 2, 3)
    assert [step.padded(rows) for rows in (1, 2, 3)] == [1, 2, 3]


def chunk(first: int, count: int, block: int) -> Row:
    tokens = [(first + 11 * index) % 250 for index in range(count)]
    return Row(token_ids=tokens, start=0, block_ids=[block, block + 1], wants_logits=True)


@pytest.mark.parametrize("count", [1, 15, 16, 17])
def test_a_step_goes_on_where_a_prefill_ended(backend: DeviceBackend, count: int) -> None:
    whole = chunk(3, count + 1, 1)
    expected = backend.run([whole])[0]
    backend.run([chunk(3, count, 4)])
    step = backend.make_decode_step(max_rows=2, max_tokens=64)
    greedy(step, 1, count)
    tables = np.array([[4, 5, 0, 0]], dtype=np.int32)
    step.set_rows(sources=[-1], token_ids=[whole.token_ids[-1]], positions=[count], tables=tables)
    sampled = step.run(1)
    torch.testing.assert_close(step.logits(1)[0], expected, rtol=1e-5, atol=1e-5)
    assert int(sampled.token_ids_B[0]) == int(expected.argmax())


def test_padding_writes_nothing_and_reads_no_garbage(backend: DeviceBackend) -> None:
    step = backend.make_decode_step(max_rows=4, max_tokens=64)
    for pool in backend._pools:
        pool.fill_(torch.nan)
    # Rows of an earlier step stay behind in the buffers, past the end of what they may touch.
    tables = np.array([[6, 6, 6, 6]] * 4, dtype=np.int32)
    step.set_rows(sources=[-1] * 4, token_ids=[9] * 4, positions=[40] * 4, tables=tables)
    greedy(step, 1, 0)
    step.set_rows(sources=[-1], token_ids=[3], positions=[0], tables=tables[:1] - 4)
    step.run(3)  # one real row at size 4
    assert step.logits(3)[0].isfinite().all()
    for pool in backend._pools:
        assert pool.isfinite().all(-1).all(0).all(0).nonzero().tolist() == [[2, 0]]
    assert step.positions_B.tolist() == [1, 40, 40, 40]


def test_rows_without_padding_fill_every_place(backend: DeviceBackend) -> None:
    rows = [1, 2, 3, 5]
    drawn = play(backend, rows, swap_at=3)
    assert drawn == play(backend, rows, swap_at=None)
    assert {len(tokens) for tokens in drawn.values()} == {5}


def test_new_neighbours_change_nothing_for_a_row(backend: DeviceBackend) -> None:
    first, second = (play(backend, [1, *others], swap_at=None) for others in ([2, 3], [6, 5]))
    assert first[1] == second[1]
