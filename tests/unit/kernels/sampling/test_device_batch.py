"""The resident batch: rewritten in place, padding after its rows."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling import device_settings as fields
from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch
from headrace.kernels.sampling.device_settings import DeviceRow, RowKind
from tests.support.kernels_sampling import TINY


def row(seed: int = 0, **options: Any) -> DeviceRow:
    return DeviceRow.of(SamplingParams(max_tokens=1, **options), seed=seed, vocab_size=50)


def batch_of(capacity: int = 4) -> DeviceSamplingBatch:
    return DeviceSamplingBatch.allocate(
        capacity, vocab_size=50, device="cpu", max_bias=4, knobs=TINY
    )


def test_an_update_keeps_every_address() -> None:
    batch = batch_of()
    before = [batch.settings_BW.data_ptr(), batch.bias_tokens_BM.data_ptr()]
    batch.update([row(), row(top_k=3)], positions=[5, 9])
    batch.update([row(logit_bias={3: 1.0})], positions=[6])
    assert [batch.settings_BW.data_ptr(), batch.bias_tokens_BM.data_ptr()] == before


def test_rows_that_left_are_padding() -> None:
    batch = batch_of()
    batch.update([row(), row(temperature=0.0), row(top_k=3)], positions=[5, 9, 2])
    batch.update([row(temperature=0.0)], positions=[10])
    kinds = batch.settings_BW[:, fields.KIND].tolist()
    assert kinds == [RowKind.GREEDY, RowKind.PADDING, RowKind.PADDING, RowKind.PADDING]
    assert batch.positions_B.tolist() == [10, 0, 0, 0]


def test_bias_lists_follow_their_rows() -> None:
    batch = batch_of()
    biased = row(logit_bias={7: 1.0, 3: -2.0})
    for rows in ([biased, row()], [row(), biased], [biased, biased]):
        batch.update(rows, positions=[1, 1])
        for i, each in enumerate(rows):
            n = int(batch.settings_BW[i, fields.NUM_BIAS])
            assert batch.bias_tokens_BM[i, :n].tolist() == each.bias_tokens.tolist()
            assert batch.bias_values_BM[i, :n].tolist() == each.bias_values.tolist()


def test_what_does_not_fit_is_said_and_refused() -> None:
    batch = batch_of(1)
    wide = row(logit_bias=dict.fromkeys(range(5), 1.0))
    assert batch.why_not(row()) is None
    assert batch.why_not(wide) == "logit_bias names 5 tokens, at most 4 are supported"
    with pytest.raises(ValueError, match="at most 4"):
        batch.update([wide], positions=[0])
    with pytest.raises(ValueError, match="room 1"):
        batch.update([row(), row()], positions=[0, 1])


def test_an_empty_update_leaves_only_padding() -> None:
    batch = batch_of()
    batch.update([row()], positions=[3])
    batch.update([], positions=[])
    assert not batch.settings_BW.any()


def test_results_have_one_entry_per_row() -> None:
    sampled = DeviceSampled.empty(3, device="cpu")
    shapes = {sampled.token_ids_B.shape, sampled.ok_B.shape, sampled.logprob_B.shape}
    assert shapes == {(3,)}
