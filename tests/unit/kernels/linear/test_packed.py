import pytest
import torch

from headrace.kernels.linear import packed
from headrace.kernels.linear.packed import (
    num_padded_rows,
    pack,
    pad_packed_rows,
    row_rule_holds,
    why_not_packed,
)
from tests.support.kernels_checks import assert_bits_equal, random


def test_this_machine_can_or_says_why_not() -> None:
    assert "fp16" in str(why_not_packed(torch.float32, exact=False))
    reason = why_not_packed(torch.bfloat16, exact=True)
    assert reason is None or len(reason.split()) > 3


def test_a_build_without_the_operators_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_multiply", packed._absent)
    assert "FBGEMM" in str(why_not_packed(torch.bfloat16, exact=False))


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
    weight, x = pack(random(96, 80)), pad_packed_rows(random(50, 80, seed=1))
    alone = weight.product(x)
    monkeypatch.setattr(packed, "_MIN_SHARED_WORK", 1)
    threads = torch.get_num_threads()
    try:
        for num_threads in (2, 3):
            torch.set_num_threads(num_threads)
            assert_bits_equal(weight.product(x), alone)
    finally:
        torch.set_num_threads(threads)


def test_padded_rows_never_end_in_a_group_of_one_or_two() -> None:
    assert [num_padded_rows(count) for count in range(8)] == [0, 4, 4, 4, 4, 6, 6, 12]
    x = random(7, 5, dtype=torch.bfloat16)
    padded = pad_packed_rows(x)
    assert_bits_equal(padded[:7], x.float())
    assert padded.shape == (12, 5)
    assert not padded[7:].any()


def test_padded_rows_depend_on_themselves_alone() -> None:
    assert row_rule_holds() is True or why_not_packed(torch.bfloat16, exact=True) is not None


def test_a_weight_beyond_fp16_is_refused() -> None:
    with pytest.raises(ValueError, match="65504"):
        pack(torch.full((16, 16), 7e4))


def test_packing_warns_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    pack(torch.ones(16, 16)).product(torch.ones(1, 16))
    assert capfd.readouterr().err == ""
