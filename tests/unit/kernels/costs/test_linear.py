"""Bytes and FLOPs of a product equal what counting by hand gives."""

from headrace.kernels.costs.linear import linear_bytes, linear_flops


def test_every_operand_moves_once() -> None:
    assert linear_bytes(2, columns=3, inner=5, item_bytes=4) == (15 + 10 + 6) * 4


def test_every_element_is_a_sum_of_products() -> None:
    assert linear_flops(2, columns=3, inner=5) == 2 * 2 * 3 * 5
