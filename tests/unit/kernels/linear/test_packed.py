import pytest
import torch

from headrace.kernels.linear import packed
from headrace.kernels.linear.packed import (
    RowRule,
    num_padded_rows,
    pack,
    pad_packed_rows,
    row_rule,
    why_not_packed,
)
from tests.support.kernels_checks import assert_bits_equal, random


def test_this_machine_can_or_says_why_not() -> None:
    assert "fp16" in str(why_not_packed(torch.float32, exact=False))
    reason = why_not_packed(torch.bfloat16, exact=True)
    assert reason is None or len(reason.split()) > 3


def test_a_build_without_the_operators_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_multiply", packed._absent)
    packed._is_built_in.cache_clear()
    assert "FBGEMM" in str(why_not_packed(torch.bfloat16, exact=False))
    packed._is_built_in.cache_clear()


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 64, 200])
def test_products_are_those_of_weights_rounded_to_fp16(rows: int) -> None:
    weight, x = random(96, 80, dtype=torch.bfloat16), random(rows, 80, seed=1)
    product = pack(weight).product(x)
    expected = x.double() @ weight.half().double().t()
    library = x @ weight.half().float().t()
    bound = 4 * (library.double() - expected).abs().max() + 1e-6 * expected.abs().max()
    assert (product.double() - expected).abs().max() <= bound
    into = torch.empty_like(product)
    pack(weight).product_into(x, into)
    assert_bits_equal(into, product)


def test_sharing_rows_among_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = random(96, 80), pad_packed_rows(random(50, 80, seed=1))
    alone = pack(weight).product(x)
    monkeypatch.setattr(packed, "_MIN_SHARED_WORK", 1)
    threads = torch.get_num_threads()
    try:
        for num_threads in (2, 3):
            torch.set_num_threads(num_threads)
            assert_bits_equal(pack(weight).product(x), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("num_columns", [1, 31, 33, 80])
def test_columns_beyond_the_kernels_run_are_as_in_a_wider_weight(num_columns: int) -> None:
    wide, x = random(96, 48), pad_packed_rows(random(5, 48, seed=1))
    expected = pack(wide).product(x)[:, :num_columns]
    narrow = pack(wide[:num_columns])
    into = torch.full((len(x), num_columns), torch.nan)
    narrow.product_into(x, into)
    assert_bits_equal(narrow.product(x), expected.contiguous())
    assert_bits_equal(into, expected.contiguous())


def test_rows_are_padded_to_the_next_number_that_does_not_matter() -> None:
    rule = RowRule(6, frozenset({3, 4, 6, 8, 12}))
    assert [rule.pad(count) for count in range(9)] == [0, 3, 3, 3, 4, 6, 6, 8, 8]
    assert [rule.pad(count) for count in (65, 66, 67)] == [66, 66, 72]
    assert [rule.shares(*each) for each in [(12, 2), (16, 2), (13, 2), (66, 3)]] == [
        [6, 6],
        [12, 4],
        [13],
        [24, 24, 18],
    ]


def test_rows_are_padded_with_zeros() -> None:
    x = random(7, 5, dtype=torch.bfloat16)
    padded = pad_packed_rows(x)
    assert len(padded) == num_padded_rows(7)
    assert_bits_equal(padded[:7], x.float())
    assert not padded[7:].any()


def test_padded_rows_depend_on_themselves_alone() -> None:
    assert row_rule().step or why_not_packed(torch.bfloat16, exact=True) is not None
    weight, x = pack(random(96, 700)), random(150, 700, seed=1)
    whole = weight.product(pad_packed_rows(x))[:150]
    for count in range(1, 140):
        rows = pad_packed_rows(x[3 : 3 + count])
        assert_bits_equal(weight.product(rows)[:count], whole[3 : 3 + count])


def test_a_weight_beyond_fp16_is_refused() -> None:
    with pytest.raises(ValueError, match="65504"):
        pack(torch.full((16, 16), 7e4))


def test_packing_warns_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    pack(torch.ones(16, 16)).product(torch.ones(1, 16))
    assert capfd.readouterr().err == ""
