"""Bytes of norms equal those of the tensors."""

from headrace.kernels.costs.norm import add_rms_norm_bytes, rms_norm_bytes


def test_a_norm_reads_and_writes_each_row_and_reads_the_weight() -> None:
    assert rms_norm_bytes(3, width=10, item_bytes=4) == (3 + 3 + 1) * 10 * 4


def test_an_add_reads_and_writes_a_second_row() -> None:
    assert add_rms_norm_bytes(3, width=10) == (4 * 3 + 1) * 10 * 2


def test_no_rows_move_only_the_weight() -> None:
    assert rms_norm_bytes(0, width=8) == add_rms_norm_bytes(0, width=8) == 16
